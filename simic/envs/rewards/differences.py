"""Terms that are discounted changes of what a state is worth (Ng, Harada, Russell 1999): no closed loop earns."""

import torch
from torch import Tensor

from simic.envs.rewards.potential import (
    attributed,
    credit,
    discounted_change,
    helps,
    potential,
    progress,
    significant_contribution,
    unfinished,
)
from simic.envs.rewards.registration import term
from simic.envs.rewards.transition import Setting, Transition
from simic.growth.life.vocabulary import Slots

# A contribution far above the seed's own progress; ours.
RATIO_MIN_CONTRIBUTION = 1.0  # points: below it no ratio is formed
RATIO_SAFE_PROGRESS = 0.1  # points: at or below it the ratio is not formed but the contribution itself is suspect
RATIO_LIMIT = 5.0
RATIO_PENALTY_MAX = 0.3
RATIO_SLOPE = 0.1  # per RATIO_LIMIT above the limit
RATIO_FULL_CONTRIBUTION = 10.0  # points without progress at which the penalty is full

SYNERGY_STEEPNESS = 0.5  # per point of interaction


@term("shaping")
def shaping(t: Transition, setting: Setting) -> Tensor:
    """F = w(γΦ(s') - Φ(s)) with Φ(true terminal) = 0."""
    after = torch.where(t.terminal, 0.0, potential(t.after))
    return setting.weights.pbrs_weight * (setting.gamma * after - potential(t.before))


@term("attribution")
def attribution(t: Transition, setting: Setting) -> Tensor:
    """Discounted change of credit; fossilizing keeps what the seed has, pruning and the terminal forfeit it."""
    weights = setting.weights
    return discounted_change(credit(t.before, weights), credit(t.after, weights), t, setting.gamma)


@term("synergy", weight="synergy_weight")
def synergy(t: Transition, setting: Setting) -> Tensor:
    """Discounted change of w tanh(0.5 · interaction) over unfossilized seeds that help and have progress."""
    before = _synergy(t.before, t.interaction_before, setting)
    after = _synergy(t.after, t.interaction_after, setting)
    return discounted_change(before, after, t, setting.gamma)


def _synergy(slots: Slots, interaction: Tensor, setting: Setting) -> Tensor:
    worth = setting.weights.shaped.synergy_weight * (SYNERGY_STEEPNESS * interaction.double().clamp(min=0.0)).tanh()
    return torch.where(helps(slots, setting.weights.contribution_threshold_pct), worth, 0.0)


@term("escrow")
def escrow(t: Transition, setting: Setting) -> Tensor:
    """Discounted change of credit in escrow, which follows a seed's worth on stable accuracy; else as attribution."""
    return discounted_change(t.ledgers.escrow, escrow_after(t, setting), t, setting.gamma)


def escrow_after(t: Transition, setting: Setting) -> Tensor:
    """Credit in escrow in s' ``[E, K]``: max(0, w · attributed + ratio penalty), rising by at most the clip per step.

    It falls at once (with a clipped fall, fossilizing right after a loss would keep what is lost), and to 0 for a seed
    that harms, is gone or is fossilized.
    """
    weights = setting.weights
    c = significant_contribution(t.after, weights.contribution_threshold_pct)
    p = t.stable_accuracy.double()[:, None] - t.after.germination_accuracy.double()
    target = (weights.shaped.contribution_weight * attributed(c, p) + suspicion(c, p)).clamp(min=0.0)
    advanced = torch.minimum(target, t.ledgers.escrow.masked_fill(t.renewed, 0.0) + weights.escrow.clip)
    return torch.where(unfinished(t.after) & ~t.terminal[:, None], advanced, 0.0)


def suspicion(contribution: Tensor, gain: Tensor) -> Tensor:
    """Penalty in [-0.3, 0] for a contribution c out of proportion to progress p, ``[E, K]``.

    p > 0.1: -min(0.3, 0.1 (c/p - 5) / 5) for c/p > 5; else -0.3 min(1, c/10). Nothing for c ≤ 1 or p not measured.
    """
    c, p = contribution, gain
    excess = (c / p.clamp(min=RATIO_SAFE_PROGRESS) - RATIO_LIMIT).clamp(min=0.0) / RATIO_LIMIT
    out_of_proportion = -(RATIO_SLOPE * excess).clamp(max=RATIO_PENALTY_MAX)
    without_progress = -RATIO_PENALTY_MAX * (c / RATIO_FULL_CONTRIBUTION).clamp(min=0.0, max=1.0)
    penalty = torch.where(p > RATIO_SAFE_PROGRESS, out_of_proportion, without_progress)
    return torch.where((c > RATIO_MIN_CONTRIBUTION) & p.isfinite(), penalty, 0.0)


@term("ratio_penalty", weight="ratio_penalty_weight")
def ratio_penalty(t: Transition, setting: Setting) -> Tensor:
    """Each step w · Σ of -0.3 at most, never above 0, for seeds whose contribution is out of proportion to progress."""
    c = significant_contribution(t.after, setting.weights.contribution_threshold_pct)
    penalty = torch.where(unfinished(t.after), suspicion(c, progress(t.after)), 0.0)
    return setting.weights.shaped.ratio_penalty_weight * penalty.sum(dim=1)


@term("toxic")
def toxic(t: Transition, setting: Setting) -> Tensor:
    """Each step w · c of every unfossilized seed that provably harms."""
    c = significant_contribution(t.after, setting.weights.contribution_threshold_pct).clamp(max=0.0)
    return setting.weights.shaped.contribution_weight * torch.where(unfinished(t.after), c, 0.0).sum(dim=1)
