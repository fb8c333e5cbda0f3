"""Components of the reward from recorded states, each by its definition (docs/metrics.md)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simic.certify.life import GERMINATE, LIVE, STAGES, WAIT
from simic.certify.rewards import DWELL_MOST, DWELL_WORTH, PHI
from simic.params import Train

Array = NDArray[Any]

Steps = Mapping[str, Array]  # columns of one iteration's steps by name, [T, E] or [T, E, K]
POTENTIAL = np.array([PHI.get(stage, 0.0) for stage in STAGES])
UNFINISHED = LIVE[:-1]  # all but FOSSILIZED


class Expected(NamedTuple):
    """Hold a component ``[T, E]``, and where it is known from the record alone."""

    values: Array
    known: Array


def earlier(values: Array, first: object) -> Array:
    """Return the value before each step; ``first`` before the first one."""
    return np.concatenate((np.full_like(values[:1], first), values[:-1]))


def potential(steps: Steps) -> Array:
    """Return Φ summed over slots after each step, ``[T, E]``."""
    stage = steps["stage"]
    worth = np.minimum(DWELL_WORTH * _steps_in_stage(steps), DWELL_MOST)
    return (POTENTIAL[stage] + np.where(np.isin(stage, UNFINISHED), worth, 0.0)).sum(axis=2)


def _steps_in_stage(steps: Steps) -> Array:
    """Count the steps of each slot in its stage, the present one included, ``[T, E, K]``."""
    stage, slots = steps["stage"], np.arange(steps["stage"].shape[2])
    germinated = (steps["effective_op"] == GERMINATE)[..., None] & (slots == steps["slot"][..., None])
    length = np.ones(stage.shape, dtype=np.int64)
    for t in range(1, len(stage)):
        length[t] = np.where((stage[t] == stage[t - 1]) & ~germinated[t], length[t - 1] + 1, 1)
    return length


def true_end(steps: Steps, train: Train) -> Array:
    """Return where a true terminal was reached ``[T, E]``: the last step under ``terminate``, or a rollback."""
    end = steps["panicked"].copy()
    if train.episode_end == "terminate":
        end[-1] = True
    return end


def _shaping(steps: Steps, train: Train, host_params: int) -> Expected:
    after = potential(steps)
    left = np.where(true_end(steps, train), 0.0, after)
    return _everywhere(train.reward.pbrs_weight * (train.ppo.gamma * left - earlier(after, 0.0)))


def _score_change(steps: Steps, train: Train, host_params: int) -> Expected:
    added = (steps["committed_params"] - host_params) / host_params
    score = steps["committed_accuracy"] - train.price * added
    known = np.ones(score.shape, dtype=bool)
    known[0] = False  # what the host scored before its first step is not recorded
    weight = train.reward.score.weight
    return Expected(weight * (train.ppo.gamma * score - earlier(score, np.nan)), known & np.isfinite(score))


def _intervention(steps: Steps, train: Train, host_params: int) -> Expected:
    return _everywhere(-train.reward.intervention_cost * (steps["effective_op"] != WAIT))


def _death(steps: Steps, train: Train, host_params: int) -> Expected:
    return _everywhere(train.reward.death_penalty * steps["panicked"])


def _terminal(steps: Steps, train: Train, host_params: int) -> Expected:
    paid = np.zeros(steps["reward"].shape)
    ended = ~steps["panicked"][-1]
    paid[-1] = np.where(ended, train.reward.shaped.terminal_weight * steps["committed_accuracy"][-1], 0.0)
    return _everywhere(paid)


def _everywhere(values: Array) -> Expected:
    return Expected(values, np.ones(values.shape, dtype=bool))


KNOWN: dict[str, Callable[[Steps, Train, int], Expected]] = {
    "shaping": _shaping,
    "score_change": _score_change,
    "intervention": _intervention,
    "death": _death,
    "terminal": _terminal,
}


def deviation(name: str, steps: Steps, train: Train, host_params: int) -> Array:
    """Return |recorded − expected| of a known component, ``[T, E]``; 0 where rows are invalid or it is unknown."""
    expected = KNOWN[name](steps, train, host_params)
    known = expected.known & steps["valid"]
    return np.where(known, np.abs(steps[f"components.{name}"] - np.where(known, expected.values, 0.0)), 0.0)
