"""Rewards as sums of small pure terms on one transition (s, effective op, s'); facts §10 in the corrected form.

Every term is ``(transition, setting) -> [E]`` float64 and registered by name; a mode is a tuple of names. Two of them
are exact discounted potential differences (Ng, Harada, Russell 1999): ``shaping`` over the stages of all slots and
``attribution`` over the credit of seeds that are not fossilized yet. Neither can be farmed: their discounted sum over a
closed loop in the state is zero, and at a true terminal both potentials are 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from simic.growth.lifecycle import LIVE_STAGES, in_stages
from simic.growth.vocabulary import Op, Slots, Stage
from simic.params import Reward, Train

# Stage potentials (facts §10.2) by Stage value. A seed gains RAMP per epoch of dwell up to RAMP_MAX. FOSSILIZED has no
# ramp and equals the largest HOLDING, so that fossilizing late never gives shaping back.
RAMP, RAMP_MAX = 0.3, 2.0
STAGE_POTENTIAL = (0.0, 1.0, 2.0, 3.5, 5.5, 5.5 + RAMP_MAX, 0.0, 0.0, 0.0)

UNFINISHED_STAGES = LIVE_STAGES - {Stage.FOSSILIZED}

BASE_SLOT_RENT = 0.0039  # share of the host's parameters that an occupied slot pays for itself (facts §10.1)
ALPHA_SHOCK_CAP = 1.0  # facts §10.7
NOT_CONTRIBUTING = -0.2  # fossilizing a seed that does not help (facts §10.4)
MIN_HOLDING_STEPS = 3  # dwell in HOLDING for the full bonus; facts have 5 for episodes of 75 steps, ours have 25


@dataclass(frozen=True)
class Transition:
    """One step of E hosts; ``seed_params`` count parameters incl. gates ``[E, K]``, accuracies are points."""

    before: Slots
    after: Slots
    op: Tensor  # effective Op [E]
    slot: Tensor  # its target [E]
    seed_params_before: Tensor
    seed_params_after: Tensor
    committed_accuracy: Tensor  # [E] of s': host and FOSSILIZED seeds only
    ended: Tensor  # bool [E]: this was step T and the host is not panicked
    terminal: Tensor  # bool [E]: s' is a true terminal (T under episode_end: terminate, or a rollback)
    panicked: Tensor  # bool [E]: the governor rolled this host back in this step


@dataclass(frozen=True)
class Setting:
    """What all transitions of a run share."""

    weights: Reward
    gamma: float
    episode_steps: int
    host_params: int
    param_budget: float  # times the host's parameters

    @classmethod
    def of(cls, train: Train, host_params: int) -> "Setting":
        """The setting of a run; gamma is the agent's (``params`` refuses any other)."""
        return cls(train.reward, train.ppo.gamma, train.episode_steps, host_params, train.lifecycle.param_budget)


Term = Callable[[Transition, Setting], Tensor]
TERMS: dict[str, Term] = {}


def term(name: str) -> Callable[[Term], Term]:
    """Register a reward term under a name."""

    def register(function: Term) -> Term:
        if name in TERMS:
            raise ValueError(f"reward term {name!r} is registered twice")
        TERMS[name] = function
        return function

    return register


MODES: dict[str, tuple[str, ...]] = {
    "shaped": (
        "shaping",
        "attribution",
        "rent",
        "alpha_shock",
        "intervention",
        "fossilize",
        "terminal",
        "death",
    ),
    "sparse": ("sparse", "death"),
}


def components(mode: str, transition: Transition, setting: Setting) -> dict[str, Tensor]:
    """Every term of the mode ``[E]`` float64; their sum is the reward."""
    return {name: TERMS[name](transition, setting) for name in MODES[mode]}


def total(parts: dict[str, Tensor]) -> Tensor:
    """The reward ``[E]`` float64."""
    return torch.stack(tuple(parts.values())).sum(dim=0)


def potential(slots: Slots) -> Tensor:
    """Φ(s) = Σ over all slots of Φ(stage) + min(0.3 · dwell, 2), ``[E]`` float64."""
    table = torch.tensor(STAGE_POTENTIAL, dtype=torch.float64, device=slots.stage.device)
    ramp = torch.where(
        in_stages(slots.stage, UNFINISHED_STAGES), (RAMP * slots.dwell.double()).clamp(max=RAMP_MAX), 0.0
    )
    return (table[slots.stage] + ramp).sum(dim=1)


def progress(slots: Slots) -> Tensor:
    """Live accuracy gained since germination ``[E, K]`` float64, points; NaN where not measured."""
    return slots.accuracy.double() - slots.germination_accuracy.double()


def significant_contribution(slots: Slots, threshold: float) -> Tensor:
    """Contribution ``[E, K]``, points; 0 where unmeasured or below max(threshold, 2 standard errors)."""
    contribution = slots.contribution.double()
    noise = (2.0 * slots.contribution_se.double()).clamp(min=threshold)
    # NaN in either makes the comparison False, so an unmeasured seed earns and costs nothing.
    return torch.where(contribution.abs() >= noise, contribution, 0.0)


