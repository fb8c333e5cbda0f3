"""Hosts: the networks to be grown, as an ordered list of segments with a slot after each, and a head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from simic.errors import SimicError
from simic.growth import cnn, mlp, transformer
from simic.growth.blueprints import count_flops, count_params
from simic.growth.family import Anatomy, Builder, Shape, family_of
from simic.growth.vocabulary import Stage
from simic.params import Host

# What ships; importing them is what registers the families.
PRESETS: dict[str, tuple[str, ...]] = {
    "cnn": tuple(cnn.PRESETS),
    "mlp": tuple(mlp.PRESETS),
    "transformer": tuple(transformer.PRESETS),
}
_INPUTS = {1: "tokens (context,)", 3: "images (channels, height, width)"}
_DIMENSIONS = {"cnn": (3,), "mlp": (3,), "transformer": (1,)}  # of a user's family: any


@dataclass(frozen=True)
class HostSpec:
    """How to build one host: fresh plain modules from ``segments`` and ``head`` (growth/family.py says what they are).

    ``params`` and ``flops_per_sample`` are exact counts of the bare host (``blueprints.count_flops``), tied parameters
    counted once.
    """

    family: str
    preset: str
    input_shape: Shape
    classes: int
    segments: tuple[Builder, ...]
    head: Builder
    slot_shapes: tuple[Shape, ...]
    features_last: bool
    tied: Mapping[str, str]
    isolated: frozenset[Stage]
    gate: Callable[[Shape], nn.Module]
    params: int
    flops_per_sample: int
    config: Host  # with what the preset decides filled in: it names the network whatever the presets become

    @property
    def slots(self) -> int:
        """K."""
        return len(self.segments)

    def modules(self) -> tuple[list[nn.Module], nn.Module]:
        """A fresh host as plain modules, segments and head, with their tied parameters shared."""
        segments, head = [build() for build in self.segments], self.head()
        for name, source in self.tied.items():
            owner, _, leaf = name.rpartition(".")
            setattr(head.get_submodule(owner), leaf, segments[0].get_parameter(source))
        return segments, head


def build_host(host: Host, input_shape: Shape, classes: int) -> HostSpec:
    """The host of ``params`` for inputs ``(C, H, W)`` or ``(L,)``; SimicError names what does not fit."""
    family = family_of(host.family)
    allowed = _DIMENSIONS.get(host.family, tuple(_INPUTS))
    if len(input_shape) not in allowed or min(input_shape) < 1:
        expected = " or ".join(_INPUTS[dimensions] for dimensions in allowed)
        raise SimicError(f"input shape {input_shape}: family {host.family} takes {expected}, each at least 1")
    if classes < 2:
        raise SimicError(f"classes = {classes}: must be at least 2")
    if host.kernel_size is not None and host.family in ("mlp", "transformer"):
        raise SimicError(f"train.host.kernel_size = {host.kernel_size}: must be null for family {host.family}")
    anatomy = family.build(host, input_shape, classes)
    params, flops = _count(anatomy, input_shape)
    return HostSpec(
        family=host.family,
        preset=host.preset,
        input_shape=input_shape,
        classes=classes,
        segments=anatomy.segments,
        head=anatomy.head,
        slot_shapes=anatomy.slot_shapes,
        features_last=anatomy.features_last,
        tied=anatomy.tied,
        isolated=family.isolated,
        gate=family.gate,
        params=params,
        flops_per_sample=flops,
        config=anatomy.config,
    )


def _count(anatomy: Anatomy, inputs: Shape) -> tuple[int, int]:
    params = flops = 0
    for build, shape in zip((*anatomy.segments, anatomy.head), (inputs, *anatomy.slot_shapes), strict=True):
        with torch.device("meta"):
            module = build()
        params += count_params(module)
        flops += count_flops(module, shape, torch.int64 if shape is inputs and len(inputs) == 1 else torch.float32)
        if build is anatomy.head:
            params -= sum(module.get_parameter(name).numel() for name in anatomy.tied)
    return params, flops
