"""Arrays of one iteration's steps: rows are steps 1 to T, columns hosts, then slots."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Steps = Mapping[str, Array]  # columns of one iteration by name, [T, E] or [T, E, K]

# Stages and ops as numbers of the published tables (docs/glossary.md).
DORMANT, GERMINATED, TRAINING, BLENDING, HOLDING, FOSSILIZED, PRUNED, EMBARGOED, RESETTING = range(9)
WAIT, GERMINATE, SET_ALPHA_TARGET, PRUNE, FOSSILIZE, ADVANCE = range(6)
LIVE = (GERMINATED, TRAINING, BLENDING, HOLDING, FOSSILIZED)
UNFINISHED = LIVE[:-1]


def earlier(values: Array, first: object) -> Array:
    """Each step's value before it; ``first`` before the first one."""
    return np.concatenate((np.full_like(values[:1], first), values[:-1]))


def asked(steps: Steps) -> Array:
    """Where a GERMINATE took effect, ``[T, E, K]``."""
    count = steps["stage"].shape[2]
    return (steps["effective_op"] == GERMINATE)[..., None] & (np.arange(count) == steps["slot"][..., None])


def ran_for(stage: Array, begun: Array) -> Array:
    """How many steps each slot has been in its stage, the present one included, ``[T, E, K]``; a seed that has
    ``begun [T, E, K]`` in a step is new in its stage.
    """
    length = np.ones(stage.shape, dtype=np.int64)
    for t in range(1, len(stage)):
        length[t] = np.where((stage[t] == stage[t - 1]) & ~begun[t], length[t - 1] + 1, 1)
    return length


def of_slot(values: Array, slot: Array) -> Array:
    """The entry of each host's slot, ``[T, E, K]`` → ``[T, E]``."""
    return np.take_along_axis(values, slot[..., None].astype(np.int64), axis=2)[..., 0]
