"""Register kinds of tasks by name. A kind draws the parameters of one instance and returns how its samples are made.
Users add their own in a file of theirs: examples/extensions/waves.py.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simic import registry, rng
from simic.data.bank import SPLITS
from simic.data.sources import Source, complete, drop_duplicates, read_bundled
from simic.errors import SimicError
from simic.rng import Purpose

GROUPS = ("train", "val", "held_out")
# Outside kinds share their finite sources with no other group: only splits divide them.
OUTSIDE = "outside"
# How the groups share the samples of a finite source.
GROUP_SHARES = (0.5, 0.2, 0.3)
# How the splits share the samples of a group.
SPLIT_SHARES = (0.6, 0.2, 0.2)


@dataclass
class Sources:
    """The finite sources of one bank, each read once, and by name how many duplicates were dropped."""

    # Folder of users' and published files.
    data_dir: Path
    sources: dict[str, Source] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def read(self, name: str, reader: Callable[[Path], Source]) -> Source:
        """Read a source by ``reader(data_dir)``, checked and without duplicates: a copy could be in two pools."""
        if name not in self.sources:
            source = complete(reader(self.data_dir))
            self.sources[name], self.dropped[name] = drop_duplicates(source)
        return self.sources[name]

    def without_samples(self) -> "Sources":
        """Keep what is recorded of each source."""
        nothing = torch.zeros(0, dtype=torch.int64)
        sources = {name: source.take(nothing) for name, source in self.sources.items()}
        return replace(self, sources=sources)

    def add(self, sources: "Sources") -> None:
        """Add sources that another process has read for the same bank."""
        self.sources = sources.sources | self.sources
        self.dropped |= sources.dropped


@dataclass
class Draws:
    """Random numbers of one instance (its parameters), or of one of its splits. Each call draws from a stream of its
    own, named by kind, ``group`` (train, val, held_out, outside), instance, split and number of the call.
    """

    rng_seed: int
    kind: str
    group: str
    instance: int
    # Finite data, each read once for the whole bank.
    shelf: Sources
    # None: of the instance's parameters.
    split: str | None = None
    calls: int = 0

    def of_split(self, split: str) -> "Draws":
        """Begin the draws of a split; those of another one change nothing here."""
        return replace(self, split=split, calls=0)

    def _stream(self) -> Tensor:
        # By name, not by order: a kind that draws more does not move the numbers of the others.
        kind = zlib.crc32(self.kind.encode())
        group = (*GROUPS, OUTSIDE).index(self.group)
        split = -1 if self.split is None else SPLITS.index(self.split)
        self.calls += 1
        return rng.key(
            self.rng_seed,
            Purpose.INSTANCE,
            kind,
            group,
            self.instance,
            split,
            self.calls,
        )

    def uniform(self, *shape: int) -> Tensor:
        """Draw float32 in [0, 1)."""
        return rng.uniform(self._stream(), shape)

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal float32."""
        return rng.normal(self._stream(), shape)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Draw int64 from 0 to ``below`` - 1."""
        return (rng.bits(self._stream(), shape) & 0x7FFFFFFF) % below

    def permutation(self, n: int) -> Tensor:
        """Draw a permutation of 0 to ``n`` - 1."""
        return rng.permutation(self._stream(), n)

    def number(self, low: float, high: float) -> float:
        """Draw a parameter of the instance, rounded to the three digits that are recorded."""
        return round(low + (high - low) * float(self.uniform()), 3)

    def whole(self, low: int, high: int) -> int:
        """Draw a whole parameter of the instance, ``high`` included."""
        return low + int(self.integers(high - low + 1))

    def subset(self, of: int, low: int, high: int) -> list[int]:
        """Draw some of the numbers 0 to ``of`` - 1, in order.

        Args:
            of: how many numbers there are.
            low: fewest that are drawn.
            high: most that are drawn.
        """
        count = self.whole(low, high)
        return sorted(self.permutation(of)[:count].tolist())

    def labels(self, n: int, classes: int) -> Tensor:
        """Draw labels ``[n]`` int64 in random order; the numbers of two classes differ by one at most."""
        return self.permutation(n) % classes

    def members(self, y: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """Draw one of ``groups[k]`` for each ``y = k``, each member as often as any other."""
        chosen = torch.empty_like(y)
        for place, group in enumerate(groups):
            rows = torch.nonzero(y == place).flatten()
            chosen[rows] = torch.tensor(group)[self.labels(len(rows), len(group))]
        return chosen

    def mislabelled(self, y: Tensor, classes: int, share: float) -> Tensor:
        """Replace a share of the labels by any other; those of the test split stay right.

        Args:
            y: labels ``[n]``.
            classes: number of classes.
            share: probability of each label to be replaced.
        """
        if self.split == "test" or share == 0.0:
            return y
        # Any of the other classes.
        wrong = (y + 1 + self.integers(classes - 1, len(y))) % classes
        return torch.where(self.uniform(len(y)) < share, wrong, y)

    def bundled(self, name: str) -> Source:
        """Read a data set of scikit-learn's, without duplicates."""
        return self.source(name, lambda data_dir: read_bundled(name))

    def source(self, name: str, reader: Callable[[Path], Source]) -> Source:
        """Read finite data by ``reader(data folder)``, once for all instances, without duplicates."""
        return self.shelf.read(name, reader)

    def of_pool(self, name: str, labels: Tensor, drawn: Tensor) -> Tensor:
        """Draw a sample of a finite source for each label.

        By hash, each sample belongs to the pool of one group and one split, so no other sees it; all of a pool are used
        once before any is used again. An instance of an outside kind divides all samples among its splits anew.

        Args:
            name: of the source; it decides which sample is in which pool.
            labels: of all samples of the source.
            drawn: labels ``[n]`` to find samples for.

        Returns:
            Places of samples in the source, ``[n]``.
        """
        assert self.split is not None
        instance = (self.instance,) if self.group == OUTSIDE else ()
        chosen = torch.empty_like(drawn)
        for label in drawn.unique().tolist():
            # The pool of this group and split, of the samples with this label.
            members = torch.nonzero(labels == label).flatten()
            stream = rng.key(
                self.rng_seed,
                Purpose.SPLIT,
                zlib.crc32(name.encode()),
                label,
                *instance,
            )
            pool = members[rng.permutation(stream, len(members))]
            if self.group != OUTSIDE:
                pool = _part(pool, GROUP_SHARES, GROUPS.index(self.group))
            pool = _part(pool, SPLIT_SHARES, SPLITS.index(self.split))
            if not len(pool):
                raise SimicError(
                    f"kind {self.kind!r}: {name} has {len(members)} samples of class {label}: too few to give each of "
                    f"{len(GROUPS)} groups of tasks and each of their {len(SPLITS)} splits one of its own"
                )
            rows = torch.nonzero(drawn == label).flatten()
            chosen[rows] = pool[self.permutation(len(pool))[torch.arange(len(rows)) % len(pool)]]
        return chosen


