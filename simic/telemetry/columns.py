"""Name the columns that are recorded of the hosts of an iteration, in one table.

Names are those of the published tables (docs/metrics.md). Steps are ``[T, E]`` or ``[T, E, K]``, episodes ``[E]``,
hosts in the order of the run's env ids, events one entry each. Accuracies are points 0–100; NaN is a measurement that
was not made.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # numbers or flags: each column its own kind
Columns = dict[str, Array]

DECIDED = "decided"  # of validation episodes: the choices of every head [E, T, K]
COMPONENTS = "components"  # stands for one column each: components/rent, …


class Column(NamedTuple):
    """How a column is stored: ``int16`` for a choice from few, ``float`` for float32 or float64 as measured."""

    dtype: str
    axes: int


STEP_AXES = 2
SLOT_AXES = 3
_CHOICE = Column("int16", STEP_AXES)
_COUNT = Column("int64", STEP_AXES)
_FLAG = Column("bool", STEP_AXES)
_NUMBER = Column("float", STEP_AXES)
_SLOT_CHOICE = Column("int16", SLOT_AXES)
_SLOT_NUMBER = Column("float", SLOT_AXES)

STEPS: dict[str, Column] = {
    "op": _CHOICE,  # as sampled, like slot … alpha_curve
    "slot": _CHOICE,
    "blueprint": _CHOICE,
    "style": _CHOICE,
    "tempo": _CHOICE,
    "alpha_target": _CHOICE,
    "alpha_speed": _CHOICE,
    "alpha_curve": _CHOICE,
    "effective_op": _CHOICE,
    "gate": _CHOICE,  # -1 = the op asked none
    "gate_passed": _FLAG,
    "log_prob": _NUMBER,  # of the joint action when it was sampled
    "value": _NUMBER,
    "reward": _NUMBER,
    COMPONENTS: _NUMBER,  # of the reward; they sum to it
    "live_accuracy": _NUMBER,
    "committed_accuracy": _NUMBER,
    "all_off_accuracy": _NUMBER,
    "val_loss": _NUMBER,
    "train_loss": _NUMBER,
    "host_grad_norm": _NUMBER,  # mean over the epoch's minibatches, before clipping
    "seed_grad_norm": _SLOT_NUMBER,
    "stage": _SLOT_CHOICE,
    "slot_blueprint": _SLOT_CHOICE,
    "alpha": _SLOT_NUMBER,
    "contribution": _SLOT_NUMBER,
    "contribution_se": _SLOT_NUMBER,
    "params": _COUNT,
    "committed_params": _COUNT,
    "flops": _COUNT,
    "committed_flops": _COUNT,
    "panicked": _FLAG,
    "cause": _CHOICE,
    "valid": _FLAG,  # False after a rollback: no experience
}
EPISODES: dict[str, Column] = {
    "env_id": Column("int64", 1),
    "task": Column("int64", 1),  # its place in the bank
    "return": Column("float", 1),  # undiscounted sum of rewards
    "length": Column("int64", 1),  # valid steps
    "committed_accuracy": Column("float", 1),
    "score": Column("float", 1),  # committed accuracy less the price of what it took
    "live_accuracy": Column("float", 1),
    "params": Column("int64", 1),
    "committed_params": Column("int64", 1),
    "committed_flops": Column("int64", 1),  # per sample
    "host_grad_norm": Column("float", 1),  # mean over its steps
    "seed_grad_norm": Column("float", 1),  # mean over steps and seeds that trained
    "germinated": Column("int64", 1),
    "fossilized": Column("int64", 1),
    "pruned": Column("int64", 1),
    "panicked": Column("bool", 1),
}


class TableLayout(NamedTuple):
    """The columns of the steps and of the episodes of a task."""

    steps: dict[str, Column]
    episodes: dict[str, Column]


ACTIONS = "actions"  # stands for one column for each discrete head: actions/action_0, …
NUMBERS = "numbers"  # for one of each number of continuous heads: numbers/action_0, …
GROWTH = TableLayout(STEPS, EPISODES)
# Of a Gymnasium environment: episodes go on from rollout to rollout.
GYM = TableLayout(
    {
        ACTIONS: _COUNT,  # counted from 0
        NUMBERS: _NUMBER,  # bounded ones in units of half the range, from its middle, before they are clipped
        "log_prob": _NUMBER,  # of the joint action when it was sampled
        "value": _NUMBER,
        "next_value": _NUMBER,  # of the state that the step led to, before a reset
        "reward": _NUMBER,
        "terminated": _FLAG,
        "truncated": _FLAG,
        "starts": _FLAG,  # the first step of an episode
        "seen": _COUNT,  # a hash of the observation decided on
        "valid": _FLAG,
    },
    {
        "env_id": Column("int64", 1),
        "episodes": Column("int64", 1),  # that ended in the iteration
        "return": Column("float", 1),  # their mean, undiscounted; NaN where none ended
        "length": Column("float", 1),  # likewise
    },
)
EVENTS: dict[str, Column] = {
    "step": Column("int64", 1),
    "env": Column("int64", 1),
    "slot": Column("int64", 1),  # -1 = the host as a whole
    "text": Column("int64", 1),  # place in EventColumns.texts
}


@dataclass(frozen=True)
class EventColumns:
    """The events of hosts and slots: an entry per event, and the few different texts, each a name and a detail."""

    columns: Columns
    texts: list[tuple[str, str]] = field(default_factory=list)


def arranged(columns: Columns, table: dict[str, Column]) -> Columns:
    """Bring columns into the order of the table; ValueError where names, types or axes are not the table's."""
    # A name such as "components" stands for all columns "components/…".
    nested = {
        part: [name for name in columns if name.startswith(f"{part}/")]
        for part in (COMPONENTS, ACTIONS, NUMBERS)
    }
    order = [column for name in table for column in nested.get(name, [name])]
    # Looked at in the first iteration: when a run is published it would be too late.
    if columns.keys() != set(order):
        raise ValueError(
            f"telemetry: columns {sorted(columns.keys() ^ set(order))} are missing or unknown"
        )
    for name, values in columns.items():
        dtype, axes = table[name.partition("/")[0]]
        # A float may be of either kind, as it was measured.
        if values.ndim != axes or not str(values.dtype).startswith(dtype):
            raise ValueError(
                f"telemetry: column {name} is {values.dtype} with {values.ndim} axes, not {dtype}, {axes}"
            )
    return {name: columns[name] for name in order}


def mean_measured(values: Array) -> float:
    """Average over the hosts that were measured; NaN where none was."""
    # A host whose measurement failed says nothing of the others.
    measured = values[np.isfinite(values)].tolist()
    return sum(measured) / len(measured) if measured else math.nan


def published(values: Array) -> Array:
    """Convert values to those of tables: int64, flags, or float64 with one bit pattern for NaN."""
    # NaN has many bit patterns, and equal runs must publish equal bytes.
    if values.dtype.kind != "f":
        return values.astype(np.int64) if values.dtype == np.int16 else values
    return np.where(np.isnan(values), np.nan, values.astype(np.float64))
