"""The modules a network is made of, a second time: names, shapes and first values of parameters, and plain functions.

Names are those of an exported network.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.audit.reference.world import streams

Values = Mapping[str, Tensor]
EPS = 1e-5  # of the norms


@dataclass(frozen=True)
class Entry:
    """A parameter: drawn uniformly from ±1/√inputs, or ``constant``; what is ``fitted`` comes from data and is not
    trained.
    """

    name: str
    shape: tuple[int, ...]
    inputs: int = 0
    constant: float | None = None
    fitted: bool = False


@dataclass(frozen=True)
class Part:
    """A module: parameters in order, what it does to ``[B, …]``, FLOPs of one sample. ``closing`` are the parameters
    that start at zero under the operator MULTIPLY, so that it begins as the identity. ``fit`` gives the fitted ones
    from rows ``[n, D]``. With ``reads_sample`` it is run on the samples, and what it makes is added to the features.
    """

    entries: tuple[Entry, ...]
    run: Callable[[Values, Tensor], Tensor]
    flops: int
    closing: tuple[str, ...] = ()
    fit: Callable[[Tensor], dict[str, Tensor]] | None = None
    reads_sample: bool = False

    @property
    def params(self) -> int:
        """How many train."""
        return sum(math.prod(entry.shape) for entry in self.entries if not entry.fitted)

    @property
    def width(self) -> int:
        """How many there are, fitted ones included."""
        return sum(math.prod(entry.shape) for entry in self.entries)

    @property
    def fitted(self) -> frozenset[str]:
        """Names of those that never train."""
        return frozenset(entry.name for entry in self.entries if entry.fitted)

    def draw(self, stream: int) -> dict[str, Tensor]:
        """First values from a stream: one number for each place, whether it is drawn or constant."""
        numbers = torch.from_numpy(streams.uniforms(stream, self.width))
        found, at = {}, 0
        for entry in self.entries:
            size = math.prod(entry.shape)
            if entry.constant is None:
                value = (2.0 * numbers[at : at + size] - 1.0) / math.sqrt(entry.inputs)
            else:
                value = torch.full((size,), entry.constant, dtype=torch.float64)
            found[entry.name] = value.reshape(entry.shape)
            at += size
        return found

    def unflatten(self, row: Tensor) -> dict[str, Tensor]:
        """Parameters by name of all of them in a row."""
        sizes = [math.prod(entry.shape) for entry in self.entries]
        pieces = row.split(sizes)
        return {entry.name: piece.reshape(entry.shape) for entry, piece in zip(self.entries, pieces, strict=True)}


def conv(name: str, inputs: int, outputs: int, kernel: int, constant: float | None = None) -> Entry:
    """The weight of a convolution without bias."""
    return Entry(f"{name}.weight", (outputs, inputs, kernel, kernel), inputs * kernel**2, constant)


def affine(name: str, width: int) -> tuple[Entry, Entry]:
    """Scale and shift of a norm."""
    return Entry(f"{name}.weight", (width,), constant=1.0), Entry(f"{name}.bias", (width,), constant=0.0)


def dense(name: str, inputs: int, outputs: int, zero: bool = False, bias: bool = True) -> tuple[Entry, ...]:
    """Weight and bias of a linear layer; ``zero``: both start at 0."""
    constant = 0.0 if zero else None
    lead = f"{name}." if name else ""
    weight = Entry(f"{lead}weight", (outputs, inputs), inputs, constant)
    return (weight, Entry(f"{lead}bias", (outputs,), inputs, constant)) if bias else (weight,)


def groups(channels: int) -> int:
    """Of a group norm: the largest of 32 … 2 that divides the channels and leaves at least 16 in each, else 1."""
    fitting = [g for g in (32, 16, 8, 4, 2) if channels % g == 0 and channels // g >= 16]
    return max(fitting, default=1)


def group_normed(v: Values, name: str, x: Tensor) -> Tensor:
    """Group norm of maps ``[B, C, H, W]``."""
    return F.group_norm(x, groups(x.shape[1]), v[f"{name}.weight"], v[f"{name}.bias"], EPS)


def convolved(v: Values, name: str, x: Tensor, per_channel: bool = False) -> Tensor:
    """A convolution that keeps the size of its maps."""
    weight = v[f"{name}.weight"]
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=x.shape[1] if per_channel else 1)


def linear(v: Values, name: str, x: Tensor) -> Tensor:
    """x Wᵀ + b."""
    return F.linear(x, v[f"{name}.weight"], v.get(f"{name}.bias"))


def rectified(x: Tensor) -> Tensor:
    """max(x, 0) that passes the gradient at 0, as the branches of seeds that begin at 0 need."""
    return x.clamp(min=0)
