"""Quality gates: what a seed must have shown before it may enter a stage."""

import torch
from torch import Tensor

from simic.growth.life.vocabulary import Ramp, Slots, Stage
from simic.params import Lifecycle

# The gate that guards entry into a stage; what is not here is unguarded.
GATES: dict[Stage, int] = {
    Stage.GERMINATED: 0,
    Stage.TRAINING: 1,
    Stage.BLENDING: 2,
    Stage.HOLDING: 3,
    Stage.FOSSILIZED: 5,
}
NO_GATE = -1
TIE_PCT = 1e-3  # so far below a threshold counts as on it: accuracies are counts, which float32 rounds either way
ALPHA_TOLERANCE = 1e-6  # of G3


def gate_passes(slots: Slots, params: Lifecycle) -> dict[Stage, Tensor]:
    """Bool ``[E, K]`` per stage to be entered, on the measurements stored in ``slots``.

    Unmeasured (NaN) fails every comparison it is part of.
    """
    strict = params.gates == "strict"
    # A seed that skips TRAINING has no epoch whose gradients could be healthy.
    blending = (slots.dwell >= params.training_dwell) & (slots.gradient_healthy | (params.training_dwell == 0))
    holding = (slots.ramp == Ramp.HOLD) & (slots.alpha_target >= 1 - ALPHA_TOLERANCE)
    holding &= (slots.alpha - slots.alpha_target).abs() <= ALPHA_TOLERANCE
    fossilized = slots.contribution.isfinite() & slots.gradient_healthy
    if strict:
        blending &= slots.gradient_healthy
        blending &= slots.accuracy - slots.stage_accuracy >= params.min_improvement_pct - TIE_PCT
        blending &= slots.gradient_ratio >= params.min_gradient_ratio
        holding &= slots.dwell >= params.blending_dwell
        fossilized &= slots.contribution >= params.min_contribution_pct - TIE_PCT
    always = torch.ones_like(blending)
    return {
        Stage.GERMINATED: always,
        Stage.TRAINING: always,
        Stage.BLENDING: blending,
        Stage.HOLDING: holding,
        Stage.FOSSILIZED: fossilized,
    }
