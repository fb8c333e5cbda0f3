"""What a family of hosts is, and how one is registered.

A user adds a family by writing a function that returns plain modules::

    @host_family("tower", presets=("baseline",), seeds="mlp")
    def tower(host: Host, input_shape: Shape, classes: int) -> Anatomy:
        ...

``seeds`` names the family whose blueprints it grows, its own by default. With ``reads_input`` a seed reads the sample
itself, ``[B, …]``, and what it gives is added to the features at its slot.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from simic import registry
from simic.errors import SimicError
from simic.growth.life.vocabulary import Stage
from simic.growth.networks.blueprints import share_blueprints
from simic.growth.networks.grafting import Gate
from simic.params import Host

Shape = tuple[int, ...]
Builder = Callable[[], nn.Module]
# Isolation: the seed's input is cut from the host's graph. With lerp, an isolated seed at alpha 1 would leave the
# host's lower segments without any gradient, so HOLDING and FOSSILIZED seeds are open in every family.
ISOLATED = frozenset({Stage.TRAINING, Stage.BLENDING})


@dataclass(frozen=True)
class Anatomy:
    """A host as builders of plain modules, run one after another; a slot after each segment.

    ``slot_shapes[k]`` is the feature shape per sample after segment k: channels first, or with ``features_last`` as the
    modules see it, features in the last dimension. ``tied`` names parameters of the head that are parameters of the
    first segment. ``config`` is the host's params with what the preset decided filled in: it names the network whatever
    the presets become.
    """

    segments: tuple[Builder, ...]
    head: Builder
    slot_shapes: tuple[Shape, ...]
    config: Host
    features_last: bool = False
    tied: Mapping[str, str] = field(default_factory=dict)


Build = Callable[[Host, Shape, int], Anatomy]


@dataclass(frozen=True)
class Family:
    """How to build the hosts of a family, and how seeds join them."""

    name: str
    build: Build
    presets: tuple[str, ...]
    isolated: frozenset[Stage] = ISOLATED
    gate: Callable[[Shape], nn.Module] = Gate
    reads_input: bool = False


_FAMILIES: dict[str, Family] = {}


def host_family(
    name: str,
    presets: tuple[str, ...] = ("baseline",),
    seeds: str | None = None,
    isolated: frozenset[Stage] = ISOLATED,
    gate: Callable[[Shape], nn.Module] = Gate,
    reads_input: bool = False,
) -> Callable[[Build], Build]:
    """Register a function that builds the hosts of a family (decorator).

    Args:
        name: of the family, for ``train.host.family``.
        presets: names that ``train.host.preset`` may have.
        seeds: family whose blueprints it grows; None: its own.
        isolated: stages in which a seed's gradient does not reach the host.
        gate: builds the gate of the GATE operator for a feature shape.
        reads_input: seeds read the sample instead of the features at their slot.
    """

    # The registry knows names alone, so that params are checked before torch is imported.
    def register(build: Build) -> Build:
        if name in _FAMILIES:
            raise SimicError(f"host family {name!r} is registered already")
        _FAMILIES[name] = Family(name, build, presets, isolated, gate, reads_input)
        if seeds is not None:
            share_blueprints(name, seeds)
        registry.add(registry.FAMILY, name)
        for preset in presets:
            registry.add(registry.PRESET, preset)
        return build

    return register


def families() -> tuple[str, ...]:
    """List the names of all families, sorted: the order of imports does not show."""
    return tuple(sorted(_FAMILIES))


def family_of(name: str) -> Family:
    """Look up a family by name; SimicError naming those there are."""
    if name not in _FAMILIES:
        raise SimicError(f"train.host.family = {name!r}: must be one of {', '.join(families())}")
    return _FAMILIES[name]
