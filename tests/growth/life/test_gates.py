"""What a gate asks for must have been measured: a missing number opens none."""

from dataclasses import replace

import pytest
import torch

from simic.growth.life.gates import gate_passes
from simic.growth.life.vocabulary import Ramp, Slots, Stage
from simic.params import Lifecycle

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


def passes(seed: Slots, to: Stage, mode: str) -> bool:
    return bool(gate_passes(seed, Lifecycle(gates=mode))[to])


@GATES
@pytest.mark.parametrize(
    ("stage", "to"),
    [(Stage.TRAINING, Stage.BLENDING), (Stage.BLENDING, Stage.HOLDING), (Stage.HOLDING, Stage.FOSSILIZED)],
)
def test_a_sound_seed_passes(stage: Stage, to: Stage, mode: str) -> None:
    assert passes(slots(stage), to, mode)


@GATES
def test_no_seed_is_fossilized_without_a_measured_contribution(mode: str) -> None:
    assert not passes(slots(Stage.HOLDING, contribution=torch.nan), Stage.FOSSILIZED, mode)
    assert not passes(slots(Stage.HOLDING, gradient_healthy=False), Stage.FOSSILIZED, mode)
    # Zero is a measurement: enough to ask, not enough to be strict.
    assert passes(slots(Stage.HOLDING, contribution=0.0), Stage.FOSSILIZED, mode) == (mode == "permissive")


@GATES
def test_no_seed_blends_without_healthy_gradients(mode: str) -> None:
    """Healthy means measured in the last epoch, finite, and not exploding."""
    assert not passes(slots(Stage.TRAINING, gradient_healthy=False), Stage.BLENDING, mode)
    assert not passes(slots(Stage.TRAINING, dwell=0), Stage.BLENDING, mode)


def test_strict_gates_ask_for_progress_and_a_share_of_the_gradient() -> None:
    assert not passes(slots(Stage.TRAINING, accuracy=50.4), Stage.BLENDING, "strict")
    assert not passes(slots(Stage.TRAINING, accuracy=torch.nan), Stage.BLENDING, "strict")
    assert not passes(slots(Stage.TRAINING, gradient_ratio=0.05), Stage.BLENDING, "strict")
    assert not passes(slots(Stage.TRAINING, gradient_ratio=torch.nan), Stage.BLENDING, "strict")
    assert not passes(slots(Stage.HOLDING, contribution=0.9), Stage.FOSSILIZED, "strict")


@GATES
def test_a_ramp_must_have_arrived_at_one(mode: str) -> None:
    assert not passes(slots(Stage.BLENDING, alpha=0.9), Stage.HOLDING, mode)
    assert not passes(slots(Stage.BLENDING, ramp=int(Ramp.UP)), Stage.HOLDING, mode)
    assert not passes(slots(Stage.BLENDING, alpha=0.5, alpha_target=0.5), Stage.HOLDING, mode)
