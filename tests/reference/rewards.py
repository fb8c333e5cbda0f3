"""Rewards of one host: the modes ``score`` and ``shaped``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simic.params import Train
from tests.reference.life import FOSSILIZE, FOSSILIZED, GERMINATED, HOLDING, LIVE, WAIT, Slot

PHI = {GERMINATED: 1.0, 2: 2.0, 3: 3.5, HOLDING: 5.5, FOSSILIZED: 7.5}
DWELL_WORTH = 0.3
DWELL_MOST = 2.0
SLOT_RENT = 0.0039  # of the host's parameters
SHOCK_MOST = 1.0
USELESS = -0.2
HOLDING_STEPS = 3  # for the whole bonus
MODES = ("score", "shaped")


@dataclass(frozen=True)
class State:
    """Hold the inputs of the reward; the accuracy in points."""

    slots: Sequence[Slot]
    seed_params: Sequence[int]
    committed_accuracy: float

    @property
    def kept_params(self) -> int:
        """Count the parameters of the committed network's seeds."""
        return sum(
            size
            for slot, size in zip(self.slots, self.seed_params, strict=True)
            if slot.stage == FOSSILIZED
        )


@dataclass(frozen=True)
class Step:
    """Hold a transition (s, effective op, s'); ``ended``: it was the last."""

    before: State
    after: State
    op: int
    slot: int
    ended: bool

    def terminal(self, train: Train) -> bool:
        """Tell whether s' is a true terminal."""
        return self.ended and train.episode_end == "terminate"


def potential(slots: Sequence[Slot]) -> float:
    """Return Φ: the worth of each stage, rising a little with the time in it."""
    worth = 0.0
    for slot in slots:
        worth += PHI.get(slot.stage, 0.0)
        if slot.stage in LIVE and slot.stage != FOSSILIZED:
            worth += min(DWELL_WORTH * slot.dwell, DWELL_MOST)
    return worth


def components(step: Step, train: Train, host_params: int, steps: int) -> dict[str, float]:
    """Return the terms of the mode by name, in an episode of so many ``steps``; the reward is their sum."""
    terms = {"shaping": _shaping(step, train)}
    if train.reward.mode == "score":
        terms["score_change"] = _score_change(step, train, host_params)
    else:
        terms |= {
            "attribution": _attribution(step, train),
            "rent": _rent(step, train, host_params, steps),
            "alpha_shock": _alpha_shock(step, train, host_params),
            "fossilize": _fossilize(step, train),
            "terminal": train.reward.shaped.terminal_weight * step.after.committed_accuracy
            if step.ended
            else 0.0,
        }
    return terms | {
        "intervention": -train.reward.intervention_cost if step.op != WAIT else 0.0,
        "death": 0.0,
    }


def _shaping(step: Step, train: Train) -> float:
    after = 0.0 if step.terminal(train) else potential(step.after.slots)
    return train.reward.pbrs_weight * (train.ppo.gamma * after - potential(step.before.slots))


def _score_change(step: Step, train: Train, host_params: int) -> float:
    """Return the change of the score: points of the committed network less the price of its added parameters."""
    before, after = (
        s.committed_accuracy - train.price * s.kept_params / host_params
        for s in (step.before, step.after)
    )
    return train.reward.score.weight * (train.ppo.gamma * after - before)


def _sure_contribution(slot: Slot, train: Train) -> float:
    """Return a seed's contribution, 0 where it lies within its noise."""
    seed = slot.seed
    if math.isnan(seed.contribution):
        return 0.0
    noise = max(train.reward.contribution_threshold_pct, 2.0 * seed.contribution_se)
    return seed.contribution if abs(seed.contribution) >= noise else 0.0


def _progress(slot: Slot) -> float:
    return slot.seed.accuracy - slot.seed.germination_accuracy


def _credit(slot: Slot, train: Train) -> float:
    """Return the credit of a seed that is not fossilized: its share of the host's gain since germination."""
    if slot.stage not in LIVE or slot.stage == FOSSILIZED:
        return 0.0
    c = _sure_contribution(slot, train)
    p = _progress(slot)
    if c > 0:
        c = 0.0 if not p > 0 else c if c < p else 2.0 * p * c / (p + c)
    return train.reward.shaped.contribution_weight * c


def _attribution(step: Step, train: Train) -> float:
    """Return the change of credit; fossilizing keeps it."""
    before = after = 0.0
    for old, new in zip(step.before.slots, step.after.slots, strict=True):
        kept = new.stage == FOSSILIZED and old.stage != FOSSILIZED
        before += 0.0 if kept else _credit(old, train)
        after += _credit(new, train)
    return train.ppo.gamma * (0.0 if step.terminal(train) else after) - before


def _rent(step: Step, train: Train, host_params: int, steps: int) -> float:
    weights = train.reward
    burden = 0.0
    for slot, size in zip(step.after.slots, step.after.seed_params, strict=True):
        if size > 0:
            burden += SLOT_RENT * host_params + slot.seed.alpha * size
    due = weights.shaped.rent_weight * math.log1p(
        burden / max(host_params, weights.rent_floor_params)
    )
    return -min(due, weights.rent_cap) / steps


def _alpha_shock(step: Step, train: Train, host_params: int) -> float:
    weights = train.reward
    moved = 0.0
    for k, (old, new) in enumerate(zip(step.before.slots, step.after.slots, strict=True)):
        size = max(step.before.seed_params[k], step.after.seed_params[k])
        moved += (new.seed.alpha - old.seed.alpha) ** 2 * size
    shock = weights.shaped.alpha_shock_weight * moved / max(host_params, weights.rent_floor_params)
    return -min(shock, SHOCK_MOST)


def _fossilize(step: Step, train: Train) -> float:
    if step.op != FOSSILIZE:
        return 0.0
    slot = step.before.slots[step.slot]
    if _sure_contribution(slot, train) > 0 and _progress(slot) > 0:
        return (
            train.reward.shaped.fossilize_weight
            * math.tanh(1.0 / 3.0)
            * min(1.0, slot.dwell / HOLDING_STEPS)
        )
    return USELESS
