"""Terms that are what a mode is about: accuracy or loss of what was grown."""

import torch
from torch import Tensor

from simic.envs.rewards.potential import progress, significant_contribution
from simic.envs.rewards.registration import term
from simic.envs.rewards.transition import Setting, Transition, bounded_loss, score
from simic.growth.life.vocabulary import Stage

LOSS_CLIP_SIGMAS = 5.0  # improvement paid in one step, at most


@term("terminal", objective=True)
def terminal(t: Transition, setting: Setting) -> Tensor:
    """w · committed accuracy, once, at the end of an episode."""
    return torch.where(t.ended, setting.weights.shaped.terminal_weight * t.committed_accuracy.double(), 0.0)


def _kept(t: Transition) -> Tensor:
    """Parameters of fossilized seeds in s' ``[E]`` float64."""
    return torch.where(t.after.stage == Stage.FOSSILIZED, t.seed_params_after, 0).sum(dim=1).double()


@term("sparse", objective=True)
def sparse(t: Transition, setting: Setting) -> Tensor:
    """At the end only: scale · clip(committed accuracy - price of the fossilized parameters, ±1); clip before scale."""
    weights = setting.weights
    base = t.committed_accuracy.double() / 100.0 - weights.sparse.param_penalty * _kept(t) / (
        setting.param_budget * setting.host_params
    )
    return torch.where(t.ended, weights.sparse.scale * base.clamp(-1.0, 1.0), 0.0)


@term("simplified_terminal", objective=True)
def simplified_terminal(t: Transition, setting: Setting) -> Tensor:
    """At the end: w · committed accuracy / 100, and w_seed for each fossilized seed that provably helps."""
    weights = setting.weights
    helps = significant_contribution(t.after, weights.contribution_threshold_pct) > 0
    helps &= (t.after.stage == Stage.FOSSILIZED) & (progress(t.after) > 0)
    accuracy = weights.simplified.accuracy_weight * t.committed_accuracy.double() / 100.0
    return torch.where(t.ended, accuracy + weights.simplified.seed_weight * helps.sum(dim=1), 0.0)


@term("basic_terminal", objective=True)
def basic_terminal(t: Transition, setting: Setting) -> Tensor:
    """At the end: w · committed accuracy gained over the episode / 100."""
    gained = t.committed_accuracy.double() - t.ledgers.first_accuracy
    return torch.where(t.ended, setting.weights.basic.accuracy_weight * gained / 100.0, 0.0)


@term("score_change", objective=True)
def score_change(t: Transition, setting: Setting) -> Tensor:
    """Discounted change of w · score, the true terminal's included: an episode's sum is the score it ends with."""
    return setting.weights.score.weight * (setting.gamma * score_after(t, setting) - t.ledgers.score)


def score_after(t: Transition, setting: Setting) -> Tensor:
    """Of s' ``[E]`` float64."""
    return score(t.committed_accuracy.double(), _kept(t), setting.host_params, setting.price)


@term("loss_improvement", objective=True)
def loss_improvement(t: Transition, setting: Setting) -> Tensor:
    """Discounted change of w · (chance - tracked loss) / σ: positive when the loss falls. It telescopes.

    σ is a share of the loss of a uniform guess. What only unfossilized seeds achieved is taken back at the end.
    """
    weights = setting.weights
    unit = weights.loss.weight / (weights.loss.sigma_chances * setting.chance_loss)
    before = setting.chance_loss - t.ledgers.tracked_loss
    after = setting.chance_loss - tracked_loss_after(t, setting)
    return unit * (setting.gamma * after - before)


def tracked_loss_after(t: Transition, setting: Setting) -> Tensor:
    """Loss in s' down to which improvement is paid ``[E]``: falls by at most 5 σ a step, rises at once.

    Clipping the payment instead would pay for a spike that is undone slowly.
    """
    most = LOSS_CLIP_SIGMAS * setting.weights.loss.sigma_chances * setting.chance_loss
    tracked = torch.maximum(bounded_loss(t.loss, setting.chance_loss), t.ledgers.tracked_loss - most)
    final = torch.maximum(tracked, bounded_loss(t.committed_loss, setting.chance_loss))
    return torch.where(t.terminal, final, tracked)


@term("loss_terminal", objective=True)
def loss_terminal(t: Transition, setting: Setting) -> Tensor:
    """At the end: w · clip((chance - committed loss) / (chance - target), 0, 1)."""
    weights, chance = setting.weights, setting.chance_loss
    reached = (chance - bounded_loss(t.committed_loss, chance)) / (chance * (1.0 - weights.loss.target_chances))
    return torch.where(t.ended, weights.loss.terminal_weight * reached.clamp(0.0, 1.0), 0.0)
