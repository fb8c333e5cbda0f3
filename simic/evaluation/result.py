"""Define the results of headroom and evaluation as frozen trees; their files are canonical JSON."""

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from simic.data.batches import TaskGroup
from simic.errors import SimicError
from simic.evaluation.intervals import Interval, PairedComparison
from simic.training.machine import Machine

SCHEMA_VERSION = 10
HEADROOM_VERSION = 6
RULES_VERSION = 1
# Among the others of a report: tasks that were not made for the suite.
OUTSIDE = "outside"
# Names of the trained policy among those evaluated: greedy, sampled, and greedy without what it sees of the host.
LEARNED, SAMPLED, BLIND = "learned", "learned_sampled", "blind"
# Fields of a headroom that are tables.
TABLES = ("choosing_val_pct", "val_pct", "test_pct", "params", "flops_per_sample")
PRIMARY_ENDPOINT = (
    "score of learned, greedy, less that of the tuned hand rule, one training each: on the test splits of held-out "
    "tasks of known kinds"
)


class Frozen(BaseModel):
    """Immutable; unknown keys are errors; a missing measurement is null, never NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> str:
        """Write canonical JSON: equal results are equal bytes."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1) + "\n"


# Of every evaluation seed, step by step: the index of the choice of each head, with spaces between.
Actions = tuple[tuple[str, ...], ...]


class PerSeed(Frozen):
    """One value per evaluation seed, in the order of the seeds; of the committed network at the end of the episode."""

    test_accuracy_pct: tuple[float, ...]
    val_accuracy_pct: tuple[float, ...]
    params: tuple[int, ...]
    flops_per_sample: tuple[int, ...]
    training_flops: tuple[int, ...]
    validation_flops: tuple[int, ...]
    germinated: tuple[int, ...]
    fossilized: tuple[int, ...]
    pruned: tuple[int, ...]
    rollbacks: tuple[int, ...]


class PolicyResult(Frozen):
    """One growth policy on all evaluation seeds; means over seeds where no interval is given."""

    test_accuracy_pct: Interval
    # The interquartile mean, from 10 seeds on.
    test_accuracy_iqm_pct: Interval | None
    val_accuracy_pct: float
    params: float
    flops_per_sample: float
    # Forward and backward, of all epochs.
    training_flops: float
    # An upper bound: with every ablation.
    validation_flops: float
    # Points per 1,000 parameters.
    accuracy_per_kparam: float
    # Parameters of the committed network over those of the bare host.
    growth_ratio: float
    germinated: float
    fossilized: float
    pruned: float
    rollbacks: float
    per_seed: PerSeed


class DecisionCase(Frozen):
    """One op that took effect, or was refused by a gate, in the timeline's episode."""

    step: int
    op: str
    slot: int
    # The blueprint of the seed that the op concerns.
    blueprint: str | None
    refused_by_gate: int | None
    reward: float
    # By the policy; null of a policy without probabilities.
    probability: float | None


class Timeline(Frozen):
    """Growth of one host. Stages ``[step][slot]`` are ``Stage`` values after the step, accuracies are points on the
    validation split, null where not measured.
    """

    stages: tuple[tuple[int, ...], ...]
    blueprints: tuple[tuple[str | None, ...], ...]
    decisions: tuple[DecisionCase, ...]
    live_accuracy_pct: tuple[float | None, ...]
    committed_accuracy_pct: tuple[float | None, ...]
    rollback_steps: tuple[int, ...]


class HostDescription(Frozen):
    """The bare network that is grown."""

    model_config = ConfigDict(from_attributes=True)

    family: str
    preset: str
    slots: int
    params: int
    flops_per_sample: int


