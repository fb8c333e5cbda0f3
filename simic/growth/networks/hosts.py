"""Hosts: the networks to be grown, as an ordered list of segments with a slot after each, and a head."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from simic import registry
from simic.errors import SimicError
from simic.growth.life.vocabulary import Stage
from simic.growth.networks import images, tabular, transformer  # noqa: F401 - they register the shipped families
from simic.growth.networks.blueprints import (
    built,
    count_flops,
    count_params,
    families_with_blueprints,
    probe,
)
from simic.growth.networks.family import Anatomy, Family, Shape, families, family_of
from simic.growth.networks.layers import check_norm
from simic.params import Host

PRESETS = {name: family_of(name).presets for name in registry.shipped(registry.FAMILY)}
_INPUTS = {1: "tokens (context,)", 3: "images (channels, height, width)"}
# Dimensions of a sample that shipped families take; a user's family takes any.
_DIMENSIONS = dict.fromkeys(PRESETS, (3,)) | {"transformer": (1,)}


@dataclass(frozen=True, kw_only=True)
class HostSpec(Anatomy):
    """How to build one host: fresh plain modules from ``segments`` and ``head``.

    ``params`` and ``flops_per_sample`` are exact counts of the bare host (``blueprints.count_flops``), tied parameters
    counted once.
    """

    family: str
    preset: str
    input_shape: Shape
    classes: int
    isolated: frozenset[Stage]
    gate: Callable[[Shape], nn.Module]
    params: int
    flops_per_sample: int
    # Seeds read the sample and are added to the features.
    reads_input: bool = False

    @property
    def slots(self) -> int:
        """Count the slots, K."""
        return len(self.segments)

    @property
    def seed_shapes(self) -> tuple[Shape, ...]:
        """Tell what a blueprint is built for at each slot: the features' shape, or (values of a sample, features)."""
        if not self.reads_input:
            return self.slot_shapes
        return tuple((math.prod(self.input_shape), *shape) for shape in self.slot_shapes)

    def modules(self) -> tuple[list[nn.Module], nn.Module]:
        """Build a fresh host as plain modules, segments and head, with their tied parameters shared."""
        # A tied parameter of the head is the first segment's.
        segments = [build() for build in self.segments]
        head = self.head()
        for name, source in self.tied.items():
            owner, _, leaf = name.rpartition(".")
            setattr(
                head.get_submodule(owner),
                leaf,
                segments[0].get_parameter(source),
            )
        return segments, head


def build_host(
    host: Host,
    input_shape: Shape,
    classes: int,
    counts: tuple[int, int] | None = None,
) -> HostSpec:
    """Describe the host that params ask for.

    Args:
        host: section ``train.host``.
        input_shape: of a sample, ``(C, H, W)`` or ``(L,)``.
        classes: number of logits.
        counts: its parameters and FLOPs, where somebody counted them already.

    Raises:
        SimicError: naming what does not fit.
    """
    # Messages name params before anything is built.
    family = family_of(host.family)
    _refuse_unfit(host, family, input_shape, classes)
    # Shapes and sizes of what the family builds.
    anatomy = family.build(host, input_shape, classes)
    if len(anatomy.slot_shapes) != len(anatomy.segments):
        parts = f"{len(anatomy.segments)} segments and {len(anatomy.slot_shapes)} slot shapes"
        raise SimicError(f"host family {host.family}: {parts}: must be as many")
    params, flops = counts or _count(
        family.build,
        host,  # pyright: ignore[reportArgumentType] - a frozen model can be hashed
        input_shape,
        classes,
    )
    # Seeds have norms, which need values to be over.
    for slot, shape in enumerate(anatomy.slot_shapes):
        check_norm(
            shape[-1:] if anatomy.features_last else shape,
            f"host {host.family}/{host.preset}, slot {slot}",
        )
    return HostSpec(
        **vars(anatomy),
        family=family.name,
        preset=host.preset,
        input_shape=input_shape,
        classes=classes,
        isolated=family.isolated,
        gate=family.gate,
        params=params,
        flops_per_sample=flops,
        reads_input=family.reads_input,
    )


def _refuse_unfit(host: Host, family: Family, input_shape: Shape, classes: int) -> None:
    """Raise SimicError where the family has no such host for such samples."""
    # A blueprint whose family nobody registered would never be grown.
    if strays := families_with_blueprints() - set(families()):
        raise SimicError(
            f"blueprints of family {sorted(strays)[0]!r}: no such host family; known: {', '.join(families())}"
        )
    # The family must take such samples, and have such a preset.
    allowed = _DIMENSIONS.get(host.family, tuple(_INPUTS))
    if len(input_shape) not in allowed or min(input_shape) < 1:
        expected = " or ".join(_INPUTS[dimensions] for dimensions in allowed)
        raise SimicError(
            f"input shape {input_shape}: family {host.family} takes {expected}, each at least 1"
        )
    if classes < 2:
        raise SimicError(f"classes = {classes}: must be at least 2")
    if host.kernel_size is not None and host.family in ("mlp", "tables", "transformer"):
        raise SimicError(
            f"train.host.kernel_size = {host.kernel_size}: must be null for family {host.family}"
        )
    if host.preset not in family.presets:
        raise SimicError(
            f"train.host.preset = {host.preset!r}: family {host.family} has {', '.join(family.presets)}"
        )


# A run builds dozens of equal hosts.
@lru_cache(maxsize=64)
def _count(
    build_anatomy: Callable[..., Anatomy],
    host: Host,
    inputs: Shape,
    classes: int,
) -> tuple[int, int]:
    """Count parameters and FLOPs; every module must make of its features what the next one takes."""
    # The shape between two modules is that of the slot there.
    anatomy = build_anatomy(host, inputs, classes)
    tokens = len(inputs) == 1
    shapes = (
        inputs,
        *anatomy.slot_shapes,
        (*inputs, classes) if tokens else (classes,),
    )
    params = flops = 0
    for k, build in enumerate((*anatomy.segments, anatomy.head)):
        module = built(build, shapes[k])
        dtype = torch.int64 if tokens and k == 0 else torch.float32
        part = "host head" if build is anatomy.head else f"host segment {k}"
        probe(module, part, shapes[k], shapes[k + 1], dtype)
        params += count_params(module)
        flops += count_flops(module, shapes[k], dtype)
        if build is anatomy.head:
            # Tied parameters are the first segment's: count them once.
            params -= sum(module.get_parameter(name).numel() for name in anatomy.tied)
    return params, flops
