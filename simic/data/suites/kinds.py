"""Kinds of tasks by name. A kind draws what is random about one instance and returns how its samples are made.

A user adds one in a file of their own::

    from simic.data.suites.kinds import Draws, Problem, kind

    @kind("patches", "bright")
    def bright(draws):
        noise = draws.number(0.5, 1.5)

        def sample(draws, n):
            y = draws.labels(n, 2)
            return y[:, None, None, None] + noise * draws.normal(n, 1, 16, 16), y

        return Problem(2, {"noise": noise}, sample)
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor

from simic import rng
from simic.errors import SimicError
from simic.rng import Purpose

GROUPS = ("train", "val", "held_out")
SPLITS = ("train", "val", "test")
GROUP_SHARES = (0.5, 0.2, 0.3)  # of the samples of a finite source, and of each group's the splits
SPLIT_SHARES = (0.6, 0.2, 0.2)


class Draws:
    """Random numbers of one instance, or of one of its splits: each call is a stream of its own, in the order of calls.

    ``group`` says who may see the instance (train, val, held_out), ``split`` whether these are samples of its train,
    val or test split; equal names give equal numbers.
    """

    def __init__(
        self,
        rng_seed: int,
        kind: str,
        group: str,
        instance: int,
        split: str | None = None,
        data_dir: Path = Path("data/raw"),
    ) -> None:
        self.rng_seed, self.kind, self.group, self.instance, self.split = rng_seed, kind, group, instance, split
        self.data_dir = data_dir  # where files of users and published ones are
        self._calls = 0

    def _stream(self) -> Tensor:
        self._calls += 1
        split = -1 if self.split is None else SPLITS.index(self.split)
        where = zlib.crc32(self.kind.encode()), GROUPS.index(self.group), self.instance, split, self._calls
        return rng.key(self.rng_seed, Purpose.INSTANCE, *where)

    def uniform(self, *shape: int) -> Tensor:
        """Float32 in [0, 1)."""
        return rng.uniform(self._stream(), shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal float32."""
        return rng.normal(self._stream(), shape)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Int64 from 0 to ``below`` - 1."""
        return (rng.bits(self._stream(), shape) & 0x7FFFFFFF) % below

    def permutation(self, n: int) -> Tensor:
        """Of 0 to ``n`` - 1."""
        return rng.permutation(self._stream(), n)

    def number(self, low: float, high: float) -> float:
        """One parameter of the instance, rounded to three digits as it is recorded."""
        return round(low + (high - low) * float(self.uniform()), 3)

    def whole(self, low: int, high: int) -> int:
        """One whole parameter of the instance, ``high`` included."""
        return low + int(self.integers(high - low + 1))

    def labels(self, n: int, classes: int) -> Tensor:
        """``[n]`` int64, every class as often as any other but for one, in random order."""
        return torch.arange(n)[self.permutation(n)] % classes

    def of_pool(self, samples: int, source: str) -> Tensor:
        """Which of a finite source's samples this group and split may use, by hash: no other sees them."""
        assert self.split is not None
        order = rng.permutation(rng.key(self.rng_seed, Purpose.SPLIT, zlib.crc32(source.encode())), samples)
        mine = _part(order, GROUP_SHARES, GROUPS.index(self.group))
        return _part(mine, SPLIT_SHARES, SPLITS.index(self.split))


def _part(values: Tensor, shares: tuple[float, ...], index: int) -> Tensor:
    edges = [round(len(values) * sum(shares[:k])) for k in range(len(shares) + 1)]
    return values[edges[index] : edges[index + 1]]


@dataclass(frozen=True)
class Problem:
    """One instance: ``sample(draws, n)`` gives ``x [n, …]`` and ``y [n]`` of a split; ``parameters`` are what was drawn.

    Images are float32 ``[n, C, H, W]``, tables ``[n, 1, 1, D]``; byte sequences ``[n, L]`` uint8 with ``y [n, L]``.
    """

    classes: int
    parameters: dict[str, JsonValue]
    sample: Callable[[Draws, int], tuple[Tensor, Tensor]]


Kind = Callable[[Draws], Problem]
KINDS: dict[str, dict[str, Kind]] = {}  # by suite


def kind(suite: str, name: str) -> Callable[[Kind], Kind]:
    """Decorator: register a kind of a suite; SimicError where the name is taken."""

    def register(function: Kind) -> Kind:
        known = KINDS.setdefault(suite, {})
        if name in known:
            raise SimicError(f"suite {suite!r} has a kind {name!r} already; choose another name")
        known[name] = function
        return function

    return register
