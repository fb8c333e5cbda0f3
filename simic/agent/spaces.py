"""Observation spaces as rows of numbers: what the leaves of a Dict or Tuple hold, side by side.

A row has the pixels of images first, then all other numbers in the order of the space, then categories. Numbers are
scaled by running moments; flags and pixels are not. Categories are counted on from leaf to leaf, so that each value of
each leaf has an embedding of its own.
"""

import math
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from simic.agent.spec import Image, ObservationSpec
from simic.errors import SimicError
from simic.transfer import as_array

Kind = Literal["image", "numbers", "flags", "categories"]
ORDER: dict[Kind, int] = {"image": 0, "numbers": 1, "flags": 1, "categories": 2}
Path = tuple[str | int, ...]
Owner = Literal["observation", "action"]

LEAVES = (Box, Discrete, MultiDiscrete, MultiBinary)
ALLOWED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
# Pixels on the shorter side: of less no convolution is needed.
LEAST_SIDE = 8
# A picture has few channels, or some frames of few.
MOST_CHANNELS = 16
PIXEL_DIMENSIONS = 3
# Of bytes, and of parts of 1. A board with values to 9 is no picture.
FULL_PIXELS = (1.0, 255.0)


@dataclass(frozen=True)
class Leaf:
    """A simple space inside the space of observations or actions (``owner``), found at ``path``."""

    path: Path
    space: gymnasium.Space
    owner: Owner = "observation"

    @property
    def name(self) -> str:
        """Name it by its path, as "camera" or "robot.0"."""
        return ".".join(map(str, self.path)) or self.owner

    @property
    def kind(self) -> Kind:
        if isinstance(self.space, Discrete | MultiDiscrete):
            return "categories"
        if isinstance(self.space, MultiBinary):
            return "flags"
        return "numbers" if self.image is None else "image"

    @property
    def size(self) -> int:
        """Count its columns."""
        return math.prod(self.space.shape or ())

    @property
    def choices(self) -> np.ndarray:
        """Count the values of each category, ``[size]``; of other leaves there are none."""
        # A Discrete is a MultiDiscrete of one dimension.
        count = getattr(self.space, "nvec", getattr(self.space, "n", 0))
        return np.reshape(count, -1) if self.kind == "categories" else np.zeros(0, np.int64)

    @property
    def starts(self) -> np.ndarray:
        """The first value of each category, ``[size]``."""
        return np.reshape(getattr(self.space, "start", 0), -1)

    def numbers(self, before: int) -> np.ndarray:
        """Number the first value of each category, ``[size]``, after ``before`` values of other leaves."""
        return before + np.concatenate(([0], self.choices[:-1].cumsum()))

    @property
    def image(self) -> Image | None:
        """Describe the picture that a Box holds; None where it is none, as its shape and bounds say."""
        space = self.space
        if self.owner == "action" or not isinstance(space, Box):
            return None
        if len(space.shape) not in (2, PIXEL_DIMENSIONS):
            return None
        # Pixels are bounded from below by 0, and from above by one number.
        if (space.low != 0).any() or (space.high != space.high.flat[0]).any():
            return None
        highest = float(space.high.flat[0])
        if highest not in FULL_PIXELS:
            return None
        # Two dimensions are one channel; of three the smaller end is that of the channels.
        if len(space.shape) < PIXEL_DIMENSIONS:
            return _image((1, *space.shape), highest, "first")
        first, _, last = space.shape
        return _image(space.shape, highest, "last" if last <= first else "first")

    def __str__(self) -> str:
        return f"{self.owner}{''.join(f'[{key!r}]' for key in self.path)}"

    @property
    def description(self) -> str:
        """Describe in a line where it is, as what it is read, and what its space says of values."""
        space = self.space
        text = f"{self}: {self.kind}" + f" {list(space.shape or ())}" * bool(space.shape)
        if isinstance(space, Box):
            text += f" of {space.dtype}, from {_listed(space.low)} to {_listed(space.high)}"
        if self.image is not None:
            text += f", channels {self.image.channels}"
        if self.kind == "categories":
            text += f", {_listed(self.choices)} choices from {_listed(self.starts)}"
        return text


def _listed(values: np.ndarray) -> str:
    """List numbers, once where all are equal."""
    numbers = [f"{value:g}" for value in values.reshape(-1).tolist()]
    return numbers[0] if len({*numbers}) == 1 else str(numbers).replace("'", "")


