"""Modes ``shaped`` and ``escrow``: credit for what each seed contributes, rent for its parameters.

Credit is a discounted change of what a state is worth (Ng, Harada, Russell 1999), so that no closed loop earns. Why the
terms are as they are: docs/history/decisions.md.
"""

import math

import torch
from torch import Tensor

from simic.envs.rewards.default import unfinished
from simic.envs.rewards.transition import Ledger, Setting, Transition, mode, term
from simic.growth.life.vocabulary import Op, Slots, Stage
from simic.params import Reward

BASE_SLOT_RENT = 0.0039  # share of the host's parameters that an occupied slot pays for itself
ALPHA_SHOCK_CAP = 1.0  # of one step
NOT_CONTRIBUTING = -0.2  # fossilizing a seed that does not help
MIN_HOLDING_STEPS = 3  # dwell in HOLDING for the full bonus; ours, for episodes of 25 steps

# A contribution far above the seed's own progress; ours.
RATIO_MIN_CONTRIBUTION = 1.0  # points: below it no ratio is formed
RATIO_SAFE_PROGRESS = 0.1  # points: at or below it the ratio is not formed but the contribution itself is suspect
RATIO_LIMIT = 5.0
RATIO_PENALTY_MAX = 0.3
RATIO_SLOPE = 0.1  # per RATIO_LIMIT above the limit
RATIO_FULL_CONTRIBUTION = 10.0  # points without progress at which the penalty is full


# What a seed is worth.


def progress(slots: Slots) -> Tensor:
    """Return the live accuracy gained since germination ``[E, K]`` float64, points; NaN where not measured."""
    return slots.accuracy.double() - slots.germination_accuracy.double()


def significant_contribution(slots: Slots, threshold: float) -> Tensor:
    """Return the contribution ``[E, K]``, points; 0 where unmeasured or below max(threshold, 2 standard errors)."""
    value = slots.contribution.double()
    noise = (2.0 * slots.contribution_se.double()).clamp(min=threshold)
    # NaN in either makes the comparison False, so what is unmeasured earns and costs nothing.
    return torch.where(value.abs() >= noise, value, 0.0)


def attributed(contribution: Tensor, gain: Tensor) -> Tensor:
    """Return how much of the gain p is the seed's, points.

    c for c < p, 2pc/(p+c) for c ≥ p, 0 for p ≤ 0 (the gain is not the seed's), and c itself when it harms.
    """
    c, p = contribution, gain
    helpful = torch.where(p > 0, torch.where(c >= p, 2.0 * p * c / (p + c), c), 0.0)
    return torch.where(c > 0, helpful, c)


def credit(slots: Slots, weights: Reward) -> Tensor:
    """Return the unrealised credit of each live, unfossilized seed ``[E, K]`` float64."""
    c = significant_contribution(slots, weights.contribution_threshold_pct)
    return torch.where(unfinished(slots), weights.shaped.contribution_weight * attributed(c, progress(slots)), 0.0)


def discounted_change(before: Tensor, after: Tensor, t: Transition, gamma: float) -> Tensor:
    """Return γ Σ after − Σ before ``[E]`` of credit per slot ``[E, K]``: fossilizing keeps what a seed has, what else
    is gone or unfossilized at a true terminal is taken back.
    """
    kept = (t.after.stage == Stage.FOSSILIZED) & (t.before.stage != Stage.FOSSILIZED)
    left = torch.where(t.terminal, 0.0, after.sum(dim=1))
    return gamma * left - torch.where(kept, 0.0, before).sum(dim=1)


# Terms of both modes.


@term("rent")
def rent(t: Transition, setting: Setting) -> Tensor:
    """Charge -min(w ln(1+g), cap) / T: the cap bounds an episode's rent, so accuracy dominates parameter cost."""
    weights = setting.weights
    occupied = t.seed_params_after > 0
    alpha = torch.where(occupied, t.after.alpha.double(), 0.0)
    burden = torch.where(occupied, BASE_SLOT_RENT * setting.host_params + alpha * t.seed_params_after.double(), 0.0)
    growth = burden.sum(dim=1) / max(setting.host_params, weights.rent_floor_params)
    return -(weights.shaped.rent_weight * growth.log1p()).clamp(max=weights.rent_cap) / setting.episode_steps


@term("alpha_shock")
def alpha_shock(t: Transition, setting: Setting) -> Tensor:
    """Charge -min(w Σ Δα² · params/host, 1): abrupt changes cost more than ramps, going back and forth costs twice."""
    weights = setting.weights
    change = (t.after.alpha - t.before.alpha).double().square()
    size = torch.maximum(t.seed_params_before, t.seed_params_after).double()
    shock = (change * size).sum(dim=1) / max(setting.host_params, weights.rent_floor_params)
    return -(weights.shaped.alpha_shock_weight * shock).clamp(max=ALPHA_SHOCK_CAP)


