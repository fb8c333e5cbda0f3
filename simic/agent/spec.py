"""What the agent must know of an environment: its observation and its action heads, nothing of what they mean."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from simic.errors import SimicError
from simic.transfer import constant


@dataclass(frozen=True)
class Head:
    """One factor of the action: a choice of ``size``, or where it is ``continuous`` as many real numbers.

    ``mask_given`` says on which earlier head's choice its mask depends. ``lean``: logits that an untrained policy adds
    to its choices, none where empty. ``described``: so many features of the observation are about each choice; they are
    its last columns, choice by choice, and at most one head has them. ``first``: what the environment calls the first
    choice; inside, choices count from 0. ``bounds`` of a continuous head are by number, None for what has no bound;
    inside, bounded numbers are in units of half their range, from its middle. The action space sets both.
    """

    name: str
    size: int
    mask_given: Literal["nothing", "op", "slot"] = "nothing"
    lean: tuple[float, ...] = ()
    described: int = 0
    first: int = 0
    continuous: bool = False
    bounds: tuple[tuple[float | None, float | None], ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.size}{' continuous' * self.continuous}"

    @property
    def description(self) -> str:
        """Describe in a line what it decides, and by what it is masked and described."""
        text = f"head {self.name}: {self.size} {'number' if self.continuous else 'choice'}"
        text += "s" * (self.size > 1)
        text += f", masked by {self.mask_given}" * (self.mask_given != "nothing")
        return text + f", each described by {self.described} numbers" * (self.described > 0)

    @property
    def ends(self) -> list[tuple[float, float]]:
        """List the least and the largest value of each number; infinite where it has no bound."""
        return [
            (-math.inf if low is None else low, math.inf if high is None else high)
            for low, high in self.bounds or ((None, None),) * self.size
        ]

    @property
    def bounded(self) -> list[bool]:
        """Tell which numbers have two bounds."""
        return [math.isfinite(high - low) for low, high in self.ends]


@dataclass(frozen=True)
class ActionSpec:
    """Heads in sampling order, continuous ones last. The first head plays the part of the op; a head that others are
    masked by in the part of the slot is the second. ``relevance[o][k]``: head k matters when the first head chose o;
    the first always matters, and so do all where it is continuous, which counts as one op.

    An action is a row of ``width`` columns: an index for each discrete head, then the numbers of continuous ones.
    """

    heads: tuple[Head, ...]
    relevance: tuple[tuple[bool, ...], ...]

    def __post_init__(self) -> None:
        # One row for each op, one column for each head.
        ops = 1 if self.heads[0].continuous else self.heads[0].size
        if len(self.relevance) != ops or any(len(row) != len(self.heads) for row in self.relevance):
            raise ValueError(f"relevance must have {ops} rows of {len(self.heads)} heads")
        if not all(row[0] for row in self.relevance):
            raise ValueError(
                f"head {self.heads[0].name!r} decides relevance, so it is always relevant"
            )
        self._refuse_continuous()
        if sum(head.described > 0 for head in self.heads) > 1:
            raise ValueError("the choices of more than one head are described")
        # A mask can depend only on what was chosen before, and on a slot only where every op of the head has one.
        for index, head in enumerate(self.heads):
            if index < {"nothing": 0, "op": 1, "slot": 2}[head.mask_given]:
                raise ValueError(
                    f"head {head.name!r} is number {index}: no {head.mask_given} is chosen before it"
                )
            if head.mask_given == "slot" and any(
                row[index] and not row[1] for row in self.relevance
            ):
                raise ValueError(
                    f"head {head.name!r} is masked by the slot, but some op uses it without a slot"
                )

    def _refuse_continuous(self) -> None:
        """Raise ValueError for what continuous heads cannot be."""
        for head, following in zip(self.heads, (*self.heads[1:], None), strict=True):
            if head.continuous and (head.mask_given != "nothing" or head.lean or head.described):
                raise ValueError(f"head {head.name!r} is continuous: it has no choices")
            if head.continuous and following and not following.continuous:
                raise ValueError(f"head {following.name!r} must be before the continuous ones")
        if self.heads[0].continuous and not all(self.relevance[0]):
            raise ValueError("there is no op, so every head must matter")

    @classmethod
    def trivial(cls, heads: Sequence[Head]) -> Self:
        """Let every head always matter."""
        ops = 1 if heads[0].continuous else heads[0].size
        return cls(tuple(heads), ((True,) * len(heads),) * ops)

    @classmethod
    def discrete(cls, *sizes: int) -> Self:
        """Make the trivial spec of a Discrete (one size) or MultiDiscrete space."""
        return cls.trivial([Head(f"action_{k}", size) for k, size in enumerate(sizes)])

    @cached_property
    def discrete_heads(self) -> tuple[Head, ...]:
        """The discrete heads."""
        return tuple(head for head in self.heads if not head.continuous)

    @cached_property
    def leading(self) -> int:
        """Count the heads whose choices later ones know: op and slot."""
        return min(2, len(self.discrete_heads))

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of actions: float32 holds an index and a number side by side."""
        return torch.int64 if len(self.discrete_heads) == len(self.heads) else torch.float32

    @property
    def description(self) -> list[str]:
        """Describe the heads in a line each, and the choices of the first one that use them."""
        lines: list[str] = []
        for k, head in enumerate(self.heads):
            ops = [op for op, row in enumerate(self.relevance) if row[k]]
            lines.append(
                f"{head.description}{f', for ops {ops}' * (len(ops) < len(self.relevance))}"
            )
        return lines

    @property
    def width(self) -> int:
        """Count the columns of an action."""
        return sum(head.size if head.continuous else 1 for head in self.heads)

    @cached_property
    def columns(self) -> tuple[int | slice, ...]:
        """Where each head is in an action: the column of its index, or those of its numbers."""
        # Discrete heads are first, with a column each.
        columns: list[int | slice] = list(range(len(self.discrete_heads)))
        begin = len(columns)
        for head in self.heads[begin:]:
            columns.append(slice(begin, begin + head.size))
            begin += head.size
        return tuple(columns)

    @property
    def column_names(self) -> list[str]:
        """Name the columns: by the head, and by the number's place where it has several."""
        # A single number is called as its head is.
        names = [head.name for head in self.discrete_heads]
        for head in self.heads[len(self.discrete_heads) :]:
            places = [f".{place}" for place in range(head.size)] if head.size > 1 else [""]
            names += [head.name + place for place in places]
        return names

    def to_env(self, actions: Tensor) -> Tensor:
        """Turn actions ``[..., width]`` into the environment's own: choices from its first one, numbers in its units
        and within its bounds.
        """
        return rescaled(actions, *self.scales(actions.device))

    def from_env(self, actions: Tensor) -> Tensor:
        """Turn the environment's own actions ``[..., width]`` back."""
        # Whole numbers stay such.
        scales = self.scales(actions.device)
        actions = actions - scales.middle
        return actions / scales.half if self.dtype.is_floating_point else actions

    def scales(self, device: torch.device | str = "cpu") -> "Scales":
        """Give what columns are scaled by, on a device."""
        types = self.dtype, self.dtype, torch.float32, torch.float32
        tables = zip(self._columns_scales, types, strict=True)
        return Scales(*(constant(values, dtype, torch.device(device)) for values, dtype in tables))

    @cached_property
    def _columns_scales(self) -> tuple[tuple[float, ...], ...]:
        rows: list[tuple[float, ...]] = [
            (head.first, 1, -math.inf, math.inf) for head in self.discrete_heads
        ]
        for head in self.heads[len(self.discrete_heads) :]:
            for (low, high), is_bounded in zip(head.ends, head.bounded, strict=True):
                # What lacks a bound has no middle: its units are the environment's.
                middle, half = ((low + high) / 2, (high - low) / 2) if is_bounded else (0.0, 1.0)
                rows.append((middle, half, low, high))
        return tuple(zip(*rows, strict=True))

    def mask_shape(self, head: int) -> tuple[int, ...]:
        """Tell the shape of a mask of this head for each environment."""
        spec = self.heads[head]
        # The tables come first in the shape, so that a row of them is one gather away from the choice.
        earlier = {"nothing": (), "op": self.heads[:1], "slot": self.heads[1:2]}[spec.mask_given]
        return (*(choice.size for choice in earlier), spec.size)

    def check_masks(self, masks: dict[str, Tensor], envs: int) -> None:
        """Raise SimicError for a mask of a head that is not there, or one that is not bool of the head's shape, which
        would be broadcast without a word.
        """
        if not masks:
            return
        shapes = {
            head.name: (envs, *self.mask_shape(k)) for k, head in enumerate(self.discrete_heads)
        }
        for name, mask in masks.items():
            if name not in shapes:
                raise SimicError(
                    f"mask {name!r}: there is no such discrete head; they are {', '.join(shapes) or 'none'}"
                )
            if mask.shape != shapes[name] or mask.dtype != torch.bool:
                found = f"{str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}"
                raise SimicError(f"mask {name!r} is {found}: must be bool {list(shapes[name])}")

    def relevance_table(self, device: torch.device | str = "cpu") -> Tensor:
        """Copy the relevance to a device, bool ``[ops, heads]``."""
        return constant(self.relevance, torch.bool, torch.device(device))


