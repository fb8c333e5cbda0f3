"""Rewards as sums of small pure terms on one transition (s, effective op, s').

Every term is ``(transition, setting) -> [E]`` float64 and registered by name; a mode is a tuple of names. A term and a
mode of your own, in a file of yours::

    from simic.envs.rewards import mode, term

    @term("per_seed")
    def per_seed(transition, setting):
        \"\"\"A hundredth for every fossilized seed, each step.\"\"\"
        return 0.01 * (transition.after.stage == 5).sum(dim=1).double()

    mode("mine", ("shaping", "terminal", "per_seed", "death"))

What pays for states rather than for steps is an exact discounted difference, so that no closed loop earns (Ng, Harada,
Russell 1999). What a mode remembers from step to step it names as ledgers; no other mode computes them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic import registry
from simic.errors import SimicError
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Op, Slots, Stage
from simic.params import Reward
from simic.transfer import constant

Values = TypeVar("Values", Tensor, NDArray[np.float64])


def score(committed_accuracy: Values, added: Values, host_params: int, price: float) -> Values:
    """Score a network: accuracy of what was kept, less the price of the parameters that were added.

    Args:
        committed_accuracy: Points, of any shape.
        added: Parameters that were kept beside the host's, of the same shape.
        host_params: Parameters of the host.
        price: Points for as many parameters as the host's.
    """
    return committed_accuracy - price * (added / host_params)


@dataclass(frozen=True)
class Transition:
    """One step of E hosts; ``seed_params`` count parameters incl. gates ``[E, K]``, accuracies are points."""

    before: Slots
    after: Slots
    op: Tensor  # effective Op [E]
    slot: Tensor  # its target [E]
    seed_params_before: Tensor
    seed_params_after: Tensor
    stable_accuracy: Tensor  # [E] least live accuracy of the last few validations up to s'
    committed_accuracy_before: Tensor  # [E] of s: host and FOSSILIZED seeds only
    committed_accuracy: Tensor  # [E] of s'
    loss: Tensor  # [E] of s', live network, nats
    committed_loss: Tensor  # [E]
    ended: Tensor  # bool [E]: this was step T and the host is not panicked
    # bool [E]: s' is a true terminal (T under episode_end: terminate, or a rollback)
    terminal: Tensor
    panicked: Tensor  # bool [E]: the governor rolled this host back in this step
    ledgers: dict[str, Tensor]  # of s: what the mode remembers, by name


def kept_params(slots: Slots, seed_params: Tensor) -> Tensor:
    """Count the parameters of the fossilized seeds ``[E]``, float64."""
    return torch.where(slots.stage == Stage.FOSSILIZED, seed_params, 0).sum(dim=1).double()


@dataclass(frozen=True)
class Setting:
    """What all transitions of a run share."""

    weights: Reward
    gamma: float
    episode_steps: int
    host_params: int
    param_budget: float  # times the host's parameters
    price: float  # points, of as many parameters as the host's
    chance_loss: Tensor  # [E] or [1] float64, nats: of a uniform guess


# --- registration ----------------------------------------------------------------------------------------------------

Term = Callable[[Transition, Setting], Tensor]


class Ledger(NamedTuple):
    """Memory of a mode, float64: ``start(slots, loss [E], setting)`` is its value after a reset, with the loss of the
    first validation; ``after(transition, setting)`` that of s'.
    """

    start: Callable[[Slots, Tensor, Setting], Tensor]
    after: Term


TERMS: dict[str, Term] = {}
MODES: dict[str, tuple[str, ...]] = {}
LEDGERS: dict[str, Mapping[str, Ledger]] = {}  # by mode


def term(name: str) -> Callable[[Term], Term]:
    """Register a reward term: a pure function ``(Transition, Setting) -> [E]`` float64; SimicError where the name is
    taken.
    """

    def register(function: Term) -> Term:
        if name in TERMS:
            raise SimicError(f"reward term {name!r} is registered twice; choose another name")
        TERMS[name] = function
        return function

    return register


def mode(name: str, terms: tuple[str, ...], ledgers: Mapping[str, Ledger] | None = None) -> None:
    """Register a mode, the sum of registered terms.

    Args:
        name: What ``train.reward.mode`` calls it.
        terms: Names of terms, in the order in which they are added up.
        ledgers: By name, what its terms find in ``Transition.ledgers``.

    Raises:
        SimicError: The name is taken, or a term is unknown or listed twice.
    """
    # At registration, since a wrong name found in the first step would cost the stages before it.
    if name in MODES:
        raise SimicError(f"reward mode {name!r} is registered twice; choose another name")
    if not terms or len(set(terms)) < len(terms):
        raise SimicError(
            f"reward mode {name!r} has terms {terms}: must be at least one, and each once"
        )
    for item in terms:
        if item not in TERMS:
            raise SimicError(
                f"reward mode {name!r}: no term {item!r}; registered are {', '.join(TERMS)}"
            )
    MODES[name] = terms
    LEDGERS[name] = ledgers or {}
    registry.add(registry.REWARD_MODE, name)


def start(mode: str, slots: Slots, loss: Tensor, setting: Setting) -> dict[str, Tensor]:
    """Begin the ledgers of a mode after a reset.

    Args:
        mode: Its name.
        slots: Empty ones.
        loss: Of the first validation, ``[E]``, nats.
        setting: What all transitions share.
    """
    return {name: ledger.start(slots, loss, setting) for name, ledger in LEDGERS[mode].items()}


def advance(mode: str, transition: Transition, setting: Setting) -> dict[str, Tensor]:
    """Compute the ledgers of s'.

    Args:
        mode: Its name.
        transition: With the ledgers of s.
        setting: What all transitions share.
    """
    return {name: ledger.after(transition, setting) for name, ledger in LEDGERS[mode].items()}


def components(mode: str, transition: Transition, setting: Setting) -> dict[str, Tensor]:
    """Compute every term of a mode, whose sum is the reward.

    Args:
        mode: Its name.
        transition: One step of E hosts.
        setting: What all transitions share.

    Returns:
        ``[E]`` float64 by name of the term.

    Raises:
        SimicError: A term of a user's is of another type or shape.
    """
    # A float32 term would add rounding, and one number for all hosts would be broadcast without a word.
    parts = {name: TERMS[name](transition, setting) for name in MODES[mode]}
    for name, value in parts.items():
        if value.dtype != torch.float64 or value.shape != transition.op.shape:
            expected = f"float64 {tuple(transition.op.shape)}"
            raise SimicError(
                f"reward term {name!r} gave {value.dtype} {tuple(value.shape)}: must be {expected}"
            )
    return parts


def total(parts: dict[str, Tensor]) -> Tensor:
    """Add up the reward ``[E]`` float64; one by one, so that a host's sum does not depend on its company."""
    reward, *terms = parts.values()
    for value in terms:
        reward = reward + value
    return reward


