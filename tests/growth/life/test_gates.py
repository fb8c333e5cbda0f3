"""What a gate asks for must have been measured: a missing number opens none."""

from dataclasses import replace

import pytest
import torch

from simic.growth.life.gates import gate_passes
from simic.growth.life.vocabulary import Ramp, Slots, Stage
from tests.standard import Lifecycle

GATES = pytest.mark.parametrize("mode", ["permissive", "strict"])


def slots(stage: Stage, **columns: float | bool) -> Slots:
    """One seed that passes the gate out of its stage in either mode, with some columns changed."""
    sound = {
        "stage": int(stage),
        "blueprint": 0,
        "dwell": 20,
        "alpha": 1.0,
        "alpha_target": 1.0,
        "ramp": int(Ramp.HOLD),
        "accuracy": 60.0,
        "stage_accuracy": 50.0,
        "gradient_ratio": 1.0,
        "gradient_healthy": True,
        "contribution": 5.0,
        "contribution_se": 0.1,
    }
    empty = Slots.empty(1, 1)
    values = {name: torch.full_like(getattr(empty, name), value) for name, value in (sound | columns).items()}
    return replace(empty, **values)


def passes(seed: Slots, mode: str) -> bool:
    """The gate out of the seed's stage."""
    return bool(gate_passes(seed, Lifecycle(gates=mode))[Stage(int(seed.stage) + 1)])


@GATES
@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_a_sound_seed_passes(stage: Stage, mode: str) -> None:
    assert passes(slots(stage), mode)


@GATES
def test_no_seed_is_fossilized_without_a_measured_contribution(mode: str) -> None:
    assert not passes(slots(Stage.HOLDING, contribution=torch.nan), mode)
    assert not passes(slots(Stage.HOLDING, gradient_healthy=False), mode)
    # Zero is a measurement: enough to ask, not enough to be strict.
    assert passes(slots(Stage.HOLDING, contribution=0.0), mode) == (mode == "permissive")


@GATES
def test_no_seed_blends_without_healthy_gradients(mode: str) -> None:
    """Healthy means measured in the last epoch, finite, and not exploding."""
    for lack in ({"gradient_healthy": False}, {"dwell": 0}):
        assert not passes(slots(Stage.TRAINING, **lack), mode), lack


def test_strict_gates_ask_for_progress_and_a_share_of_the_gradient() -> None:
    for lack in ({"accuracy": 50.4}, {"accuracy": torch.nan}, {"gradient_ratio": 0.05}, {"gradient_ratio": torch.nan}):
        assert not passes(slots(Stage.TRAINING, **lack), "strict"), lack
    assert not passes(slots(Stage.HOLDING, contribution=0.9), "strict")


def test_a_threshold_that_rounding_alone_misses_is_met() -> None:
    rounded = {"contribution": 1.0 - 1e-5, "accuracy": 50.5 - 1e-5}
    assert passes(slots(Stage.HOLDING, contribution=rounded["contribution"]), "strict")
    assert passes(slots(Stage.TRAINING, accuracy=rounded["accuracy"]), "strict")


@GATES
def test_a_ramp_must_have_arrived_at_one(mode: str) -> None:
    for lack in ({"alpha": 0.9}, {"ramp": int(Ramp.UP)}, {"alpha": 0.5, "alpha_target": 0.5}):
        assert not passes(slots(Stage.BLENDING, **lack), mode), lack
