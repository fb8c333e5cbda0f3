"""Hosts, shipped and of a user: what cannot work is refused when they are built, naming the part."""

from functools import partial

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
    monkeypatch.setattr(
        registry, "_KNOWN", {kind: list(names) for kind, names in registry._KNOWN.items()}
    )


class Flat(nn.Linear):
    """A layer on the flattened image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1))


def tower(width: int, promised: int) -> None:
    """A family of one segment that is ``width`` wide and says it is ``promised``."""

    @host_family("tower", presets=("small",), seeds="mlp")
    def build(host: Host, input_shape: tuple[int, ...], classes: int) -> Anatomy:
        return Anatomy(
            (partial(Flat, 64, width),), partial(nn.Linear, width, classes), ((promised,),), host
        )


def populate(preset: str = "small") -> Population:
    return population_of(build_host(Host(family="tower", preset=preset), (1, 8, 8), 4), 2)


@pytest.mark.parametrize(
    ("width", "promised", "preset", "words"),
    [
        (16, 16, "impaired", r"train.host.preset = 'impaired': family tower has small"),
        (4, 4, "small", r"host tower/small, slot 0 has shape \(4,\)"),  # too narrow for a norm
        (16, 12, "small", r"host segment 0: makes \[16\] of features \[1, 8, 8\]: must be \[12\]"),
    ],
)
def test_a_host_that_cannot_work_is_named(
    width: int, promised: int, preset: str, words: str
) -> None:
    tower(width, promised)
    with pytest.raises(SimicError, match=words):
        populate(preset)


class Narrow(nn.Linear):
    """Gives one value per sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape[-1], 1)


class Picky(Narrow):
    """Fails on every input."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no thanks")


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (Narrow, r"blueprint new at slot 0: makes \[1\] of features \[16\]: must be \[16\]"),
        (lambda shape: nn.Identity(), "blueprint new at slot 0: has no parameters"),
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
    assert len(populate()) == 2
    with pytest.raises(SimicError, match="family 'tower' grows the blueprints of 'mlp'"):
        blueprint("mine", family="tower")(Narrow)


# --- hosts that are shipped ---


def test_the_group_rule() -> None:
    # the largest of 32, 16, 8, 4, 2 dividing C with C/g ≥ 16, else 1
    table = {4: 1, 16: 1, 24: 1, 32: 2, 48: 2, 64: 4, 96: 4, 128: 8, 256: 16, 512: 32, 1024: 32}
    assert {channels: norm_groups(channels) for channels in table} == table


def test_bad_inputs_are_refused() -> None:
    for host, shape, classes, words in (
        (Host(), (64,), 10, "input shape"),
        (Host(), (1, 8, 8), 1, "classes = 1"),
        (
            Host(family="tables", preset="baseline"),
            (1, 1, 1),
            2,
            "compares columns: there must be at least two",
        ),
        (Host(family="mlp", kernel_size=3), (1, 8, 8), 10, "kernel_size = 3"),
        # Widths 4, 1 on 1×8×8: the second block norms 1 × 4×4 = 16 values, but its slot has 1 × 2×2 = 4.
        (Host(widths=(4, 1)), (1, 8, 8), 10, r"slot 1 has shape \(1, 2, 2\).* over 4 values"),
        (
            Host(family="mlp", preset="baseline", widths=(7,)),
            (1, 8, 8),
            10,
            r"slot 0 has shape \(7,\)",
        ),
    ):
        with pytest.raises(SimicError, match=words):
            build_host(host, shape, classes)
    build_host(Host(family="mlp", preset="baseline", widths=(8,)), (1, 8, 8), 10)
