"""Define the results of headroom and evaluation as frozen trees; their files are canonical JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from simic.data.batches import TaskGroup
from simic.errors import SimicError
from simic.evaluation.statistics import Interval, PairedComparison
from simic.training.machine import Machine

SCHEMA_VERSION = 10
HEADROOM_VERSION = 6
RULES_VERSION = 1
OUTSIDE = "outside"  # among the others of a report: tasks that were not made for the suite
# Names of the trained policy among those evaluated: greedy, sampled, and greedy without what it sees of the host.
LEARNED, SAMPLED, BLIND = "learned", "learned_sampled", "blind"
PRIMARY_ENDPOINT = (
    "score of learned, greedy, less that of the tuned hand rule, one training each: on the test splits of held-out "
    "tasks of known kinds"
)


class Frozen(BaseModel):
    """Immutable; unknown keys are errors; a missing measurement is null, never NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> str:
        """Return canonical JSON: equal results are equal bytes."""
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
    test_accuracy_iqm_pct: Interval | None  # from 10 seeds on
    val_accuracy_pct: float
    params: float
    flops_per_sample: float
    training_flops: float  # of all host epochs, forward and backward
    validation_flops: float  # with every ablation, at most
    accuracy_per_kparam: float  # points per 1,000 parameters
    growth_ratio: float  # parameters of the committed network over those of the bare host
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
    blueprint: str | None  # of the seed it was done to
    refused_by_gate: int | None
    reward: float
    probability: float | None  # that the policy gave to it; null of a policy that has none


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
    epochs: tuple[int, ...]  # 0: not trained by epochs
    params: tuple[int, ...]
    flops_per_sample: tuple[int, ...]
    training_flops: tuple[int, ...]


class TunedRule(Frozen):
    """The best rule for episodes of so many epochs."""

    family: Literal["in order", "return to the best"]
    order: tuple[str, ...] = Field(min_length=1)  # BLUEPRINT at SLOT
    patience: int = Field(ge=1)  # epochs
    threshold: float | None  # points; null: return to the best
    priorities: tuple[tuple[float, float], ...] = ()  # slope and offset of each of the order; none: as it stands
    tries: int | None = Field(default=None, ge=1)  # null: all of the order
    epochs: int = Field(ge=1)
    score: float  # points, on the tasks that it was tuned on; the best of several, so a little too good
    hosts: int  # that the score is a mean of

    def __str__(self) -> str:
        """Describe the rule for a table."""
        kept = "then the best again" if self.threshold is None else f"keep above {self.threshold:g} points"
        order = f"the {self.tries} best aligned of {len(self.order)}" if self.priorities else ", ".join(self.order)
        return f"{self.family}, {self.patience} epoch(s) each, {kept}: {order}"


class TunedRules(Frozen):
    """One rule for each number of epochs, and what it cost to find them."""

    schema_version: Literal[1] = RULES_VERSION
    tuned_for: str  # sha256 of the suite and of all that decides how its hosts grow
    rules: tuple[TunedRule, ...] = Field(min_length=1)
    configurations: int
    trainings: int  # of hosts


class Standing(Frozen):
    """One policy on the tasks of one group, per task: its mean score, and what it wins over the hand rule and over the
    best common schedule.
    """

    score: Interval
    over_rule: Interval | None  # null where no rule was played
    over_common: Interval
    params: float


class Standings(Frozen):
    """All policies on the held-out tasks of one group."""

    tasks: int
    gap: Interval  # of the oracle per task over the best common schedule
    random_search: tuple[float, ...]  # mean score with 1, 2, … trainings
    rule: str | None = None  # the hand rule that the next line is about: the tuned one, where there is one
    rule_gap: Interval | None = None  # of the oracle per task over that rule: what is left to learn
    policies: dict[str, Standing]
    by_kind: dict[str, dict[str, float]]  # mean score of every policy


class HeadroomReport(Frozen):
    """Content of headroom.json; tables are ``[row][schedule]``, in points where nothing else is said.

    ``others`` are the same for episodes of other lengths (``6 epochs``) and for tasks from outside the suite.
    """

    schema_version: Literal[6] = HEADROOM_VERSION
    data_sha256: str
    rng_seed: int
    epochs: int  # of every episode
    host: HostDescription
    max_seeds: int | None
    param_budget: float
    price: float
    tasks: tuple[TaskRow, ...]
    rows: tuple[int, ...]  # the task of each
    schedules: tuple[str, ...]
    common: int  # the schedule that is best on the tasks of training
    common_cost: int  # host trainings that it took to find it
    search_scores: tuple[tuple[float, ...], ...]  # [task of training in turn][schedule], on its validation split
    choosing_val_pct: tuple[tuple[float, ...], ...]
    val_pct: tuple[tuple[float, ...], ...]
    test_pct: tuple[tuple[float, ...], ...]
    params: tuple[tuple[float, ...], ...]
    flops_per_sample: tuple[tuple[float, ...], ...]
    grid_cost: int  # host trainings behind the tables
    policies: dict[str, PerSeed]
    actions: dict[str, Actions] = {}  # of the same policies
    tuned: TunedRules | None = None  # the rules that ``tuned_rule`` played
    floors: dict[str, Fixed]
    standings: dict[str, Standings]  # by group of tasks
    validation: dict[str, float] = {}  # scores on the tasks that choose the checkpoint, of what needs no controller
    others: dict[str, "HeadroomReport"] = {}
    bare: tuple[int, ...] = ()  # parameters of the host of each row, where they are not all those of ``host``

    @model_validator(mode="after")
    def _every_row_is_whole(self) -> Self:
        rows, schedules = len(self.rows), len(self.schedules)
        if not (all(0 <= task < len(self.tasks) for task in self.rows) and 0 <= self.common < schedules):
            raise ValueError("names a task or a schedule that it does not have")
        tables = (self.choosing_val_pct, self.val_pct, self.test_pct, self.params, self.flops_per_sample)
        if any([len(row) for row in table] != [schedules] * rows for table in tables):
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
    first = reports[0]
    tables = ("choosing_val_pct", "val_pct", "test_pct", "params", "flops_per_sample")
    before = [sum(len(report.tasks) for report in reports[:k]) for k in range(len(reports))]
    return first.model_copy(
        update={name: tuple(row for report in reports for row in getattr(report, name)) for name in tables}
        | {
            "tasks": tuple(task for report in reports for task in report.tasks),
            "rows": tuple(k + row for k, report in zip(before, reports, strict=True) for row in report.rows),
            "actions": {},  # of hosts of several sizes: not played again
            "bare": tuple(report.host.params for report in reports for _ in report.rows),
            "policies": {name: concatenated([r.policies[name] for r in reports]) for name in first.policies},
            "floors": {name: concatenated([r.floors[name] for r in reports]) for name in first.floors},
            "grid_cost": sum(report.grid_cost for report in reports),
        }
    )


