"""How what is remembered goes on: a pure function of the transition, the same in every mode."""

from dataclasses import replace

from simic.envs.rewards.differences import escrow_after
from simic.envs.rewards.keeping import boosts_after, drip_after
from simic.envs.rewards.objectives import score_after, tracked_loss_after
from simic.envs.rewards.transition import Ledgers, Setting, Transition


def advance(t: Transition, setting: Setting) -> Ledgers:
    """The ledgers of s'."""
    rate, contribution = drip_after(t, setting)
    return replace(
        t.ledgers,
        escrow=escrow_after(t, setting),
        drip_rate=rate,
        drip_contribution=contribution,
        boosts=boosts_after(t, setting),
        tracked_loss=tracked_loss_after(t, setting),
        score=score_after(t, setting),
    )
