"""Counter-based random numbers."""

import math

import pytest
import torch

from simic import rng

MASK = (1 << 64) - 1


def _mix_oracle(x: int) -> int:
    """SplitMix64's finaliser in Python's unbounded integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_bits_equal_splitmix64_of_unbounded_integers() -> None:
    stream = rng.key(7, rng.Purpose.SPLIT)
    for n, value in enumerate(rng.bits(stream, (50,)).tolist(), start=1):
        expected = _mix_oracle((stream.item() + n * 0x9E3779B97F4A7C15) & MASK)
        assert value & MASK == expected


def test_draws_do_not_depend_on_grouping() -> None:
    envs = torch.arange(8)
    together = rng.uniform(rng.key(1, rng.Purpose.ACTION, 3, envs), (5,))
    single = torch.stack(
        [rng.uniform(rng.key(1, rng.Purpose.ACTION, 3, int(e)), (5,)) for e in envs]
    )
    assert torch.equal(together, single)


@pytest.mark.parametrize("changed", [(2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1)])
def test_every_counter_changes_the_stream(changed: tuple[int, int, int]) -> None:
    seed, first, second = changed
    base = rng.bits(rng.key(1, rng.Purpose.ACTION, 0, 0), (64,))
    changed_stream = rng.bits(rng.key(seed, rng.Purpose.ACTION, first, second), (64,))
    assert not (base == changed_stream).any()


def test_purposes_are_apart() -> None:
    keys = torch.stack([rng.key(1, purpose) for purpose in rng.Purpose])
    assert keys.unique().numel() == len(rng.Purpose)


def test_uniform_moments() -> None:
    draws = rng.uniform(rng.key(1, rng.Purpose.ACTION, torch.arange(20)), (10_000,)).double()
    assert draws.min() >= 0 and draws.max() < 1
    # standard error of the mean of 200,000 uniforms: sqrt(1/12/200000) = 6.5e-4; 5 of them
    assert abs(draws.mean().item() - 0.5) < 5 * math.sqrt(1 / 12 / draws.numel())
    correlation = torch.corrcoef(draws)
    assert (correlation - torch.eye(20)).abs().max() < 5 / math.sqrt(10_000)


def test_normal_moments() -> None:
    draws = rng.normal(rng.key(1, rng.Purpose.HOST_INIT), (200_000,)).double()
    assert torch.isfinite(draws).all() and abs(draws.mean().item()) < 5 / math.sqrt(200_000)
    assert abs(draws.var().item() - 1) < 5 * math.sqrt(2 / 200_000)


def test_permutations_are_permutations_and_uniform() -> None:
    orders = rng.permutation(rng.key(1, rng.Purpose.BATCH_ORDER, torch.arange(6000)), 3)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(3).expand(6000, 3))
    _, counts = (orders * torch.tensor([9, 3, 1])).sum(1).unique(return_counts=True)
    # 6 orders, 1000 expected each, sd sqrt(6000·(1/6)(5/6)) = 28.9
    assert len(counts) == 6 and (counts - 1000).abs().max() < 5 * 28.9
