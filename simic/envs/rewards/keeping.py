"""Terms about fossilizing: what is paid when a seed is kept, and what a kept seed goes on to pay."""

import math

import torch
from torch import Tensor

from simic.envs.rewards.potential import (
    contribution_before,
    harmonic,
    of_target,
    progress,
    significant_contribution,
    unfinished,
)
from simic.envs.rewards.registration import term
from simic.envs.rewards.transition import Setting, Transition
from simic.growth.life.vocabulary import Op, Stage

NOT_CONTRIBUTING = -0.2  # fossilizing a seed that does not help
RANSOM = -0.5  # basic: fossilizing a seed that contributes though the host got worse
MIN_HOLDING_STEPS = 3  # dwell in HOLDING for the full bonus; ours, for episodes of 25 steps
DRIP_MIN_STEPS = 5
DRIP_NEGATIVE = 0.5  # how much of its rate a seed that turned harmful takes back, at most
HINDSIGHT_STEEPNESS = 0.1  # per squared point


def legitimacy(t: Transition) -> Tensor:
    """min(1, dwell/3) of the op's target ``[E]``."""
    return (of_target(t.before.dwell, t).double() / MIN_HOLDING_STEPS).clamp(max=1.0)


@term("fossilize")
def fossilize(t: Transition, setting: Setting) -> Tensor:
    """At FOSSILIZE: w tanh(1/3) · min(1, dwell/3) for a seed that provably helps, else a small penalty.

    Helps: c ≥ max(threshold, 2 se) as measured before the op, and the host is better than at germination (a seed that
    only made itself indispensable has c > 0 but no progress).
    """
    c, p = contribution_before(t, setting), of_target(progress(t.before), t)
    bonus = setting.weights.shaped.fossilize_weight * math.tanh(1 / 3) * legitimacy(t)
    paid = torch.where((c > 0) & (p > 0), bonus, NOT_CONTRIBUTING)
    return torch.where(t.op == Op.FOSSILIZE, paid, 0.0)


def basic_bonus(t: Transition, setting: Setting) -> Tensor:
    """min(1, dwell/3) · (base + scale · 2pc/(p+c)) of the op's target, 0 where it does not provably help, ``[E]``."""
    weights = setting.weights
    c, p = contribution_before(t, setting), of_target(progress(t.before), t)
    helps = (t.op == Op.FOSSILIZE) & (c > 0) & (p > 0)
    bonus = legitimacy(t) * (weights.basic.fossilize_base + weights.basic.fossilize_scale * harmonic(c, p))
    return torch.where(helps, bonus, 0.0)


def _basic_penalty(t: Transition, setting: Setting) -> Tensor:
    """Of fossilizing a seed that does not help, more where it contributes but the host got worse, ``[E]``."""
    c, p = contribution_before(t, setting), of_target(progress(t.before), t)
    penalty = torch.where((c > 0) & (p <= 0), RANSOM, torch.full_like(c, NOT_CONTRIBUTING))
    return torch.where((t.op == Op.FOSSILIZE) & ~((c > 0) & (p > 0)), penalty, 0.0)


@term("basic_fossilize")
def basic_fossilize(t: Transition, setting: Setting) -> Tensor:
    """At FOSSILIZE: min(1, dwell/3) · (base + scale · 2pc/(p+c)) for a seed that provably helps, else a penalty."""
    return basic_bonus(t, setting) + _basic_penalty(t, setting)


@term("basic_plus_fossilize")
def basic_plus_fossilize(t: Transition, setting: Setting) -> Tensor:
    """The part of basic_fossilize's bonus that is not dripped, or its penalty in full."""
    return (1.0 - setting.weights.basic_plus.drip_fraction) * basic_bonus(t, setting) + _basic_penalty(t, setting)


@term("drip")
def drip(t: Transition, setting: Setting) -> Tensor:
    """Each later step, of every fossilized seed: rate · clip(c now / c when fossilized, -0.5, 1)."""
    c = significant_contribution(t.after, setting.weights.contribution_threshold_pct)
    rate = t.ledgers.drip_rate
    # A rate above 0 has a contribution above 0 beside it: see drip_after.
    ratio = torch.where(rate > 0, c / t.ledgers.drip_contribution, 0.0).clamp(-DRIP_NEGATIVE, 1.0)
    return torch.where(t.panicked, 0.0, (rate * ratio).sum(dim=1))


def drip_after(t: Transition, setting: Setting) -> tuple[Tensor, Tensor]:
    """Rate per step and contribution it is paid for ``[E, K]`` in s': dripped part / max(steps left, 5)."""
    steps_left = max(setting.episode_steps - t.step, DRIP_MIN_STEPS)
    bonus = basic_bonus(t, setting)
    rate = setting.weights.basic_plus.drip_fraction * bonus / steps_left
    targeted = torch.arange(t.before.stage.shape[1], device=t.slot.device) == t.slot[:, None]
    starts = targeted & (bonus > 0)[:, None]
    kept = t.after.stage == Stage.FOSSILIZED
    contribution = torch.where(starts, contribution_before(t, setting)[:, None], t.ledgers.drip_contribution)
    rates = torch.where(starts, rate[:, None], t.ledgers.drip_rate)
    return torch.where(kept, rates, 0.0), torch.where(kept, contribution, 0.0)


@term("hindsight", weight="hindsight_weight")
def hindsight(t: Transition, setting: Setting) -> Tensor:
    """At FOSSILIZE of a seed that helps: w tanh(0.1 · what others boosted it · its progress).

    Credit for scaffolds, also those pruned since; at most w per seed.
    """
    c, p = contribution_before(t, setting), of_target(progress(t.before), t)
    boost = of_target(t.ledgers.boosts, t)
    earned = setting.weights.shaped.hindsight_weight * (HINDSIGHT_STEEPNESS * boost * p).tanh()
    return torch.where((t.op == Op.FOSSILIZE) & (c > 0) & (p > 0), earned, 0.0)


def boosts_after(t: Transition, setting: Setting) -> Tensor:
    """γ · boosts + max(0, interaction) of unfossilized seeds ``[E, K]``; forgotten with the seed."""
    earlier = t.ledgers.boosts.masked_fill(t.renewed, 0.0)
    boosts = setting.gamma * earlier + t.interaction_after.double().clamp(min=0.0)
    return torch.where(unfinished(t.after), boosts, 0.0)
