"""Hosts, shipped and of a user: what cannot work is refused when they are built, naming the part."""

from functools import partial
from itertools import pairwise

import pytest
from torch import Tensor, nn

from simic import registry
from simic.errors import SimicError
from simic.growth.batch.population import Population
from simic.growth.networks import blueprints, family
from simic.growth.networks.blueprints import blueprint
from simic.growth.networks.family import Anatomy, host_family
from simic.growth.networks.hosts import build_host
from simic.growth.networks.layers import norm_groups
from tests.standard import Host

from ..worlds import population_of


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
    return population_of(host, 2)


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


# --- hosts that are shipped ---


def test_the_group_rule() -> None:
    # the largest of 32, 16, 8, 4, 2 dividing C with C/g ≥ 16, else 1
    table = {4: 1, 16: 1, 24: 1, 32: 2, 48: 2, 64: 4, 96: 4, 128: 8, 256: 16, 512: 32, 1024: 32}
    assert {channels: norm_groups(channels) for channels in table} == table
    for (low, small), (high, large) in pairwise(sorted(table.items())):
        assert low < high
        assert small <= large


def test_a_norm_over_too_few_values_is_refused_with_slot_and_shape() -> None:
    # widths 4, 1 on 1×8×8: the second block norms 1 × 4×4 = 16 values, but its slot has 1 × 2×2 = 4
    with pytest.raises(SimicError, match=r"slot 1 has shape \(1, 2, 2\).* over 4 values"):
        build_host(Host(widths=(4, 1)), (1, 8, 8), 10)
    with pytest.raises(SimicError, match=r"slot 0 has shape \(7,\)"):
        build_host(Host(family="mlp", preset="baseline", widths=(7,)), (1, 8, 8), 10)
    build_host(Host(family="mlp", preset="baseline", widths=(8,)), (1, 8, 8), 10)


def test_bad_inputs_are_refused() -> None:
    with pytest.raises(SimicError, match="input shape"):
        build_host(Host(), (64,), 10)
    with pytest.raises(SimicError, match="classes = 1"):
        build_host(Host(), (1, 8, 8), 1)
    with pytest.raises(SimicError, match="compares columns: there must be at least two"):
        build_host(Host(family="tables", preset="baseline"), (1, 1, 1), 2)
    with pytest.raises(SimicError, match="kernel_size = 3"):
        build_host(Host(family="mlp", kernel_size=3), (1, 8, 8), 10)
