"""Crop and flip: pixel by pixel what a slow oracle does, the same for any grouping of hosts."""

import pytest
import torch

from simic import rng
from simic.data.augment import augment_stream, crop_flip

HOSTS, BATCH = 3, 40


def batch(height: int = 7, width: int = 5) -> torch.Tensor:
    """Every pixel another value, none 0."""
    shape = (HOSTS, BATCH, 2, height, width)
    return torch.arange(1.0, 1.0 + HOSTS * BATCH * 2 * height * width).view(shape)


def stream(env_ids: torch.Tensor, number: int = 0) -> torch.Tensor:
    return augment_stream(5, 2, env_ids, 3, number)


def oracle(image: torch.Tensor, down: int, right: int, mirrored: bool) -> torch.Tensor:
    """Output pixel (i, j) is input pixel (i + down − 4, j' + right − 4), 0 outside, j' from the right if mirrored."""
    _, height, width = image.shape
    result = torch.zeros_like(image)
    for i in range(height):
        for j in range(width):
            row, column = i + down - 4, (width - 1 - j if mirrored else j) + right - 4
            if 0 <= row < height and 0 <= column < width:
                result[:, i, j] = image[:, row, column]
    return result


def test_each_image_is_one_of_its_162_variants_as_an_oracle_makes_them():
    x = batch()
    found = crop_flip(x, stream(torch.arange(HOSTS)))
    assert found.shape == x.shape
    seen = set()
    for host in range(HOSTS):
        draws = rng.bits(stream(torch.tensor(host)), (BATCH, 3))
        for n in range(BATCH):
            down, right, coin = (int(draw) & 0x7FFFFFFF for draw in draws[n])
            expected = oracle(x[host, n], down % 9, right % 9, bool(coin & 1))
            assert torch.equal(found[host, n], expected)
            seen.add((down % 9, right % 9, coin & 1))
    assert {down for down, _, _ in seen} == {right for _, right, _ in seen} == set(range(9))
    assert {coin for _, _, coin in seen} == {0, 1}


def test_hosts_do_not_depend_on_their_grouping():
    x, keys = batch(), stream(torch.arange(HOSTS))
    alone = [crop_flip(x[host : host + 1], keys[host : host + 1]) for host in range(HOSTS)]
    assert torch.equal(crop_flip(x, keys), torch.cat(alone))
    assert torch.equal(crop_flip(x.flip(0), keys.flip(0)), crop_flip(x, keys).flip(0))


@pytest.mark.parametrize("other", [(6, 2, 3, 0), (5, 1, 3, 0), (5, 2, 4, 0), (5, 2, 3, 1)])
def test_seed_iteration_step_and_batch_each_change_the_draws(other):
    seed, iteration, step, number = other
    x, env_ids = batch(), torch.arange(HOSTS)
    base = crop_flip(x, stream(env_ids))
    assert not torch.equal(base, crop_flip(x, augment_stream(seed, iteration, env_ids, step, number)))
    assert torch.equal(base, crop_flip(x, stream(env_ids)))


def test_gradients_go_back_to_the_pixels_that_are_shown():
    x = batch().requires_grad_()
    crop_flip(x, stream(torch.arange(HOSTS))).sum().backward()
    shown = torch.zeros_like(x, dtype=torch.bool)
    shown.view(-1)[crop_flip(x.detach(), stream(torch.arange(HOSTS))).long().flatten().unique()[1:] - 1] = True
    assert torch.equal(x.grad, shown.float())


def test_global_generators_are_not_touched(no_global_rng):
    with no_global_rng():
        crop_flip(batch(), stream(torch.arange(HOSTS)))
