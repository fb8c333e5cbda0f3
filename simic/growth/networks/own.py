"""A network that a user trained, as a host: cut into segments, in evaluation mode, frozen.

Each part of an ``nn.Sequential``, or of a module's ``segments`` and then its ``head`` if it has one, is a segment with
a slot after it, as long as features keep the number of dimensions that they have after the first; what follows is the
head. Rows of numbers reach the network as ``[B, D]``.
"""

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from simic import registry
from simic.errors import SimicError
from simic.growth.networks.family import Anatomy, Shape, family_of
from simic.growth.networks.hosts import HostSpec, count, spec_of

GROWS = {1: "mlp", 2: "transformer", 3: "adapted_cnn"}  # whose blueprints, by the dimensions of a sample's features
BATCH_NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
SAMPLES = 2  # enough to see shapes and to compare answers


class FixedNorm(nn.Module):
    """What a batch norm does in evaluation mode, without buffers: x · weight + bias for each channel."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (parameter.view(-1, *[1] * (x.dim() - 2)) for parameter in (self.weight, self.bias))
        return x * weight + bias


def load_network(reference: str) -> nn.Module:
    """Return the network ``FILE.py:NAME``: a module, or a function without arguments that returns one."""
    file, _, name = reference.rpartition(":")
    network = getattr(registry.load_extension(Path(file)), name, None)
    if callable(network) and not isinstance(network, nn.Module):
        try:
            network = network()
        except Exception as error:  # whatever a user's function raises
            raise SimicError(f"--host {reference}: {type(error).__name__}: {_line(error)}") from error
    if not isinstance(network, nn.Module):
        raise SimicError(
            f"--host {reference}: {name} is {'missing' if network is None else type(network).__name__}: must be an "
            "nn.Module, or a function without arguments that returns one"
        )
    return network


def own_host(network: nn.Module, input_shape: Shape, classes: int, name: str) -> HostSpec:
    """Return a copy of the network as a frozen host of that name for samples of ``input_shape``. SimicError where it
    cannot be cut, does not fit the data or keeps state that hosts cannot share.
    """
    try:
        whole = copy.deepcopy(network).cpu().float().eval().requires_grad_()
    except Exception as error:  # of many kinds
        raise SimicError(f"{name}: cannot be copied: {_line(error)}") from error
    vector = len(input_shape) == 3 and input_shape[:2] == (1, 1)
    count = SAMPLES * math.prod(input_shape)
    x = torch.arange(count) % classes if len(input_shape) == 1 else torch.linspace(-1, 1, count)
    x, parts = x.view(SAMPLES, *input_shape), _parts(whole, name)
    with torch.no_grad():
        expected = _run(whole, x.flatten(1) if vector else x, name)
        parts = [_without_buffers(part, name) for part in parts]
        if vector:
            parts[0] = nn.Sequential(nn.Flatten(), parts[0])
        features = [x]
        for k, part in enumerate(parts):
            features.append(_run(part, features[-1], f"{name}, segment {k}"))
    answers = features[-1]
    if answers.shape[-1] != classes:
        raise SimicError(
            f"{name}: answers with {answers.shape[-1]} logits, the data have {classes} classes: must be as many"
        )
    if answers.shape != expected.shape or not torch.allclose(answers, expected, rtol=1e-3, atol=1e-4):
        raise SimicError(f"{name}: its segments one after another do not give what the network gives")
    shapes = [tuple(value.shape[1:]) for value in features]
    slots = next((k for k, shape in enumerate(shapes[1:]) if len(shape) != len(shapes[1])), len(shapes) - 1)
    slots = min(slots, len(parts) - 1)
    if slots == 0 or len(shapes[1]) not in GROWS:
        raise SimicError(f"{name}: must have at least two segments, with features of 1 to 3 dimensions between them")
    head = parts[-1] if slots == len(parts) - 1 else nn.Sequential(*parts[slots:])
    return _host((*parts[:slots], head), shapes[: slots + 1], classes, name)


def _host(modules: tuple[nn.Module, ...], shapes: list[Shape], classes: int, name: str) -> HostSpec:
    """Make the host; ``shapes`` are those that the modules take."""
    for module in modules:
        # Run row by row: a user's forward may do what cannot be batched over hosts.
        module.vmap = False  # pyright: ignore[reportArgumentType] - read by Template
    *segments, head = (partial(copy.deepcopy, module) for module in modules)
    inputs, *slot_shapes = shapes
    last = len(slot_shapes[0]) == 2
    anatomy = Anatomy(tuple(segments), head, tuple(slot_shapes), config=None, features_last=last)
    family, counts = family_of(GROWS[len(slot_shapes[0])]), count(anatomy, inputs, classes, f"{name},")
    return replace(spec_of(anatomy, family, name, inputs, classes, counts, name), frozen=True)


def _parts(network: nn.Module, name: str) -> list[nn.Module]:
    if isinstance(network, nn.Sequential):
        return list(network)
    segments, head = getattr(network, "segments", None), getattr(network, "head", None)
    if not isinstance(segments, Iterable):
        raise SimicError(
            f"{name}: {type(network).__name__} cannot be cut: must be an nn.Sequential, or have a list `segments` of "
            "modules that run one after another (and a `head` after them)"
        )
    parts = [*segments, *([head] if head is not None else [])]
    if strange := [part for part in parts if not isinstance(part, nn.Module)]:
        raise SimicError(f"{name}: a segment is {type(strange[0]).__name__}: all must be modules")
    return parts


def _without_buffers(part: nn.Module, name: str) -> nn.Module:
    """Replace batch norms by what they do in evaluation mode; SimicError for any other buffer."""
    if isinstance(part, BATCH_NORMS):
        return _fixed(part, name)
    for key, child in list(part.named_children()):
        part.add_module(key, _without_buffers(child, name))
    if kept := [key for key, _ in part.named_buffers(recurse=False)]:
        raise SimicError(
            f"{name}: {type(part).__name__} keeps the buffer {kept[0]!r}: a host's state is its parameters alone; "
            "make it a parameter, or compute it in forward"
        )
    return part


def _fixed(norm: BATCH_NORMS, name: str) -> FixedNorm:
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise SimicError(
            f"{name}: {type(norm).__name__} without running statistics normalises each minibatch by itself: its answer "
            "to a sample depends on the others; use one with track_running_stats=True, or GroupNorm"
        )
    scale = (variance + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight.detach())
    return FixedNorm(scale, (0.0 if norm.bias is None else norm.bias.detach()) - mean * scale)


def _run(module: nn.Module, x: Tensor, name: str) -> Tensor:
    try:
        y = module(x)
    except Exception as error:  # of many kinds
        raise SimicError(f"{name}: fails on samples {list(x.shape[1:])}: {_line(error)}") from error
    if not isinstance(y, Tensor) or y.dim() < 2 or len(y) != len(x):
        given = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise SimicError(f"{name}: makes {given} of {list(x.shape)}: must be a tensor [{len(x)}, …]")
    return y


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
