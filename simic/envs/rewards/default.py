"""The default reward, mode ``score``: what every step changed of the score that an episode ends with.

    reward = shaping + score_change + intervention + death

By default the weights of ``shaping`` and ``intervention`` are 0. Mode ``sparse`` pays once, at the end.
"""

import torch
from torch import Tensor

from simic.envs.rewards.transition import Setting, Transition, mode, score, term
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Op, Slots, Stage
from simic.transfer import constant

# Stage potentials by Stage value. A seed gains RAMP per epoch of dwell up to RAMP_MAX. FOSSILIZED has no
# ramp and equals the largest HOLDING, so that fossilizing late never gives shaping back.
RAMP, RAMP_MAX = 0.3, 2.0
STAGE_POTENTIAL = (0.0, 1.0, 2.0, 3.5, 5.5, 5.5 + RAMP_MAX, 0.0, 0.0, 0.0)

UNFINISHED_STAGES = LIVE_STAGES - {Stage.FOSSILIZED}


def unfinished(slots: Slots) -> Tensor:
    """Return bool ``[E, K]``: live seeds that are not fossilized."""
    return in_stages(slots.stage, UNFINISHED_STAGES)


def potential(slots: Slots) -> Tensor:
    """Return Φ(s) = Σ over all slots of Φ(stage) + min(0.3 · dwell, 2), ``[E]`` float64."""
    table = constant(STAGE_POTENTIAL, torch.float64, slots.stage.device)
    ramp = torch.where(unfinished(slots), (RAMP * slots.dwell.double()).clamp(max=RAMP_MAX), 0.0)
    return (table[slots.stage] + ramp).sum(dim=1)


@term("shaping")
def shaping(t: Transition, setting: Setting) -> Tensor:
    """Return F = w(γΦ(s') - Φ(s)) with Φ(true terminal) = 0."""
    after = torch.where(t.terminal, 0.0, potential(t.after))
    return setting.weights.pbrs_weight * (setting.gamma * after - potential(t.before))


@term("score_change", objective=True)
def score_change(t: Transition, setting: Setting) -> Tensor:
    """Pay the discounted change of w · score, the true terminal's included: they sum to the score at the end."""
    first = t.committed_accuracy_before.double().nan_to_num(0.0)  # a host may begin without a finite loss
    before = score(first, t.kept_params_before, setting.host_params, setting.price)
    after = score(t.committed_accuracy.double(), t.kept_params, setting.host_params, setting.price)
    return setting.weights.score.weight * (setting.gamma * after - before)


@term("intervention")
def intervention(t: Transition, setting: Setting) -> Tensor:
    """Charge a small price for every op that took effect; WAIT is free."""
    return -setting.weights.intervention_cost * (t.op != Op.WAIT).double()


@term("death")
def death(t: Transition, setting: Setting) -> Tensor:
    """Charge the penalty in the step whose host had to be rolled back."""
    return setting.weights.death_penalty * t.panicked.double()


@term("sparse", objective=True)
def sparse(t: Transition, setting: Setting) -> Tensor:
    """Pay at the end: scale · clip(committed accuracy - price of the fossilized parameters, ±1); clip before scale."""
    weights, budget = setting.weights.sparse, setting.param_budget * setting.host_params
    base = t.committed_accuracy.double() / 100.0 - weights.param_penalty * t.kept_params / budget
    return torch.where(t.ended, weights.scale * base.clamp(-1.0, 1.0), 0.0)


mode("score", ("shaping", "score_change", "intervention", "death"))
mode("sparse", ("sparse", "death"))
