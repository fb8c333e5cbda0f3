"""The words of growth as data: stages, operations, the values each action head chooses from, and the slot tensors.

Everything downstream (transitions, masks, observations, rewards, report) reads these tables; no list is written twice.
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Stage(IntEnum):
    """Life of a seed; DORMANT is an empty slot."""

    DORMANT = 0
    GERMINATED = 1
    TRAINING = 2
    BLENDING = 3
    HOLDING = 4
    FOSSILIZED = 5
    PRUNED = 6
    EMBARGOED = 7
    RESETTING = 8


class Op(IntEnum):
    """Operations of the controller, one a step on one slot."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5


class Blend(IntEnum):
    """How a seed's output joins the host's features (growth/networks/grafting.py)."""

    ADD = 0
    MULTIPLY = 1
    GATE = 2


class Curve(IntEnum):
    """Shape of an alpha ramp; the number after SIGMOID is its steepness."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_6 = 2
    SIGMOID_12 = 3
    SIGMOID_24 = 4


class Ramp(IntEnum):
    """State of the alpha controller of a slot."""

    HOLD = 0
    UP = 1
    DOWN = 2


# Values of the action heads. A style is a blend operator with the curve of the first ramp; the gate learns its own
# shape, so its ramp is linear.
STYLES: tuple[tuple[Blend, Curve], ...] = (
    (Blend.ADD, Curve.LINEAR),
    (Blend.MULTIPLY, Curve.LINEAR),
    (Blend.ADD, Curve.SIGMOID_12),
    (Blend.GATE, Curve.LINEAR),
)
STYLE_NAMES = ("linear_add", "linear_multiply", "sigmoid_add", "linear_gate")
# Epochs of the first ramp, and of later ones; 0: at once.
TEMPO_STEPS = (0, 3, 5, 8)
ALPHA_SPEED_STEPS = (0, 3, 5, 8)
# Amplitudes that a seed may be moved to.
ALPHA_TARGETS = (0.5, 0.7, 1.0)


class Action(NamedTuple):
    """One factored decision per host: indices ``[E]`` int64 into the tables above."""

    op: Tensor
    slot: Tensor
    blueprint: Tensor
    style: Tensor
    tempo: Tensor
    alpha_target: Tensor
    alpha_speed: Tensor
    alpha_curve: Tensor

    @classmethod
    def wait(cls, envs: int, device: torch.device | str = "cpu") -> Self:
        """Make a WAIT for every host."""
        return cls(*torch.zeros(len(cls._fields), envs, dtype=torch.int64, device=device))


@dataclass(frozen=True)
class Slots:
    """State of all slots ``[E, K]``: integers int64, measurements float32 with NaN for "not measured"."""

    stage: Tensor
    blueprint: Tensor  # index into the family's blueprints, -1 where empty
    operator: Tensor  # Blend
    alpha: Tensor
    alpha_start: Tensor
    alpha_target: Tensor
    ramp: Tensor  # Ramp
    ramp_curve: Tensor  # Curve
    ramp_steps: Tensor
    ramp_done: Tensor
    tempo_steps: Tensor  # length of the first ramp, chosen at germination
    first_curve: Tensor
    first_target: Tensor
    prune_scheduled: Tensor  # bool: the running down-ramp ends in PRUNED
    age: Tensor  # epochs since germination
    dwell: Tensor  # epochs in this stage
    germinations: Tensor  # how often this slot germinated in this episode
    germination_accuracy: Tensor  # points, live accuracy when GERMINATE executed
    stage_accuracy: Tensor  # points, at entry of this stage
    accuracy: Tensor  # points, the live network's after the last epoch of this seed
    contribution: Tensor  # points: live accuracy minus accuracy without this seed
    contribution_se: Tensor  # points: its paired standard error
    contribution_velocity: Tensor  # points per epoch, smoothed
    steps_since_measured: Tensor
    gradient_ratio: Tensor  # per-parameter gradient intensity, seed over host, smoothed
    gradient_healthy: Tensor  # bool: measured in the last epoch, finite, not exploding

    @classmethod
    def empty(cls, envs: int, slots: int, device: torch.device | str = "cpu") -> Self:
        """Make slots that are all DORMANT, with nothing measured.

        Args:
            envs: How many hosts, E.
            slots: Of each, K.
            device: Where they are.
        """
        # Integers unless named below.
        zeros = torch.zeros(envs, slots, dtype=torch.int64, device=device)
        values = {field.name: zeros.clone() for field in fields(cls)}
        values["blueprint"] -= 1
        for name in ("prune_scheduled", "gradient_healthy"):
            values[name] = zeros.bool()
        for name in ("alpha", "alpha_start", "alpha_target", "first_target"):
            values[name] = zeros.float()
        for name in MEASUREMENTS:
            values[name] = zeros.float() + torch.nan
        return cls(**values)

    @property
    def shape(self) -> tuple[int, int]:
        """Envs and slots."""
        return self.stage.shape[0], self.stage.shape[1]


# NaN until they are measured: 0 would be a finding.
MEASUREMENTS = (
    "germination_accuracy",
    "stage_accuracy",
    "accuracy",
    "contribution",
    "contribution_se",
    "contribution_velocity",
    "gradient_ratio",
)
