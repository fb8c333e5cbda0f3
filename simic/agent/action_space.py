"""Action spaces as rows of numbers: what the leaves of a Dict or Tuple take, side by side.

Each Discrete is a head, each place of a MultiDiscrete or MultiBinary another, and each Box one continuous head. A row
has the indices of discrete heads first, then the numbers of the Boxes, both in the order of the space.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor

from simic.agent.spaces import Leaf, Path, leaf_values, leaves_of
from simic.agent.spec import ActionSpec, Head
from simic.errors import SimicError

# What float32 counts without gaps.
MOST_CHOICES = 2**24


@dataclass(frozen=True)
class ActionLayout:
    """The leaves of an action space, in the order of their columns."""

    space: gymnasium.Space

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves, discrete ones first."""
        leaves = leaves_of(self.space, "action")
        return tuple(sorted(leaves, key=lambda leaf: isinstance(leaf.space, Box)))

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """The heads, with what the space knows of them."""
        # A leaf has one head or several; their names become columns of the telemetry, so no two may be alike.
        heads = [head for leaf in self.leaves for head in _heads(leaf)]
        names = [head.name for head in heads]
        for name in names:
            if names.count(name) > 1:
                raise SimicError(f"action space {self.space}: two leaves are called {name!r}")
        return tuple(heads)

    def to_env(self, row: np.ndarray) -> Any:
        """Build an action from a row of the environment's own choices and numbers (``ActionSpec.to_env``)."""
        # The most usual space, without the general way.
        if isinstance(self.space, Discrete):
            return self.space.dtype.type(row[0])
        # Columns are in the order of the leaves, which is not that of the space: parts are found again by their paths.
        parts: dict[Path, np.ndarray] = {}
        begin = 0
        for leaf in self.leaves:
            values = row[begin : begin + leaf.size].astype(leaf.space.dtype)
            begin += leaf.size
            values = values.reshape(leaf.space.shape or ())
            if isinstance(leaf.space, Box):
                # Float32 rounds a bound of float64 up or down.
                values = np.asarray(values.clip(leaf.space.low, leaf.space.high))
            parts[leaf.path] = values
        return _built(self.space, (), parts)

    def from_env(self, action: Any) -> np.ndarray:
        """Put an action into a row.

        Raises:
            SimicError: A part is missing, or not of its space.
        """
        # Checked leaf by leaf, so that the message names the one that is wrong.
        columns: list[np.ndarray] = []
        for leaf in self.leaves:
            values = leaf_values(action, leaf)
            if not leaf.space.contains(values[()] if isinstance(leaf.space, Discrete) else values):
                raise SimicError(f"{leaf} is {values.tolist()}: its space is {leaf.space}")
            columns.append(values.reshape(-1))
        return np.concatenate(columns)


def _heads(leaf: Leaf) -> Iterator[Head]:
    """Describe the heads of a leaf, named by its path: "move", or "action_0" where the space has no names."""
    space = leaf.space
    if not leaf.size:
        raise SimicError(f"{leaf} is of {space}: must hold something")
    name = ".".join(map(str, leaf.path))
    if not leaf.path or isinstance(leaf.path[0], int):
        name = f"action_{name or 0}"
    # One head for a whole Box: its numbers are drawn together and share a network. Whole numbers would have gaps.
    if isinstance(space, Box):
        if np.dtype(space.dtype).kind != "f":
            raise SimicError(f"{leaf} is of {space}: must be a Box of floats")
        ends = zip(space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist(), strict=True)
        bounds = tuple((_finite(low), _finite(high)) for low, high in ends)
        yield Head(name, leaf.size, continuous=True, bounds=bounds)
        return
    # Each place of a discrete leaf is a choice of its own.
    prefix = f"{name}." if leaf.path else "action_"
    for place, (size, first) in enumerate(zip(*_sizes(space), strict=True)):
        if size > MOST_CHOICES:
            raise SimicError(f"{leaf} has {size} choices: must be at most {MOST_CHOICES}")
        yield Head(f"{prefix}{place}" if space.shape else name, size, first=first)


def _sizes(space: gymnasium.Space) -> tuple[list[int], list[int]]:
    """Count the choices of each place of a discrete leaf; tell what the first of them is called."""
    if isinstance(space, MultiBinary):
        sizes = np.full(space.shape, 2)
    else:
        assert isinstance(space, Discrete | MultiDiscrete)
        sizes = np.asarray(space.n if isinstance(space, Discrete) else space.nvec)
    firsts = np.broadcast_to(np.asarray(getattr(space, "start", 0), dtype=np.int64), sizes.shape)
    return sizes.reshape(-1).tolist(), firsts.reshape(-1).tolist()


def _finite(bound: float) -> float | None:
    return bound if np.isfinite(bound) else None


def _built(space: gymnasium.Space, path: Path, parts: dict[Path, np.ndarray]) -> Any:
    """Put parts together as the space is nested."""
    if isinstance(space, Dict):
        return {name: _built(inner, (*path, name), parts) for name, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(
            _built(inner, (*path, place), parts) for place, inner in enumerate(space.spaces)
        )
    # A Discrete takes a number, not an array.
    part = parts[path]
    return part[()] if isinstance(space, Discrete) else part


def heads_of(layout: ActionLayout, action_spec: ActionSpec | None) -> ActionSpec:
    """Describe an action space.

    Args:
        layout: Of the space.
        action_spec: Replaces the trivial one of the space; None: every head always matters.

    Raises:
        SimicError: The agent does not know the space, or the spec is not of it.
    """
    if action_spec is None:
        return ActionSpec.trivial(layout.heads)
    if not isinstance(action_spec, ActionSpec):
        raise SimicError(
            f"action_spec is {type(action_spec).__name__}: must be a simic.agent.spec.ActionSpec"
        )
    # The spec says what heads are called and when they matter; how large they are the space knows.
    sizes, expected = (
        [f"{head.size} numbers" if head.continuous else head.size for head in heads]
        for heads in (action_spec.heads, layout.heads)
    )
    if sizes != expected:
        raise SimicError(
            f"action_spec has heads of sizes {sizes}: must be those of the action space, {expected}"
        )
    # Numbering and bounds are the space's.
    heads = tuple(
        replace(head, first=known.first, bounds=known.bounds)
        for head, known in zip(action_spec.heads, layout.heads, strict=True)
    )
    return replace(action_spec, heads=heads)


def columns_of(layout: ActionLayout, spec: ActionSpec, action: Any) -> Tensor:
    """Turn an environment's action into columns ``[width]``, the way back of ``ActionLayout.to_env``.

    Args:
        layout: Of the action space.
        spec: Its heads.
        action: As the environment takes it.

    Raises:
        SimicError: It is not of the space.
    """
    return spec.from_env(torch.from_numpy(layout.from_env(action)).to(spec.dtype))
