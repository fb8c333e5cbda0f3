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
    """Return the value before each step; ``first`` before the first one."""
    return np.concatenate((np.full_like(values[:1], first), values[:-1]))


def asked(steps: Steps) -> Array:
    """Return where a GERMINATE took effect, ``[T, E, K]``."""
    count = steps["stage"].shape[2]
    return (steps["effective_op"] == GERMINATE)[..., None] & (np.arange(count) == steps["slot"][..., None])


def ran_for(stage: Array, begun: Array) -> Array:
    """Count the steps of each slot in its stage, the present one included, ``[T, E, K]``; where ``begun`` the count
    starts anew.
    """
    length = np.ones(stage.shape, dtype=np.int64)
    for t in range(1, len(stage)):
        length[t] = np.where((stage[t] == stage[t - 1]) & ~begun[t], length[t - 1] + 1, 1)
    return length
