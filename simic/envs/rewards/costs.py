"""Terms that only ever cost: size, haste, indecision, death."""

import torch
from torch import Tensor

from simic.envs.rewards.potential import helps, of_target, progress, unfinished
from simic.envs.rewards.registration import term
from simic.envs.rewards.transition import Setting, Transition
from simic.growth.life.vocabulary import Op, Stage

BASE_SLOT_RENT = 0.0039  # share of the host's parameters that an occupied slot pays for itself
ALPHA_SHOCK_CAP = 1.0  # of one step
LOSS_RENT_GRACE = 3  # age below which a seed pays no rent in the loss family
# Per step and seed; ours.
WARNING_FIRST, WARNING_SLOPE, WARNING_MAX = 0.1, 0.05, 0.3  # BLENDING while the host is worse than at germination
INDECISION_AFTER, INDECISION_FIRST, INDECISION_SLOPE, INDECISION_MAX = 2, 0.1, 0.05, 0.3  # HOLDING a good seed
FREE_SLOTS, OCCUPANCY_COST, MAINTENANCE_COST = 1, 0.01, 0.002


@term("rent")
def rent(t: Transition, setting: Setting) -> Tensor:
    """-min(w ln(1+g), cap) / T: an episode's rent is bounded by the cap, so accuracy dominates parameter cost."""
    weights = setting.weights
    occupied = t.seed_params_after > 0
    alpha = torch.where(occupied, t.after.alpha.double(), 0.0)
    burden = torch.where(occupied, BASE_SLOT_RENT * setting.host_params + alpha * t.seed_params_after.double(), 0.0)
    growth = burden.sum(dim=1) / max(setting.host_params, weights.rent_floor_params)
    return -(weights.shaped.rent_weight * growth.log1p()).clamp(max=weights.rent_cap) / setting.episode_steps


@term("basic_rent")
def basic_rent(t: Transition, setting: Setting) -> Tensor:
    """-w · seed parameters / budget / T, whatever their alpha: at most w in an episode."""
    budget = setting.param_budget * setting.host_params
    held = t.seed_params_after.sum(dim=1).double()
    return -setting.weights.basic.rent_weight * (held / budget).clamp(max=1.0) / setting.episode_steps


@term("loss_rent")
def loss_rent(t: Transition, setting: Setting) -> Tensor:
    """-min(w ln(1+g), cap / T) of seeds of age 3 or more, whatever their alpha."""
    weights = setting.weights
    held = torch.where(t.after.age >= LOSS_RENT_GRACE, t.seed_params_after, 0).sum(dim=1).double()
    growth = held / max(setting.host_params, weights.rent_floor_params)
    return -(weights.loss.rent_weight * growth.log1p()).clamp(max=weights.rent_cap / setting.episode_steps)


@term("alpha_shock")
def alpha_shock(t: Transition, setting: Setting) -> Tensor:
    """-min(w Σ Δα² · params/host, 1): abrupt changes cost more than ramps, and going back and forth costs twice."""
    weights = setting.weights
    change = (t.after.alpha - t.before.alpha).double().square()
    size = torch.maximum(t.seed_params_before, t.seed_params_after).double()
    shock = (change * size).sum(dim=1) / max(setting.host_params, weights.rent_floor_params)
    return -(weights.shaped.alpha_shock_weight * shock).clamp(max=ALPHA_SHOCK_CAP)


@term("intervention")
def intervention(t: Transition, setting: Setting) -> Tensor:
    """A small price of every op that took effect, WAIT being free."""
    return -setting.weights.intervention_cost * (t.op != Op.WAIT).double()


@term("early_prune")
def early_prune(t: Transition, setting: Setting) -> Tensor:
    """The penalty of pruning a seed, or putting another in its place, before it could prove itself."""
    weights = setting.weights
    young = of_target(t.before.age, t) < weights.minimal.early_prune_age
    gone = (t.op == Op.PRUNE) | ((t.op == Op.GERMINATE) & of_target(unfinished(t.before), t))
    return weights.minimal.early_prune_penalty * (gone & young).double()


@term("blending_warning", weight="blending_warning_weight")
def blending_warning(t: Transition, setting: Setting) -> Tensor:
    """-w (0.1 + min(0.05 · dwell, 0.3)) for each BLENDING seed whose host is worse than at its germination."""
    warning = WARNING_FIRST + (WARNING_SLOPE * t.after.dwell.double()).clamp(max=WARNING_MAX)
    worse = (t.after.stage == Stage.BLENDING) & (progress(t.after) < 0)
    return -setting.weights.shaped.blending_warning_weight * torch.where(worse, warning, 0.0).sum(dim=1)


@term("indecision", weight="indecision_weight")
def indecision(t: Transition, setting: Setting) -> Tensor:
    """-w min(0.1 + 0.05 (dwell - 2), 0.3) for each good seed in HOLDING since 2 epochs that is not decided upon now."""
    late = (t.before.dwell - INDECISION_AFTER).double()
    hesitation = (INDECISION_FIRST + INDECISION_SLOPE * late).clamp(max=INDECISION_MAX)
    targeted = torch.arange(t.before.stage.shape[1], device=t.slot.device) == t.slot[:, None]
    decided = targeted & ((t.op == Op.FOSSILIZE) | (t.op == Op.PRUNE))[:, None]
    good = (t.before.stage == Stage.HOLDING) & helps(t.before, setting.weights.contribution_threshold_pct)
    waits = good & (late >= 0) & ~decided
    return -setting.weights.shaped.indecision_weight * torch.where(waits, hesitation, 0.0).sum(dim=1)


@term("occupancy", weight="occupancy_weight")
def occupancy(t: Transition, setting: Setting) -> Tensor:
    """-w (0.01 for each unfossilized seed beyond the first + 0.002 for each fossilized one)."""
    beyond = (unfinished(t.after).sum(dim=1) - FREE_SLOTS).clamp(min=0).double()
    kept = (t.after.stage == Stage.FOSSILIZED).sum(dim=1).double()
    return -setting.weights.shaped.occupancy_weight * (OCCUPANCY_COST * beyond + MAINTENANCE_COST * kept)


@term("death")
def death(t: Transition, setting: Setting) -> Tensor:
    """The penalty of the step whose host had to be rolled back."""
    return setting.weights.death_penalty * t.panicked.double()
