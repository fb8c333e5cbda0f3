"""The shipped suites as they are meant to be used: with the params they bring along."""

from pathlib import Path

import torch

from simic.data.suites.kinds import Draws, Sources


def test_streams_are_those_that_banks_were_drawn_from():
    """Integers alone, so equal on any machine: a change here makes other tasks of every recorded result."""
    draws = Draws(1, "digits", "val", 3, Sources(Path()))
    assert draws.integers(1000, 4).tolist() == [457, 215, 928, 526]
    assert draws.of_split("test").permutation(6).tolist() == [0, 5, 2, 3, 1, 4]
    labels = torch.arange(60) % 2
    assert draws.of_split("train").of_pool("digits", labels, torch.tensor([0, 1, 1])).tolist() == [
        12,
        59,
        11,
    ]