def credit(slots: Slots, weights: Reward) -> Tensor:
    """Unrealised credit of each live, unfossilized seed ``[E, K]`` float64.

    Facts §10.3 with the harmonic base: c for c < p, 2pc/(p+c) for c ≥ p, 0 for p ≤ 0 (the gain is not the seed's), and
    c itself when it harms.
    """
    c = significant_contribution(slots, weights.contribution_threshold_pct)
    p = progress(slots)
    harmonic = 2.0 * p * c / (p + c)
    helpful = torch.where(p > 0, torch.where(c >= p, harmonic, c), 0.0)
    attributed = torch.where(c > 0, helpful, c)
    live = in_stages(slots.stage, UNFINISHED_STAGES)
    return torch.where(live, weights.contribution_weight * attributed, 0.0)


@term("shaping")
def shaping(t: Transition, setting: Setting) -> Tensor:
    """F = w(γΦ(s') - Φ(s)) with Φ(true terminal) = 0."""
    after = torch.where(t.terminal, 0.0, potential(t.after))
    return setting.weights.pbrs_weight * (setting.gamma * after - potential(t.before))


@term("attribution")
def attribution(t: Transition, setting: Setting) -> Tensor:
    """Discounted change of credit; fossilizing keeps what the seed has, pruning and the terminal forfeit it."""
    kept = (t.after.stage == Stage.FOSSILIZED) & (t.before.stage != Stage.FOSSILIZED)
    before = torch.where(kept, 0.0, credit(t.before, setting.weights)).sum(dim=1)
    after = torch.where(t.terminal, 0.0, credit(t.after, setting.weights).sum(dim=1))
    return setting.gamma * after - before


@term("rent")
def rent(t: Transition, setting: Setting) -> Tensor:
    """-min(w ln(1+g), cap) / T: an episode's rent is bounded by the cap, so accuracy dominates parameter cost."""
    weights = setting.weights
    occupied = t.seed_params_after > 0
    alpha = torch.where(occupied, t.after.alpha.double(), 0.0)
    burden = torch.where(occupied, BASE_SLOT_RENT * setting.host_params + alpha * t.seed_params_after.double(), 0.0)
    growth = burden.sum(dim=1) / max(setting.host_params, weights.rent_floor_params)
    return -(weights.rent_weight * growth.log1p()).clamp(max=weights.rent_cap) / setting.episode_steps


@term("alpha_shock")
def alpha_shock(t: Transition, setting: Setting) -> Tensor:
    """-min(w Σ Δα² · params/host, 1): abrupt changes cost more than ramps, and going back and forth costs twice."""
    weights = setting.weights
    change = (t.after.alpha - t.before.alpha).double().square()
    size = torch.maximum(t.seed_params_before, t.seed_params_after).double()
    shock = (change * size).sum(dim=1) / max(setting.host_params, weights.rent_floor_params)
    return -(weights.alpha_shock_weight * shock).clamp(max=ALPHA_SHOCK_CAP)


@term("intervention")
def intervention(t: Transition, setting: Setting) -> Tensor:
    """A small price of every op that took effect, WAIT being free."""
    return -setting.weights.intervention_cost * (t.op != Op.WAIT).double()


@term("fossilize")
def fossilize(t: Transition, setting: Setting) -> Tensor:
    """At FOSSILIZE: w tanh(1/3) · min(1, dwell/3) for a seed that provably helps, else a small penalty (facts §10.7).

    Helps: c ≥ max(threshold, 2 se) as measured before the op, and the host is better than at germination (a seed that
    only made itself indispensable has c > 0 but no progress).
    """
    target = t.slot[:, None]
    c = significant_contribution(t.before, setting.weights.contribution_threshold_pct).gather(1, target)[:, 0]
    p = progress(t.before).gather(1, target)[:, 0]
    dwell = t.before.dwell.gather(1, target)[:, 0].double()
    bonus = setting.weights.fossilize_weight * math.tanh(1 / 3) * (dwell / MIN_HOLDING_STEPS).clamp(max=1.0)
    paid = torch.where((c > 0) & (p > 0), bonus, NOT_CONTRIBUTING)
    return torch.where(t.op == Op.FOSSILIZE, paid, 0.0)


@term("terminal")
def terminal(t: Transition, setting: Setting) -> Tensor:
    """w · committed accuracy, once, at the end of an episode."""
    return torch.where(t.ended, setting.weights.terminal_weight * t.committed_accuracy.double(), 0.0)


@term("sparse")
def sparse(t: Transition, setting: Setting) -> Tensor:
    """At the end only: scale · clip(committed accuracy - price of the fossilized parameters, ±1); clip before scale."""
    weights = setting.weights
    kept = torch.where(t.after.stage == Stage.FOSSILIZED, t.seed_params_after, 0).sum(dim=1).double()
    base = t.committed_accuracy.double() / 100.0 - weights.param_penalty * kept / (
        setting.param_budget * setting.host_params
    )
    return torch.where(t.ended, weights.sparse_scale * base.clamp(-1.0, 1.0), 0.0)


@term("death")
def death(t: Transition, setting: Setting) -> Tensor:
    """The penalty of the step whose host had to be rolled back."""
    return setting.weights.death_penalty * t.panicked.double()