class Scales(NamedTuple):
    """Of the columns ``[width]`` of an action: what the environment calls 0, the length of 1, and the bounds."""

    middle: Tensor
    half: Tensor
    low: Tensor
    high: Tensor


def rescaled(actions: Tensor, middle: Tensor, half: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Compute the environment's own actions; indices alone are only moved."""
    moved = actions * half + middle
    return moved.clamp(low, high) if actions.dtype.is_floating_point else moved


@dataclass(frozen=True)
class Image:
    """A picture among the features: its shape as observed, where its channels are, and the value of a full pixel."""

    shape: tuple[int, ...]
    channels: Literal["first", "last"]
    highest: float

    @property
    def pixels(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ObservationSpec:
    """``features`` floats, of which those marked in ``raw`` are flags that the normaliser leaves alone, and
    ``categories`` integer columns in ``[-1, cardinality)`` (-1 = none) for an embedding; ``version`` is checked against
    a checkpoint's. ``privileged`` integer columns in ``[-1, privileged_cardinality)`` are for the critic alone
    (asymmetric actor-critic, Pinto et al. 2017, arXiv 1710.06542). ``dtype`` is that of raw features: float64 where an
    offset may be so large that float32 has no digits left for what is on it. Pixels of ``images``, picture by picture,
    stand apart and are of ``pixel_dtype``.
    """

    features: int
    raw: tuple[bool, ...] | None = None
    categories: int = 0
    cardinality: int = 0
    version: int = 1
    privileged: int = 0
    privileged_cardinality: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    images: tuple[Image, ...] = ()
    pixel_dtype: Literal["uint8", "float32"] = "float32"

    @property
    def pixels(self) -> int:
        """Count the pixels of all pictures."""
        return sum(image.pixels for image in self.images)

    @property
    def width(self) -> int:
        """Count the columns of a row: pixels, features and categories."""
        return self.pixels + self.features + self.categories

    @property
    def of_actor(self) -> "ObservationSpec":
        """The spec without the privileged columns."""
        return replace(self, privileged=0, privileged_cardinality=0)


@dataclass(frozen=True)
class Observation:
    """What the policy sees: ``features [..., D]`` float32, raw ones of the spec's dtype, ``categories [..., C]`` int64
    (C may be 0), masks, and ``pixels [..., P]`` as observed; None: there are none.

    Masks are by head name, bool ``[..., n]``, ``[..., ops, n]`` or ``[..., slots, n]`` by the head's ``mask_given``; a
    head without a mask is free. ``privileged [..., n]`` int64 is what the critic alone sees; None: nothing.
    """

    features: Tensor
    categories: Tensor
    masks: dict[str, Tensor]
    privileged: Tensor | None = None
    pixels: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "Observation":
        """Change all tensors alike."""
        return Observation(
            function(self.features),
            function(self.categories),
            {name: function(mask) for name, mask in self.masks.items()},
            None if self.privileged is None else function(self.privileged),
            None if self.pixels is None else function(self.pixels),
        )

    @property
    def numbers(self) -> Tensor:
        """Pixels and features side by side, ``[..., P + D]``, of the features' type."""
        if self.pixels is None:
            return self.features
        return torch.cat((self.pixels.to(self.features.dtype), self.features), dim=-1)
