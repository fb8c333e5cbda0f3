"""What a gate asks for must have been measured: a missing number opens none."""

from dataclasses import replace

import pytest
import torch

from simic.growth.life.lifecycle import gate_passes
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
def test_no_seed_is_fossilized_without_a_measured_contribution(mode: str) -> None:
    assert not passes(slots(Stage.HOLDING, contribution=torch.nan), mode)
    assert not passes(slots(Stage.HOLDING, gradient_healthy=False), mode)
    # Zero is a measurement: enough to ask, not enough to be strict.
    assert passes(slots(Stage.HOLDING, contribution=0.0), mode) == (mode == "permissive")


def test_a_threshold_that_rounding_alone_misses_is_met() -> None:
    rounded = {"contribution": 1.0 - 1e-5, "accuracy": 50.5 - 1e-5}
    assert passes(slots(Stage.HOLDING, contribution=rounded["contribution"]), "strict")
    assert passes(slots(Stage.TRAINING, accuracy=rounded["accuracy"]), "strict")