@term("fossilize")
def fossilize(t: Transition, setting: Setting) -> Tensor:
    """Pay at FOSSILIZE w tanh(1/3) · min(1, dwell/3) for a seed that provably helps, else a small penalty.

    Helps: c ≥ max(threshold, 2 se) as measured before the op, and the host is better than at germination (a seed that
    only made itself indispensable has c > 0 but no progress).
    """

    def of_target(values: Tensor) -> Tensor:
        return values.gather(1, t.slot[:, None])[:, 0]

    c = of_target(significant_contribution(t.before, setting.weights.contribution_threshold_pct))
    legitimacy = (of_target(t.before.dwell).double() / MIN_HOLDING_STEPS).clamp(max=1.0)
    bonus = setting.weights.shaped.fossilize_weight * math.tanh(1 / 3) * legitimacy
    paid = torch.where((c > 0) & (of_target(progress(t.before)) > 0), bonus, NOT_CONTRIBUTING)
    return torch.where(t.op == Op.FOSSILIZE, paid, 0.0)


@term("terminal", objective=True)
def terminal(t: Transition, setting: Setting) -> Tensor:
    """Pay w · committed accuracy, once, at the end of an episode."""
    return torch.where(t.ended, setting.weights.shaped.terminal_weight * t.committed_accuracy.double(), 0.0)


# How each of them pays credit.


@term("attribution")
def attribution(t: Transition, setting: Setting) -> Tensor:
    """Pay the discounted change of credit; fossilizing keeps what the seed has, pruning and the terminal forfeit it."""
    weights = setting.weights
    return discounted_change(credit(t.before, weights), credit(t.after, weights), t, setting.gamma)


@term("escrow")
def escrow(t: Transition, setting: Setting) -> Tensor:
    """Pay the discounted change of credit in escrow, which follows a seed's worth on stable accuracy."""
    return discounted_change(t.ledgers["escrow"], escrow_after(t, setting), t, setting.gamma)


def nothing_in_escrow(slots: Slots, loss: Tensor, setting: Setting) -> Tensor:
    """Return zeros ``[E, K]``."""
    return torch.zeros(slots.stage.shape, dtype=torch.float64, device=loss.device)


def escrow_after(t: Transition, setting: Setting) -> Tensor:
    """Return credit in escrow in s' ``[E, K]``: max(0, w · attributed + ratio penalty), rising by at most the clip per
    step.

    It falls at once (with a clipped fall, fossilizing right after a loss would keep what is lost), and to 0 for a seed
    that harms, is gone or is fossilized.
    """
    weights = setting.weights
    c = significant_contribution(t.after, weights.contribution_threshold_pct)
    p = t.stable_accuracy.double()[:, None] - t.after.germination_accuracy.double()
    target = (weights.shaped.contribution_weight * attributed(c, p) + suspicion(c, p)).clamp(min=0.0)
    advanced = torch.minimum(target, t.ledgers["escrow"].masked_fill(t.renewed, 0.0) + weights.escrow.clip)
    return torch.where(unfinished(t.after) & ~t.terminal[:, None], advanced, 0.0)


def suspicion(contribution: Tensor, gain: Tensor) -> Tensor:
    """Return a penalty in [-0.3, 0] for a contribution c out of proportion to progress p, ``[E, K]``.

    p > 0.1: -min(0.3, 0.1 (c/p - 5) / 5) for c/p > 5; else -0.3 min(1, c/10). Nothing for c ≤ 1 or p not measured.
    """
    c, p = contribution, gain
    excess = (c / p.clamp(min=RATIO_SAFE_PROGRESS) - RATIO_LIMIT).clamp(min=0.0) / RATIO_LIMIT
    out_of_proportion = -(RATIO_SLOPE * excess).clamp(max=RATIO_PENALTY_MAX)
    without_progress = -RATIO_PENALTY_MAX * (c / RATIO_FULL_CONTRIBUTION).clamp(min=0.0, max=1.0)
    penalty = torch.where(p > RATIO_SAFE_PROGRESS, out_of_proportion, without_progress)
    return torch.where((c > RATIO_MIN_CONTRIBUTION) & p.isfinite(), penalty, 0.0)


@term("toxic")
def toxic(t: Transition, setting: Setting) -> Tensor:
    """Charge in each step w · c of every unfossilized seed that provably harms."""
    c = significant_contribution(t.after, setting.weights.contribution_threshold_pct).clamp(max=0.0)
    return setting.weights.shaped.contribution_weight * torch.where(unfinished(t.after), c, 0.0).sum(dim=1)


COMMON = ("rent", "alpha_shock", "intervention", "fossilize", "terminal", "death")
mode("shaped", ("shaping", "attribution", *COMMON))
mode("escrow", ("shaping", "escrow", "toxic", *COMMON), {"escrow": Ledger(nothing_in_escrow, escrow_after)})
