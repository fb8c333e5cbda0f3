"""Components of the reward from recorded states, each by its definition (docs/metrics.md)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simic.audit.recompute.arrays import UNFINISHED, WAIT, Array, Steps, asked, earlier, ran_for
from simic.params import Train

# Φ by stage: DORMANT, GERMINATED, TRAINING, BLENDING, HOLDING, FOSSILIZED, PRUNED, EMBARGOED, RESETTING.
POTENTIAL = np.array([0.0, 1.0, 2.0, 3.5, 5.5, 7.5, 0.0, 0.0, 0.0])
RISE, MOST = 0.3, 2.0  # of an unfinished seed, by step in its stage


class Expected(NamedTuple):
    """Hold a component ``[T, E]``, and where it is known from the record alone."""

    values: Array
    known: Array


def potential(steps: Steps) -> Array:
    """Return Φ summed over slots after each step, ``[T, E]``."""
    stage = steps["stage"]
    rise = np.where(np.isin(stage, UNFINISHED), np.minimum(RISE * ran_for(stage, asked(steps)), MOST), 0.0)
    return (POTENTIAL[stage] + rise).sum(axis=2)


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