def _image(
    shape: tuple[int, ...], highest: float, channels: Literal["first", "last"]
) -> Image | None:
    count, *sides = shape if channels == "first" else (shape[-1], *shape[:-1])
    if min(sides) < LEAST_SIDE or count > MOST_CHANNELS:
        return None
    return Image(shape, channels, highest)


def leaves_of(space: gymnasium.Space, owner: Owner) -> list[Leaf]:
    """Walk down a space; SimicError where a leaf cannot be learned from."""
    leaves = list(_walk(space, owner, ()))
    if not leaves:
        raise SimicError(f"{owner} space {space}: must hold a space")
    refused = [leaf for leaf in leaves if not isinstance(leaf.space, LEAVES)]
    if not refused:
        return leaves
    # A text or a graph that is not needed can be left out, which Gymnasium does for whole keys.
    outer = {leaf.path[:1] for leaf in refused}
    keys = list(dict.fromkeys(leaf.path[0] for leaf in leaves if leaf.path[:1] not in outer))
    remedy = f"; to leave it out: gymnasium.wrappers.FilterObservation(env, {keys})" if keys else ""
    kind = type(refused[0].space).__name__
    place = f" at {refused[0]}" if refused[0].path else ""
    raise SimicError(
        f"{owner} space {kind}{place}: must be {ALLOWED}{remedy if owner == 'observation' else ''}"
    )


def _walk(space: gymnasium.Space, owner: Owner, path: Path) -> Iterator[Leaf]:
    """Yield what is no Dict and no Tuple."""
    if isinstance(space, Dict):
        for name, inner in space.spaces.items():
            yield from _walk(inner, owner, (*path, name))
    elif isinstance(space, Tuple):
        for place, inner in enumerate(space.spaces):
            yield from _walk(inner, owner, (*path, place))
    else:
        yield Leaf(path, space, owner)


@dataclass(frozen=True)
class Layout:
    """The leaves of an observation space, in the order of their columns."""

    space: gymnasium.Space

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves; numbers and flags in the order of the space, so that who describes choices by the last ones can
        put them there.
        """
        return tuple(
            sorted(leaves_of(self.space, "observation"), key=lambda leaf: ORDER[leaf.kind])
        )

    @property
    def is_box(self) -> bool:
        """Tell whether observations are arrays of numbers already."""
        return isinstance(self.space, Box)

    @cached_property
    def spec(self) -> ObservationSpec:
        """Describe the row for a policy."""
        images = [leaf for leaf in self.leaves if leaf.kind == "image"]
        featured = [leaf for leaf in self.leaves if leaf.kind in ("numbers", "flags")]
        categories = [leaf for leaf in self.leaves if leaf.kind == "categories"]
        raw = [leaf.kind == "flags" for leaf in featured for _ in range(leaf.size)]
        # Numbers that float32 cannot hold stay float64 until they are centred.
        is_wide = any(
            not np.can_cast(np.dtype(leaf.space.dtype), np.float32) for leaf in (*images, *featured)
        )
        # Bytes stay bytes: a rollout of pictures takes a quarter of the memory.
        are_bytes = all(leaf.space.dtype == np.uint8 for leaf in images)
        return ObservationSpec(
            len(raw),
            raw=tuple(raw) if any(raw) else None,
            categories=sum(leaf.size for leaf in categories),
            cardinality=sum(int(leaf.choices.sum()) for leaf in categories),
            dtype="float64" if is_wide else "float32",
            images=tuple(leaf.image for leaf in images if leaf.image is not None),
            pixel_dtype="uint8" if images and are_bytes else "float32",
        )

    def row(self, observation: Any) -> np.ndarray:
        """Put an observation into a row of the spec's type, categories last.

        Args:
            observation: As the environment gives it.

        Raises:
            SimicError: A part is missing, of another shape, or outside its space.
        """
        columns: list[np.ndarray] = []
        counted = 0
        for leaf in self.leaves:
            values = leaf_values(observation, leaf)
            if leaf.kind == "categories":
                values = _counted(values, leaf, counted)
                counted += int(leaf.choices.sum())
            columns.append(values.reshape(-1))
        return np.concatenate(columns).astype(self.spec.dtype)

    def columns(self) -> list[dict[str, Any]]:
        """Describe, for other languages, which columns of ``features`` or ``categories`` each leaf fills.

        Values stand in row-major order from the first of ``columns`` to before the last. Pixels and numbers go in as
        observed, a category with its ``add``.
        """
        described: list[dict[str, Any]] = []
        widths = {"features": 0, "categories": 0}
        counted = 0
        for leaf in self.leaves:
            # The next columns of one of the two inputs.
            tensor = "categories" if leaf.kind == "categories" else "features"
            begin = widths[tensor]
            widths[tensor] += leaf.size
            entry = {
                "path": list(leaf.path),
                "kind": leaf.kind,
                "shape": list(leaf.space.shape or ()),
                "input": tensor,
                "columns": [begin, widths[tensor]],
            }
            # What a reader must know to make such values.
            if leaf.image is not None:
                bounds = [0.0, leaf.image.highest]
                entry |= {"channels": leaf.image.channels, "bounds": bounds}
            if leaf.kind == "categories":
                add = leaf.numbers(counted) - leaf.starts
                entry |= {"choices": leaf.choices.tolist(), "add": add.tolist()}
                counted += int(leaf.choices.sum())
            described.append(entry)
        return described


class RowSpace(Box):
    """The space of a layout's rows, which carries the layout to whoever asks the vector environment."""

    def __init__(self, layout: Any, width: int, dtype: str) -> None:
        super().__init__(-np.inf, np.inf, (width,), dtype=np.dtype(dtype).type)
        self.layout = layout

    def __eq__(self, other: object) -> bool:
        """Tell whether rows mean the same: Gymnasium asks this of copies of an environment."""
        return isinstance(other, RowSpace) and self.layout == other.layout

    def __repr__(self) -> str:
        return repr(self.layout.space)