Rows = TypeVar("Rows", PerSeed, Fixed)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """Join one policy's rows in several reports."""
    values = {name: tuple(x for part in parts for x in getattr(part, name)) for name in type(parts[0]).model_fields}
    return type(parts[0])(**values)


class Case(Frozen):
    """One host under the learned policy, and the scores of schedules on the same host."""

    row: int
    parameters: dict[str, JsonValue]  # of its task
    score: float
    common: float
    oracle: str  # the schedule
    oracle_score: float
    timeline: Timeline

    @property
    def gain(self) -> float:
        """Return points over the best common schedule."""
        return self.score - self.common


class Elsewhere(Frozen):
    """The trained policy in episodes of another length, or on other tasks, beside what headroom has of them."""

    epochs: int
    per_seed: dict[str, PerSeed]
    standings: dict[str, Standings]  # by group of tasks


class Evaluation(Frozen):
    """Content of evaluation.json."""

    schema_version: Literal[10] = SCHEMA_VERSION
    primary_endpoint: str = PRIMARY_ENDPOINT
    checkpoint: str
    checkpoint_iteration: int
    machine: Machine  # that played; its group are the rows that were computed together
    controller_trainings: int  # of hosts, that its own training cost
    data_sha256: str
    rng_seed: int
    eval_seeds: int
    episode_steps: int
    test_samples: int
    tasks: tuple[TaskRow, ...]
    rows: tuple[int, ...]  # the task of each evaluation seed
    host: HostDescription
    standings: dict[str, Standings]  # by group of tasks
    policies: dict[str, PolicyResult]
    static_final: dict[str, Fixed]  # the networks that the first policy ended with, from the first step
    comparisons: tuple[PairedComparison, ...]  # of test accuracy, in points
    actions: dict[str, Actions]  # of the trained policy, by the name it was evaluated under
    others: dict[str, "Elsewhere"]  # as in headroom: episodes of other lengths, tasks from outside the suite
    cases: tuple[Case, ...]  # hosts that gained most over the best common schedule, then those that lost most

    @model_validator(mode="after")
    def _every_row_is_whole(self) -> Self:
        rows = len(self.rows)
        if not all(0 <= task < len(self.tasks) for task in self.rows):
            raise ValueError("names a task that it does not have")
        if not all(0 <= case.row < rows and LEARNED in self.policies for case in self.cases):
            raise ValueError("shows a host that it does not have")
        _refuse_short([*(policy.per_seed for policy in self.policies.values()), *self.static_final.values()], rows)
        return self

    def comparison(self, first: str, second: str) -> PairedComparison | None:
        """Return the recorded comparison of two policies, if there is one."""
        return next((c for c in self.comparisons if (c.first, c.second) == (first, second)), None)


def read(path: Path) -> Evaluation:
    """Read the evaluation in a file; SimicError when it is missing, damaged or of another schema."""
    return read_as(path, Evaluation, f"an evaluation of schema {SCHEMA_VERSION}", "simic evaluate")


def read_headroom(path: Path) -> HeadroomReport:
    """Read the headroom in a file; SimicError when it is missing, damaged or of another schema."""
    return read_as(path, HeadroomReport, f"a headroom of schema {HEADROOM_VERSION}", "simic headroom")


def read_rules(path: Path) -> TunedRules:
    """Read the tuned rules in a file; SimicError when it is missing, damaged or of another schema."""
    return read_as(path, TunedRules, f"tuned rules of schema {RULES_VERSION}", "python -m benchmarks.rules")


Model = TypeVar("Model", bound=Frozen)


def read_as(path: Path, model: type[Model], what: str, command: str) -> Model:
    """Read a file as a model; SimicError saying what it is not, and the command that makes one."""
    try:
        return model.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; run {command} first") from None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        other = schema_of(path)
        why = str(error).splitlines()[0] if other in ("", str(model.model_fields["schema_version"].default)) else ""
        raise SimicError(f"{path}: not {what}: {why or f'has schema {other}'}; run {command} again") from None


def schema_of(path: Path) -> str:
    """Return the schema that a file says it has; empty where it says nothing."""
    try:
        return str(json.loads(path.read_bytes()).get("schema_version", ""))
    except (OSError, ValueError, AttributeError):
        return ""
