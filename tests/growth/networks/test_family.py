"""Families of a user: what cannot work is refused when the population is composed, naming the part."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from simic import registry
from simic.errors import SimicError
from simic.growth.batch.population import Population
from simic.growth.networks import blueprints, family
from simic.growth.networks.blueprints import blueprint, blueprints_of
from simic.growth.networks.family import Anatomy, host_family
from simic.growth.networks.hosts import build_host
from simic.params import Host
from tests.standard import HostOptimizer


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(blueprints, "_REGISTRY", dict(blueprints._REGISTRY))
    monkeypatch.setattr(blueprints, "_SHARED", dict(blueprints._SHARED))
    monkeypatch.setattr(family, "_FAMILIES", dict(family._FAMILIES))
    monkeypatch.setattr(registry, "_KNOWN", {kind: list(names) for kind, names in registry._KNOWN.items()})


class Flat(nn.Linear):
    """A layer on the flattened image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1))


def tower(width: int, promised: int, seeds: str | None = "mlp") -> None:
    """A family of one segment that is ``width`` wide and says it is ``promised``."""

    @host_family("tower", presets=("small",), seeds=seeds)
    def build(host: Host, input_shape: tuple[int, ...], classes: int) -> Anatomy:
        return Anatomy((partial(Flat, 64, width),), partial(nn.Linear, width, classes), ((promised,),), host)


def populate(name: str = "tower", preset: str = "small") -> Population:
    host = build_host(Host(family=name, preset=preset), (1, 8, 8), 4)
    return Population(host, blueprints_of(name), torch.arange(2), 1, HostOptimizer())


def test_a_family_has_its_own_presets() -> None:
    tower(16, 16)
    assert len(populate()) == 2
    with pytest.raises(SimicError, match=r"train.host.preset = 'impaired': family tower has small"):
        populate(preset="impaired")


def test_a_slot_too_narrow_for_a_norm_is_refused() -> None:
    tower(4, 4)
    with pytest.raises(SimicError, match=r"host tower/small, slot 0 has shape \(4,\)"):
        populate()


def test_a_segment_that_makes_another_shape_than_promised_is_named() -> None:
    tower(16, 12)
    with pytest.raises(SimicError, match=r"host segment 0: makes \[16\] of features \[1, 8, 8\]: must be \[12\]"):
        populate()


class Narrow(nn.Module):
    """Gives one value per sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Idle(nn.Module):
    """Has nothing to learn."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class Picky(Narrow):
    """Fails on every input."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no thanks")


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (Narrow, r"blueprint new at slot 0: makes \[1\] of features \[16\]: must be \[16\]"),
        (Idle, "blueprint new at slot 0: has no parameters"),
        (Picky, r"blueprint new at slot 0: fails on features \[16\]: no thanks"),
    ],
)
def test_a_seed_that_cannot_be_grafted_is_named(seed: type[nn.Module], words: str) -> None:
    tower(16, 16)
    blueprint("new", family="mlp")(seed)
    with pytest.raises(SimicError, match=words):
        populate()


def test_a_family_that_shares_blueprints_takes_none_of_its_own() -> None:
    tower(16, 16)
    with pytest.raises(SimicError, match="family 'tower' grows the blueprints of 'mlp'"):
        blueprint("mine", family="tower")(Narrow)