def _part(values: Tensor, shares: tuple[float, ...], index: int) -> Tensor:
    # Rounded edges, so that parts share no value and leave none out.
    edges = [round(len(values) * sum(shares[:k])) for k in range(len(shares) + 1)]
    return values[edges[index] : edges[index + 1]]


@dataclass(frozen=True)
class Problem:
    """One instance: ``sample(draws, n)`` gives ``x [n, …]`` and ``y [n]`` of a split; ``parameters`` are recorded.

    Images are float32 ``[n, C, H, W]``, tables ``[n, 1, 1, D]``; labels int64, from 0 on.
    """

    classes: int
    parameters: dict[str, Any]
    sample: Callable[[Draws, int], tuple[Tensor, Tensor]]


Kind = Callable[[Draws], Problem]
# Kinds by name, by suite.
KINDS: dict[str, dict[str, Kind]] = {}


def kind(suite: str, name: str) -> Callable[[Kind], Kind]:
    """Register a kind of a suite (decorator); SimicError for a name that is in use or an unknown suite."""

    def register(function: Kind) -> Kind:
        if suite not in registry.known(registry.SUITE):
            suites = ", ".join(registry.known(registry.SUITE))
            raise SimicError(
                f"kind {name!r}: no suite {suite!r}: must be one of {suites}, or registered before it"
            )
        kinds = KINDS.setdefault(suite, {})
        if name in kinds:
            raise SimicError(f"suite {suite!r} has a kind {name!r} already; choose another name")
        kinds[name] = function
        return function

    return register