# --- modes score and sparse -------------------------------------------------------------------------------------------

# Mode score, the default, pays what every step changed of the score that an episode ends with: shaping + score_change +
# intervention + death; by default the weights of shaping and intervention are 0. Mode sparse pays once, at the end.

# Stage potentials by Stage value. A seed gains RAMP per epoch of dwell up to RAMP_MAX. FOSSILIZED has no
# ramp and equals the largest HOLDING, so that fossilizing late never gives shaping back.
RAMP = 0.3
RAMP_MAX = 2.0
STAGE_POTENTIAL = (0.0, 1.0, 2.0, 3.5, 5.5, 5.5 + RAMP_MAX, 0.0, 0.0, 0.0)

UNFINISHED_STAGES = LIVE_STAGES - {Stage.FOSSILIZED}


def unfinished(slots: Slots) -> Tensor:
    """Tell which seeds are live and not fossilized, bool ``[E, K]``."""
    return in_stages(slots.stage, UNFINISHED_STAGES)


def potential(slots: Slots) -> Tensor:
    """Compute Φ(s) = Σ over all slots of Φ(stage) + min(0.3 · dwell, 2), ``[E]`` float64."""
    table = constant(STAGE_POTENTIAL, torch.float64, slots.stage.device)
    ramp = torch.where(unfinished(slots), (RAMP * slots.dwell.double()).clamp(max=RAMP_MAX), 0.0)
    return (table[slots.stage] + ramp).sum(dim=1)


@term("shaping")
def shaping(t: Transition, setting: Setting) -> Tensor:
    """Pay F = w(γΦ(s') - Φ(s)) with Φ(true terminal) = 0."""
    # Then the discounted sum of F over an episode is -Φ(s_0), whatever was done: no detour earns anything.
    after = torch.where(t.terminal, 0.0, potential(t.after))
    return setting.weights.pbrs_weight * (setting.gamma * after - potential(t.before))


