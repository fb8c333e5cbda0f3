"""Planted tasks are what they say by construction; that the plant is found in the environment: tests/envs."""

import pytest
import torch

from simic.data.batches import load_split, read_meta
from simic.data.prepare import prepare
from simic.data.synthetic import PLANTED, orientation
from tests.data.refusals import refused
from tests.standard import Prepare

N = 20_000


def best_threshold(score: torch.Tensor, label: torch.Tensor) -> float:
    """Share of labels that the best cut of one number gets right, whichever side is 1."""
    hits = (2 * label[score.argsort()] - 1).cumsum(0).abs().max()
    return 0.5 + float(hits) / len(label)


@pytest.mark.parametrize("name", PLANTED)
def test_samples_are_a_hash_of_seed_and_number(name, no_global_rng):
    with no_global_rng():
        x, y = PLANTED[name].generate(3, 50)
    again, more, other = (PLANTED[name].generate(seed, n) for seed, n in ((3, 50), (3, 80), (4, 50)))
    assert torch.equal(x, again[0]) and torch.equal(y, again[1])
    assert torch.equal(x, more[0][:50]) and torch.equal(y, more[1][:50])
    assert not torch.equal(x, other[0])


@pytest.mark.parametrize("name", PLANTED)
def test_prepared_like_any_other_data(name, tmp_path):
    prepare(Prepare(task="synthetic", source=name, samples=300), 1, tmp_path / "out", tmp_path)
    meta, train = read_meta(tmp_path / "out"), load_split(tmp_path / "out", "train")
    assert meta.source == f"planted: {name}"
    assert sum(meta.samples.values()) + meta.duplicates_dropped == 300 and meta.duplicates_dropped <= 5
    assert 177 <= meta.samples["train"] <= 180
    assert train.classes == PLANTED[name].classes
    assert train.shape == (1, 8, 8)
    said = refused(Prepare(task="synthetic", source="xor"), tmp_path)
    assert said == "prepare.source = 'xor': must be a planted task: orientation"


def blocks(x: torch.Tensor) -> torch.Tensor:
    """``[N, 4, 2, 2]``: cells of each block of 2 × 2 cells."""
    cells = x[:, 0, ::2, ::2]
    return cells.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(x), 4, 2, 2)


def test_orientation_is_told_by_neighbours():
    x, y = orientation(1, N)
    found = blocks(x)
    across = (found.sum(3)[..., 0] - found.sum(3)[..., 1]).abs().sum(1)  # rows of a block differ
    along = (found.sum(2)[..., 0] - found.sum(2)[..., 1]).abs().sum(1)
    assert float(((along > across).long() == y).float().mean()) > 0.98


def test_orientation_is_not_told_by_cells_nor_by_blocks_without_places():
    """Every function of cells, of sorted blocks and of pairs of sorted blocks that is looked at is at chance."""
    x, y = orientation(2, N)
    ordered = blocks(x).flatten(2).sort(dim=2).values  # [N, 4, 4]
    scores = [x[:, 0, 2 * i, 2 * j] for i in range(4) for j in range(4)]
    scores += [ordered[:, block, rank] for block in range(4) for rank in range(4)]
    scores += [ordered[:, 0, 3] * ordered[:, 1, 3], ordered[:, 0, 0] * ordered[:, 2, 3], x.mean((1, 2, 3))]
    scores += [x.var((1, 2, 3)), ordered.var(2).mean(1), ordered[..., 3].amax(1)]
    # The best of all cuts exceeds chance by about the supremum of a random walk: below 2.5 / (2 √N) at 5 sigma.
    assert max(best_threshold(score, y) for score in scores) < 0.5 + 2.5 / N**0.5