def layout_of(space: gymnasium.Space) -> Layout:
    """Find the layout of an observation space, or of the rows that stand for one."""
    return space.layout if isinstance(space, RowSpace) else Layout(space)


def leaf_values(whole: Any, leaf: Leaf) -> np.ndarray:
    """Take a leaf's values out of an observation or action; refuse what is not of its space."""
    for depth, key in enumerate(leaf.path):
        try:
            whole = whole[key]
        except (KeyError, IndexError, TypeError):
            outer = replace(leaf, path=leaf.path[:depth])
            raise SimicError(f"{leaf} is missing: {outer} is a {type(whole).__name__}") from None
    # Lists and numbers are as good as arrays.
    try:
        values = as_array(whole)
    except SimicError as error:
        raise SimicError(f"{leaf} is a {error}; its space is {leaf.space}") from None
    return declared(values, leaf.space, str(leaf))


def declared(values: np.ndarray, space: gymnasium.Space, name: str) -> np.ndarray:
    """Give values the declared type.

    Args:
        values: As observed.
        space: A leaf.
        name: Of what is observed, for messages.

    Raises:
        SimicError: They have another shape, or the type cannot hold them.
    """
    # The shape is the declared one: numpy would broadcast another without a word.
    if values.shape != space.shape or values.dtype.kind not in "biufc":
        kind = f"{values.dtype} of shape {list(values.shape)}"
        raise SimicError(f"{name} is {kind}: its space is {space}")
    dtype = np.dtype(space.dtype)
    if values.dtype == dtype:
        return values
    # Integers lose every fraction; floats lose whole units beyond the digits of their mantissa.
    least = 2.0 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else 0.0
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        lost = (cast != values) & (abs(values) >= least)
    if lost.any():
        value = values[lost].flat[0]
        if name.startswith("action"):
            raise SimicError(f"{name} is {value}: its space is {space}")
        raise SimicError(
            f"{name} is {value}, which its space's {dtype} cannot hold: declare the space with dtype=numpy.float64"
        )
    return cast


def _counted(values: np.ndarray, leaf: Leaf, before: int) -> np.ndarray:
    """Number the values of categories among all of a layout; refuse those that there are not."""
    places = values.reshape(-1) - leaf.starts
    if ((places < 0) | (places >= leaf.choices)).any():
        raise SimicError(f"{leaf} is {reprlib.repr(values.tolist())}: its space is {leaf.space}")
    return places + leaf.numbers(before)