@term("score_change")
def score_change(t: Transition, setting: Setting) -> Tensor:
    """Pay the discounted change of w · score, the true terminal's included: they sum to the score at the end."""
    # A host may begin without a finite loss, so without an accuracy.
    first = t.committed_accuracy_before.double().nan_to_num(0.0)
    before = score(
        first, kept_params(t.before, t.seed_params_before), setting.host_params, setting.price
    )
    added = kept_params(t.after, t.seed_params_after)
    after = score(t.committed_accuracy.double(), added, setting.host_params, setting.price)
    return setting.weights.score.weight * (setting.gamma * after - before)


@term("intervention")
def intervention(t: Transition, setting: Setting) -> Tensor:
    """Charge a small price for every op that took effect; WAIT is free."""
    return -setting.weights.intervention_cost * (t.op != Op.WAIT).double()


@term("death")
def death(t: Transition, setting: Setting) -> Tensor:
    """Charge the penalty in the step whose host had to be rolled back."""
    return setting.weights.death_penalty * t.panicked.double()


@term("sparse")
def sparse(t: Transition, setting: Setting) -> Tensor:
    """Pay at the end: scale · clip(committed accuracy - price of the fossilized parameters, ±1); clip before scale."""
    weights = setting.weights.sparse
    budget = setting.param_budget * setting.host_params
    added = kept_params(t.after, t.seed_params_after)
    base = t.committed_accuracy.double() / 100.0 - weights.param_penalty * added / budget
    return torch.where(t.ended, weights.scale * base.clamp(-1.0, 1.0), 0.0)


mode("score", ("shaping", "score_change", "intervention", "death"))
mode("sparse", ("sparse", "death"))


# --- mode loss --------------------------------------------------------------------------------------------------------

# What every step improves of the validation loss, in units of sigma, a share of the loss of a uniform guess.

LOSS_CLIP_SIGMAS = 5.0  # improvement paid in one step, at most
LOSS_RENT_GRACE = 3  # age below which a seed pays no rent


def bounded_loss(loss: Tensor, chance_loss: Tensor) -> Tensor:
    """Bound the loss in nats, float64, by that of a uniform guess: nothing is worse than knowing nothing."""
    loss = loss.double()
    return torch.minimum(torch.where(loss.isnan(), chance_loss, loss), chance_loss)


@term("loss_improvement")
def loss_improvement(t: Transition, setting: Setting) -> Tensor:
    """Pay the discounted change of w · (chance - tracked loss) / σ: positive when the loss falls. It telescopes.

    What only unfossilized seeds achieved is taken back at the end.
    """
    # Measured from chance, which bounds the loss: a host that begins worse earns nothing for coming down to it.
    weights = setting.weights
    unit = weights.loss.weight / (weights.loss.sigma_chances * setting.chance_loss)
    before = setting.chance_loss - t.ledgers["tracked_loss"]
    after = setting.chance_loss - tracked_loss_after(t, setting)
    return unit * (setting.gamma * after - before)


def tracked_loss_after(t: Transition, setting: Setting) -> Tensor:
    """Track the loss in s' down to which improvement is paid ``[E]``: falls by at most 5 σ a step, rises at once.

    Clipping the payment instead would pay for a spike that is undone slowly.
    """
    most = LOSS_CLIP_SIGMAS * setting.weights.loss.sigma_chances * setting.chance_loss
    tracked = torch.maximum(
        bounded_loss(t.loss, setting.chance_loss), t.ledgers["tracked_loss"] - most
    )
    final = torch.maximum(tracked, bounded_loss(t.committed_loss, setting.chance_loss))
    return torch.where(t.terminal, final, tracked)


@term("loss_rent")
def loss_rent(t: Transition, setting: Setting) -> Tensor:
    """Charge -min(w ln(1+g), cap / T) of seeds of age 3 or more, whatever their alpha."""
    weights = setting.weights
    seed_params = (
        torch.where(t.after.age >= LOSS_RENT_GRACE, t.seed_params_after, 0).sum(dim=1).double()
    )
    # In units of the host, but of no tiny one: its seeds would be ruinous.
    growth = seed_params / max(setting.host_params, weights.rent_floor_params)
    return -(weights.loss.rent_weight * growth.log1p()).clamp(
        max=weights.rent_cap / setting.episode_steps
    )


