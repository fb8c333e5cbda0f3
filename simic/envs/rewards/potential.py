"""What a state is worth: the potential of its stages, and the credit of seeds that are not fossilized yet."""

import torch
from torch import Tensor

from simic.envs.rewards.transition import Setting, Transition
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Slots, Stage
from simic.params import Reward
from simic.transfer import constant

# Stage potentials by Stage value. A seed gains RAMP per epoch of dwell up to RAMP_MAX. FOSSILIZED has no
# ramp and equals the largest HOLDING, so that fossilizing late never gives shaping back.
RAMP, RAMP_MAX = 0.3, 2.0
STAGE_POTENTIAL = (0.0, 1.0, 2.0, 3.5, 5.5, 5.5 + RAMP_MAX, 0.0, 0.0, 0.0)

UNFINISHED_STAGES = LIVE_STAGES - {Stage.FOSSILIZED}


def potential(slots: Slots) -> Tensor:
    """Φ(s) = Σ over all slots of Φ(stage) + min(0.3 · dwell, 2), ``[E]`` float64."""
    table = constant(STAGE_POTENTIAL, torch.float64, slots.stage.device)
    ramp = torch.where(
        in_stages(slots.stage, UNFINISHED_STAGES), (RAMP * slots.dwell.double()).clamp(max=RAMP_MAX), 0.0
    )
    return (table[slots.stage] + ramp).sum(dim=1)


def progress(slots: Slots) -> Tensor:
    """Live accuracy gained since germination ``[E, K]`` float64, points; NaN where not measured."""
    return slots.accuracy.double() - slots.germination_accuracy.double()


def significant(value: Tensor, error: Tensor, threshold: float) -> Tensor:
    """``value`` in float64; 0 where unmeasured or below max(threshold, 2 standard errors)."""
    value = value.double()
    noise = (2.0 * error.double()).clamp(min=threshold)
    # NaN in either makes the comparison False, so what is unmeasured earns and costs nothing.
    return torch.where(value.abs() >= noise, value, 0.0)


def significant_contribution(slots: Slots, threshold: float) -> Tensor:
    """Contribution ``[E, K]``, points; 0 where unmeasured or below max(threshold, 2 standard errors)."""
    return significant(slots.contribution, slots.contribution_se, threshold)


def harmonic(contribution: Tensor, gain: Tensor) -> Tensor:
    """2pc/(p+c), points; only meant where both are above 0."""
    return 2.0 * gain * contribution / (gain + contribution)


def attributed(contribution: Tensor, gain: Tensor) -> Tensor:
    """How much of the gain p is the seed's, points.

    c for c < p, 2pc/(p+c) for c ≥ p, 0 for p ≤ 0 (the gain is not the seed's), and c itself when it harms.
    """
    c, p = contribution, gain
    helpful = torch.where(p > 0, torch.where(c >= p, harmonic(c, p), c), 0.0)
    return torch.where(c > 0, helpful, c)


def unfinished(slots: Slots) -> Tensor:
    """Bool ``[E, K]``: live seeds that are not fossilized."""
    return in_stages(slots.stage, UNFINISHED_STAGES)


def credit(slots: Slots, weights: Reward) -> Tensor:
    """Unrealised credit of each live, unfossilized seed ``[E, K]`` float64."""
    c = significant_contribution(slots, weights.contribution_threshold_pct)
    return torch.where(unfinished(slots), weights.shaped.contribution_weight * attributed(c, progress(slots)), 0.0)


def helps(slots: Slots, threshold: float) -> Tensor:
    """Bool ``[E, K]``: unfossilized seeds with a contribution beyond noise and progress since germination."""
    return unfinished(slots) & (significant_contribution(slots, threshold) > 0) & (progress(slots) > 0)


def discounted_change(before: Tensor, after: Tensor, t: Transition, gamma: float) -> Tensor:
    """γ Σ after − Σ before ``[E]`` of credit per slot ``[E, K]``: fossilizing keeps what a seed has, what else is gone
    or unfossilized at a true terminal is taken back.
    """
    kept = (t.after.stage == Stage.FOSSILIZED) & (t.before.stage != Stage.FOSSILIZED)
    left = torch.where(t.terminal, 0.0, after.sum(dim=1))
    return gamma * left - torch.where(kept, 0.0, before).sum(dim=1)


def of_target(values: Tensor, t: Transition) -> Tensor:
    """The column of the op's target slot, ``[E, K] → [E]``."""
    return values.gather(1, t.slot[:, None])[:, 0]


def contribution_before(t: Transition, setting: Setting) -> Tensor:
    """Significant contribution of the op's target as measured before the op, ``[E]``."""
    return of_target(significant_contribution(t.before, setting.weights.contribution_threshold_pct), t)