class TaskRow(Frozen):
    """A held-out task."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    kind: str
    group: TaskGroup
    classes: int


class Fixed(Frozen):
    """Networks that did not change while they were trained, one for each row; accuracy in points on the test split."""

    test_accuracy_pct: tuple[float, ...]
    # 0: not trained by epochs.
    epochs: tuple[int, ...]
    params: tuple[int, ...]
    flops_per_sample: tuple[int, ...]
    training_flops: tuple[int, ...]


class TunedRule(Frozen):
    """The best rule for episodes of so many epochs."""

    family: Literal["in order", "return to the best"]
    # BLUEPRINT at SLOT.
    order: tuple[str, ...] = Field(min_length=1)
    patience: int = Field(ge=1)  # epochs
    # Points; null: return to the best.
    threshold: float | None
    # Slope and offset of each of the order; none: as it stands.
    priorities: tuple[tuple[float, float], ...] = ()
    # Null: all of the order.
    tries: int | None = Field(default=None, ge=1)
    epochs: int = Field(ge=1)
    # Points, on the tasks that it was tuned on; the best of several, so a little too good.
    score: float
    # How many hosts the score is a mean of.
    hosts: int

    def __str__(self) -> str:
        """Describe the rule for a table."""
        end = (
            "then the best again"
            if self.threshold is None
            else f"keep above {self.threshold:g} points"
        )
        order = (
            f"the {self.tries} best aligned of {len(self.order)}"
            if self.priorities
            else ", ".join(self.order)
        )
        return f"{self.family}, {self.patience} epoch(s) each, {end}: {order}"


class TunedRules(Frozen):
    """One rule for each number of epochs, and what it cost to find them."""

    schema_version: Literal[1] = RULES_VERSION
    # Sha256 of the suite and of all that decides how its hosts grow.
    tuned_for: str
    rules: tuple[TunedRule, ...] = Field(min_length=1)
    configurations: int
    trainings: int  # of hosts


class Standing(Frozen):
    """One policy on the tasks of one group, per task: its mean score, and what it wins over the hand rule and over the
    best common schedule.
    """

    score: Interval
    # Null where no rule was played.
    over_rule: Interval | None
    over_common: Interval
    params: float


class Standings(Frozen):
    """All policies on the held-out tasks of one group."""

    tasks: int
    # What the oracle per task wins over the best common schedule.
    gap: Interval
    # Mean score with 1, 2, … trainings.
    random_search: tuple[float, ...]
    # The hand rule that the next line is about: the tuned one, where there is one.
    rule: str | None = None
    # What the oracle per task wins over that rule: what is left to learn.
    rule_gap: Interval | None = None
    policies: dict[str, Standing]
    # Mean score of every policy.
    by_kind: dict[str, dict[str, float]]


class HeadroomReport(Frozen):
    """Content of headroom.json; tables are ``[row][schedule]``, in points where nothing else is said.

    ``others`` are the same for episodes of other lengths (``6 epochs``) and for tasks from outside the suite.
    """

    schema_version: Literal[6] = HEADROOM_VERSION
    data_sha256: str
    rng_seed: int
    # Length of the episodes.
    epochs: int
    host: HostDescription
    max_seeds: int | None
    param_budget: float
    price: float
    tasks: tuple[TaskRow, ...]
    # The task of every row.
    rows: tuple[int, ...]
    schedules: tuple[str, ...]
    # The schedule that is best on the tasks of training.
    common: int
    # Host trainings that its search took.
    common_cost: int
    # [task of training in turn][schedule], on its validation split.
    search_scores: tuple[tuple[float, ...], ...]
    choosing_val_pct: tuple[tuple[float, ...], ...]
    val_pct: tuple[tuple[float, ...], ...]
    test_pct: tuple[tuple[float, ...], ...]
    params: tuple[tuple[float, ...], ...]
    flops_per_sample: tuple[tuple[float, ...], ...]
    # Host trainings behind the tables.
    grid_cost: int
    policies: dict[str, PerSeed]
    # Decisions of the same policies.
    actions: dict[str, Actions] = {}
    # The rules that ``tuned_rule`` played.
    tuned: TunedRules | None = None
    floors: dict[str, Fixed]
    # By group of tasks.
    standings: dict[str, Standings]
    # Scores on the tasks that choose the checkpoint, of what needs no controller.
    validation: dict[str, float] = {}
    others: dict[str, "HeadroomReport"] = {}
    # Parameters of the host of each row, where they are not all those of ``host``.
    bare: tuple[int, ...] = ()
    # Where it comes from, if it was not measured in this run.
    source: str = ""

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        rows = len(self.rows)
        schedules = len(self.schedules)
        if not (
            all(0 <= task < len(self.tasks) for task in self.rows) and 0 <= self.common < schedules
        ):
            raise ValueError("names a task or a schedule that it does not have")
        if any([len(row) for row in getattr(self, name)] != [schedules] * rows for name in TABLES):
            raise ValueError(f"a table is not of {rows} rows and {schedules} schedules")
        _refuse_short([*self.policies.values(), *self.floors.values()], rows)
        return self


def _refuse_short(results: Sequence["PerSeed | Fixed"], rows: int) -> None:
    """Raise ValueError where a result has not one value for each row."""
    if any(len(values) != rows for result in results for values in vars(result).values()):
        raise ValueError(f"a policy or a floor has not {rows} rows")


def joined(reports: Sequence[HeadroomReport]) -> HeadroomReport:
    """Join reports on different tasks, of hosts of different sizes; the costs of finding the schedules are those in the
    first, since all share them.
    """
    # Tasks are numbered on, so rows of later reports name theirs by higher numbers.
    first = reports[0]
    tasks: list[TaskRow] = []
    rows: list[int] = []
    for report in reports:
        rows += [len(tasks) + row for row in report.rows]
        tasks += report.tasks
    # Rows lie one after the other in all tables. Each keeps the size of its own host, which prices its growth.
    return first.model_copy(
        update={
            name: tuple(row for report in reports for row in getattr(report, name))
            for name in TABLES
        }
        | {
            "tasks": tuple(tasks),
            "rows": tuple(rows),
            "actions": {},  # of hosts of several sizes: not played again
            "bare": tuple(report.host.params for report in reports for _ in report.rows),
            "policies": {
                name: concatenated([r.policies[name] for r in reports]) for name in first.policies
            },
            "floors": {
                name: concatenated([r.floors[name] for r in reports]) for name in first.floors
            },
            "grid_cost": sum(report.grid_cost for report in reports),
        }
    )


Rows = TypeVar("Rows", PerSeed, Fixed)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """Join one policy's rows in several reports."""
    model = type(parts[0])
    return model(
        **{
            name: tuple(x for part in parts for x in getattr(part, name))
            for name in model.model_fields
        }
    )