@term("loss_terminal")
def loss_terminal(t: Transition, setting: Setting) -> Tensor:
    """Pay at the end w · clip((chance - committed loss) / (chance - target), 0, 1)."""
    weights = setting.weights
    chance = setting.chance_loss
    gain = (chance - bounded_loss(t.committed_loss, chance)) / (
        chance * (1.0 - weights.loss.target_chances)
    )
    return torch.where(t.ended, weights.loss.terminal_weight * gain.clamp(0.0, 1.0), 0.0)


mode(
    "loss",
    ("shaping", "loss_improvement", "loss_rent", "intervention", "loss_terminal", "death"),
    {
        "tracked_loss": Ledger(
            lambda _, loss, setting: bounded_loss(loss, setting.chance_loss), tracked_loss_after
        )
    },
)


# --- modes shaped and escrow ------------------------------------------------------------------------------------------

# Credit for what each seed contributes, rent for its parameters. Why the terms are as they are:
# docs/history/decisions.md.

BASE_SLOT_RENT = 0.0039  # share of the host's parameters that an occupied slot pays for itself
ALPHA_SHOCK_CAP = 1.0  # of one step
NOT_CONTRIBUTING = -0.2  # fossilizing a seed that does not help
MIN_HOLDING_STEPS = 3  # dwell in HOLDING for the full bonus; ours, for episodes of 25 steps

# A contribution far above the seed's own progress; ours.
RATIO_MIN_CONTRIBUTION = 1.0  # points: below it no ratio is formed
# Points: at or below it the ratio is not formed but the contribution itself is suspect.
RATIO_SAFE_PROGRESS = 0.1
RATIO_LIMIT = 5.0
RATIO_PENALTY_MAX = 0.3
RATIO_SLOPE = 0.1  # per RATIO_LIMIT above the limit
RATIO_FULL_CONTRIBUTION = 10.0  # points without progress at which the penalty is full


# What a seed is worth.


def progress(slots: Slots) -> Tensor:
    """Compute the live accuracy gained since germination ``[E, K]`` float64, points; NaN where not measured."""
    return slots.accuracy.double() - slots.germination_accuracy.double()


def significant_contribution(slots: Slots, threshold: float) -> Tensor:
    """Select the contribution ``[E, K]``, points; 0 where unmeasured or below max(threshold, 2 standard errors)."""
    value = slots.contribution.double()
    noise = (2.0 * slots.contribution_se.double()).clamp(min=threshold)
    # NaN in either makes the comparison False, so what is unmeasured earns and costs nothing.
    return torch.where(value.abs() >= noise, value, 0.0)


def attributed(contribution: Tensor, gain: Tensor) -> Tensor:
    """Attribute to the seed its part of the gain p, points.

    c for c < p, 2pc/(p+c) for c ≥ p, 0 for p ≤ 0 (the gain is not the seed's), and c itself when it harms.
    """
    # c > p: leaving the seed out costs more than was gained since it came, as the host has come to lean on it. The
    # harmonic mean lies between both, and is p where they agree.
    c = contribution
    p = gain
    helpful = torch.where(p > 0, torch.where(c >= p, 2.0 * p * c / (p + c), c), 0.0)
    return torch.where(c > 0, helpful, c)


def credit(slots: Slots, weights: Reward) -> Tensor:
    """Compute the unrealised credit of each live, unfossilized seed ``[E, K]`` float64."""
    c = significant_contribution(slots, weights.contribution_threshold_pct)
    return torch.where(
        unfinished(slots), weights.shaped.contribution_weight * attributed(c, progress(slots)), 0.0
    )


def discounted_change(before: Tensor, after: Tensor, t: Transition, gamma: float) -> Tensor:
    """Compute γ Σ after − Σ before ``[E]`` of credit per slot ``[E, K]``.

    Fossilizing keeps what a seed has; what else is gone, or unfossilized at a true terminal, is taken back.

    Args:
        before: Credit in s.
        after: Credit in s'.
        t: The transition.
        gamma: Discount.
    """
    fossilized_now = (t.after.stage == Stage.FOSSILIZED) & (t.before.stage != Stage.FOSSILIZED)
    left = torch.where(t.terminal, 0.0, after.sum(dim=1))
    return gamma * left - torch.where(fossilized_now, 0.0, before).sum(dim=1)


# Terms of both modes.


