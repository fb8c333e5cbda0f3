"""What the agent must know of an environment: its observation and its action heads, nothing of what they mean."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from simic.errors import SimicError
from simic.transfer import constant


@dataclass(frozen=True)
class Head:
    """One factor of the action. ``mask_given`` says on which earlier head's choice its mask depends. ``lean``: logits
    that an untrained policy adds to its choices, none where empty. ``described``: so many features of the observation
    are about each choice; they are its last columns, choice by choice, and at most one head has them. ``first``: what
    the environment calls the first choice; inside, choices count from 0.
    """

    name: str
    size: int
    mask_given: Literal["nothing", "op", "slot"] = "nothing"
    lean: tuple[float, ...] = ()
    described: int = 0
    first: int = 0


@dataclass(frozen=True)
class ActionSpec:
    """Heads in sampling order. The first head plays the part of the op; a head that others are masked by in the part of
    the slot is the second. ``relevance[o][k]``: head k matters when the first head chose o; the first always matters.
    """

    heads: tuple[Head, ...]
    relevance: tuple[tuple[bool, ...], ...]

    def __post_init__(self) -> None:
        # One row for each op, one column for each head.
        ops = self.heads[0].size
        if len(self.relevance) != ops or any(len(row) != len(self.heads) for row in self.relevance):
            raise ValueError(f"relevance must have {ops} rows of {len(self.heads)} heads")
        if not all(row[0] for row in self.relevance):
            raise ValueError(
                f"head {self.heads[0].name!r} decides relevance, so it is always relevant"
            )
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

    @classmethod
    def discrete(cls, *sizes: int) -> Self:
        """Make the trivial spec of a Discrete (one size) or MultiDiscrete space: every head always matters."""
        heads = tuple(Head(f"action_{k}", size) for k, size in enumerate(sizes))
        return cls(heads, tuple((True,) * len(sizes) for _ in range(sizes[0])))

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
        shapes = {head.name: (envs, *self.mask_shape(k)) for k, head in enumerate(self.heads)}
        for name, mask in masks.items():
            if name not in shapes:
                raise SimicError(
                    f"mask {name!r}: there is no such head; the heads are {', '.join(shapes)}"
                )
            if mask.shape != shapes[name] or mask.dtype != torch.bool:
                found = f"{str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}"
                raise SimicError(f"mask {name!r} is {found}: must be bool {list(shapes[name])}")

    def relevance_table(self, device: torch.device | str = "cpu") -> Tensor:
        """Copy the relevance to a device, bool ``[ops, heads]``."""
        return constant(self.relevance, torch.bool, torch.device(device))


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
    offset may be so large that float32 has no digits left for what is on it. The first features are the pixels of
    ``images``, one picture after the other.
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

    @property
    def pixels(self) -> int:
        """Count the features that are pixels."""
        return sum(image.pixels for image in self.images)

    @property
    def of_actor(self) -> "ObservationSpec":
        """The spec without the privileged columns."""
        return replace(self, privileged=0, privileged_cardinality=0)


@dataclass(frozen=True)
class Observation:
    """What the policy sees: ``features [..., D]`` float32, raw ones of the spec's dtype, ``categories [..., C]`` int64
    (C may be 0), and masks.

    Masks are by head name, bool ``[..., n]``, ``[..., ops, n]`` or ``[..., slots, n]`` by the head's ``mask_given``; a
    head without a mask is free. ``privileged [..., n]`` int64 is what the critic alone sees; None: nothing.
    """

    features: Tensor
    categories: Tensor
    masks: dict[str, Tensor]
    privileged: Tensor | None = None