class Case(Frozen):
    """One host under the learned policy, and the scores of schedules on the same host."""

    row: int
    # Parameters of the host's task.
    parameters: dict[str, JsonValue]
    score: float
    common: float
    oracle: str  # the schedule
    oracle_score: float
    timeline: Timeline

    @property
    def gain(self) -> float:
        """Points over the best common schedule."""
        return self.score - self.common


class Elsewhere(Frozen):
    """The trained policy in episodes of another length, or on other tasks, beside what headroom has of them."""

    epochs: int
    per_seed: dict[str, PerSeed]
    # By group of tasks.
    standings: dict[str, Standings]


class Evaluation(Frozen):
    """Content of evaluation.json."""

    schema_version: Literal[10] = SCHEMA_VERSION
    primary_endpoint: str = PRIMARY_ENDPOINT
    checkpoint: str
    checkpoint_iteration: int
    # The machine that played; its group are the rows that were computed together.
    machine: Machine
    # Host trainings that the policy's training cost.
    controller_trainings: int
    data_sha256: str
    rng_seed: int
    eval_seeds: int
    episode_steps: int
    test_samples: int
    tasks: tuple[TaskRow, ...]
    # The task of each evaluation seed.
    rows: tuple[int, ...]
    host: HostDescription
    # By group of tasks.
    standings: dict[str, Standings]
    policies: dict[str, PolicyResult]
    # The networks that the first policy ended with, from the first step.
    static_final: dict[str, Fixed]
    # Of test accuracy, in points.
    comparisons: tuple[PairedComparison, ...]
    # Of the trained policy, by the name it was evaluated under.
    actions: dict[str, Actions]
    # As in headroom: episodes of other lengths, tasks from outside the suite.
    others: dict[str, "Elsewhere"]
    # Hosts that gained most over the best common schedule, then those that lost most.
    cases: tuple[Case, ...]

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        rows = len(self.rows)
        if not all(0 <= task < len(self.tasks) for task in self.rows):
            raise ValueError("names a task that it does not have")
        if not all(0 <= case.row < rows and LEARNED in self.policies for case in self.cases):
            raise ValueError("shows a host that it does not have")
        _refuse_short(
            [*(policy.per_seed for policy in self.policies.values()), *self.static_final.values()],
            rows,
        )
        return self

    def comparison(self, first: str, second: str) -> PairedComparison | None:
        """Look up the recorded comparison of two policies; None: there is none."""
        return next((c for c in self.comparisons if (c.first, c.second) == (first, second)), None)


def read(path: Path) -> Evaluation:
    """Read the evaluation in a file; SimicError when it is missing, damaged or of another schema."""
    return read_as(path, Evaluation, f"an evaluation of schema {SCHEMA_VERSION}", "simic evaluate")


def read_headroom(path: Path) -> HeadroomReport:
    """Read the headroom in a file; SimicError when it is missing, damaged or of another schema."""
    return read_as(
        path, HeadroomReport, f"a headroom of schema {HEADROOM_VERSION}", "simic headroom"
    )


def read_rules(path: Path) -> TunedRules:
    """Read the tuned rules in a file; SimicError when it is missing, damaged or of another schema."""
    return read_as(
        path, TunedRules, f"tuned rules of schema {RULES_VERSION}", "python -m benchmarks.rules"
    )


Model = TypeVar("Model", bound=Frozen)


def read_as(
    path: Path,
    model: type[Model],
    description: str,
    command: str,
    unpack: Callable[[bytes], bytes] = bytes,
) -> Model:
    """Read a file as a model.

    Args:
        path: the file.
        model: of its content.
        description: of that model, with its article.
        command: writes such a file.
        unpack: gives the JSON in the bytes of the file.

    Raises:
        SimicError: the file is missing, damaged or of another schema.
    """
    try:
        return model.model_validate_json(unpack(path.read_bytes()).decode("utf-8"))
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; run {command} first") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, ValidationError) as error:
        schema = schema_of(path)
        if schema in ("", str(model.model_fields["schema_version"].default)):
            reason = str(error).splitlines()[0]
        else:
            reason = f"has schema {schema}"
        raise SimicError(f"{path}: not {description}: {reason}; run {command} again") from None


def schema_of(path: Path) -> str:
    """Read the schema that a file names; empty where it names none."""
    try:
        return str(json.loads(path.read_bytes()).get("schema_version", ""))
    except (OSError, ValueError, AttributeError):
        return ""