@term("rent")
def rent(t: Transition, setting: Setting) -> Tensor:
    """Charge -min(w ln(1+g), cap) / T: the cap bounds an episode's rent, so accuracy dominates parameter cost."""
    # What is blended in by half costs half; the slot itself costs from the start.
    weights = setting.weights
    occupied = t.seed_params_after > 0
    alpha = torch.where(occupied, t.after.alpha.double(), 0.0)
    burden = torch.where(
        occupied, BASE_SLOT_RENT * setting.host_params + alpha * t.seed_params_after.double(), 0.0
    )
    growth = burden.sum(dim=1) / max(setting.host_params, weights.rent_floor_params)
    return (
        -(weights.shaped.rent_weight * growth.log1p()).clamp(max=weights.rent_cap)
        / setting.episode_steps
    )


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

    # As of s, before the op: fossilizing must not change what it is judged by.
    c = of_target(significant_contribution(t.before, setting.weights.contribution_threshold_pct))
    legitimacy = (of_target(t.before.dwell).double() / MIN_HOLDING_STEPS).clamp(max=1.0)
    bonus = setting.weights.shaped.fossilize_weight * math.tanh(1 / 3) * legitimacy
    paid = torch.where((c > 0) & (of_target(progress(t.before)) > 0), bonus, NOT_CONTRIBUTING)
    return torch.where(t.op == Op.FOSSILIZE, paid, 0.0)


@term("terminal")
def terminal(t: Transition, setting: Setting) -> Tensor:
    """Pay w · committed accuracy, once, at the end of an episode."""
    return torch.where(
        t.ended, setting.weights.shaped.terminal_weight * t.committed_accuracy.double(), 0.0
    )


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


def escrow_after(t: Transition, setting: Setting) -> Tensor:
    """Compute credit in escrow in s' ``[E, K]``: max(0, w · attributed + ratio penalty), rising by at most the clip
    per step.

    It falls at once (with a clipped fall, fossilizing right after a loss would keep what is lost), and to 0 for a seed
    that harms, is gone or is fossilized.
    """
    weights = setting.weights
    c = significant_contribution(t.after, weights.contribution_threshold_pct)
    p = t.stable_accuracy.double()[:, None] - t.after.germination_accuracy.double()
    target = (weights.shaped.contribution_weight * attributed(c, p) + suspicion(c, p)).clamp(
        min=0.0
    )
    # A new seed has nothing of what is remembered of another.
    germinated = t.after.germinations != t.before.germinations
    advanced = torch.minimum(
        target, t.ledgers["escrow"].masked_fill(germinated, 0.0) + weights.escrow.clip
    )
    return torch.where(unfinished(t.after) & ~t.terminal[:, None], advanced, 0.0)


def suspicion(contribution: Tensor, gain: Tensor) -> Tensor:
    """Compute a penalty in [-0.3, 0] for a contribution c out of proportion to progress p, ``[E, K]``.

    p > 0.1: -min(0.3, 0.1 (c/p - 5) / 5) for c/p > 5; else -0.3 min(1, c/10). Nothing for c ≤ 1 or p not measured.
    """
    c = contribution
    p = gain
    ratio = c / p.clamp(min=RATIO_SAFE_PROGRESS)
    excess = (ratio - RATIO_LIMIT).clamp(min=0.0) / RATIO_LIMIT
    out_of_proportion = -(RATIO_SLOPE * excess).clamp(max=RATIO_PENALTY_MAX)
    without_progress = -RATIO_PENALTY_MAX * (c / RATIO_FULL_CONTRIBUTION).clamp(min=0.0, max=1.0)
    penalty = torch.where(p > RATIO_SAFE_PROGRESS, out_of_proportion, without_progress)
    return torch.where((c > RATIO_MIN_CONTRIBUTION) & p.isfinite(), penalty, 0.0)


@term("toxic")
def toxic(t: Transition, setting: Setting) -> Tensor:
    """Charge in each step w · c of every unfossilized seed that provably harms."""
    c = significant_contribution(t.after, setting.weights.contribution_threshold_pct).clamp(max=0.0)
    return setting.weights.shaped.contribution_weight * torch.where(
        unfinished(t.after), c, 0.0
    ).sum(dim=1)


COMMON = ("rent", "alpha_shock", "intervention", "fossilize", "terminal", "death")
mode("shaped", ("shaping", "attribution", *COMMON))
mode(
    "escrow",
    ("shaping", "escrow", "toxic", *COMMON),
    {
        "escrow": Ledger(
            lambda slots, *_: torch.zeros_like(slots.stage, dtype=torch.float64), escrow_after
        )
    },
)
