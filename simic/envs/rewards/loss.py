"""Mode ``loss``: what every step improves of the validation loss, in units of sigma, a share of the loss of a uniform
guess.
"""

import torch
from torch import Tensor

from simic.envs.rewards.transition import Ledger, Setting, Transition, mode, term
from simic.growth.life.vocabulary import Slots

LOSS_CLIP_SIGMAS = 5.0  # improvement paid in one step, at most
LOSS_RENT_GRACE = 3  # age below which a seed pays no rent


def bounded_loss(loss: Tensor, chance_loss: Tensor) -> Tensor:
    """Return the loss in nats, float64, at most that of a uniform guess: nothing is worse than knowing nothing."""
    known = loss.double()
    return torch.minimum(torch.where(known.isnan(), chance_loss, known), chance_loss)


@term("loss_improvement", objective=True)
def loss_improvement(t: Transition, setting: Setting) -> Tensor:
    """Pay the discounted change of w · (chance - tracked loss) / σ: positive when the loss falls. It telescopes.

    What only unfossilized seeds achieved is taken back at the end.
    """
    weights = setting.weights
    unit = weights.loss.weight / (weights.loss.sigma_chances * setting.chance_loss)
    before = setting.chance_loss - t.ledgers["tracked_loss"]
    after = setting.chance_loss - tracked_loss_after(t, setting)
    return unit * (setting.gamma * after - before)


def first_loss(slots: Slots, loss: Tensor, setting: Setting) -> Tensor:
    """Return the loss of the first validation, bounded ``[E]``."""
    return bounded_loss(loss, setting.chance_loss)


def tracked_loss_after(t: Transition, setting: Setting) -> Tensor:
    """Return the loss in s' down to which improvement is paid ``[E]``: falls by at most 5 σ a step, rises at once.

    Clipping the payment instead would pay for a spike that is undone slowly.
    """
    most = LOSS_CLIP_SIGMAS * setting.weights.loss.sigma_chances * setting.chance_loss
    tracked = torch.maximum(bounded_loss(t.loss, setting.chance_loss), t.ledgers["tracked_loss"] - most)
    final = torch.maximum(tracked, bounded_loss(t.committed_loss, setting.chance_loss))
    return torch.where(t.terminal, final, tracked)


@term("loss_rent")
def loss_rent(t: Transition, setting: Setting) -> Tensor:
    """Charge -min(w ln(1+g), cap / T) of seeds of age 3 or more, whatever their alpha."""
    weights = setting.weights
    held = torch.where(t.after.age >= LOSS_RENT_GRACE, t.seed_params_after, 0).sum(dim=1).double()
    growth = held / max(setting.host_params, weights.rent_floor_params)
    return -(weights.loss.rent_weight * growth.log1p()).clamp(max=weights.rent_cap / setting.episode_steps)


@term("loss_terminal", objective=True)
def loss_terminal(t: Transition, setting: Setting) -> Tensor:
    """Pay at the end w · clip((chance - committed loss) / (chance - target), 0, 1)."""
    weights, chance = setting.weights, setting.chance_loss
    reached = (chance - bounded_loss(t.committed_loss, chance)) / (chance * (1.0 - weights.loss.target_chances))
    return torch.where(t.ended, weights.loss.terminal_weight * reached.clamp(0.0, 1.0), 0.0)


mode(
    "loss",
    ("shaping", "loss_improvement", "loss_rent", "intervention", "loss_terminal", "death"),
    {"tracked_loss": Ledger(first_loss, tracked_loss_after)},
)
