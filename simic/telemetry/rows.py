"""What is recorded of a run, as typed rows. Field names are those of the published tables (docs/metrics.md).

Per-host lists have one entry per environment, in the order of the run's env ids; accuracies are points 0–100; NaN is a
measurement that was not made.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["info", "low", "medium", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high", "critical")


class Row(BaseModel):
    """A frozen record; ``kind`` names its table."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", populate_by_name=True)

    kind: ClassVar[str]


class UpdateRow(Row):
    """One PPO update: the metrics of docs/metrics.md by name, and the hash chain of the training state after it."""

    kind: ClassVar[str] = "update"

    iteration: int
    env_steps: int  # valid environment steps of the whole run so far
    metrics: dict[str, float]
    validation_accuracy: float  # mean committed, points; NaN when no validation episodes were played
    best_iteration: int | None  # iterations done at the best validation so far
    state_chain: str  # sha256 over the previous link and every tensor and counter of the state


class StepRow(Row):
    """One environment step of all hosts: the sampled action, what it did, what it paid."""

    kind: ClassVar[str] = "step"

    iteration: int
    step: int  # 1…T
    op: list[int]  # as sampled, like slot … alpha_curve
    slot: list[int]
    blueprint: list[int]
    style: list[int]
    tempo: list[int]
    alpha_target: list[int]
    alpha_speed: list[int]
    alpha_curve: list[int]
    effective_op: list[int]
    gate: list[int]  # -1 = the op asked none
    gate_passed: list[bool]
    log_prob: list[float]  # of the joint action when it was sampled
    value: list[float]
    reward: list[float]
    components: dict[str, list[float]]  # of the reward; they sum to it
    live_accuracy: list[float]
    committed_accuracy: list[float]
    all_off_accuracy: list[float]
    val_loss: list[float]
    train_loss: list[float]
    host_grad_norm: list[float]  # mean over the epoch's minibatches, before clipping
    seed_grad_norm: list[list[float]]  # [E][K], like all that follow up to interaction_se
    stage: list[list[int]]
    slot_blueprint: list[list[int]]
    alpha: list[list[float]]
    contribution: list[list[float]]
    contribution_se: list[list[float]]
    interaction: list[list[float]]  # points, sum over the other acting seeds
    interaction_se: list[list[float]]
    params: list[int]
    committed_params: list[int]
    flops: list[int]
    panicked: list[bool]
    cause: list[int]
    valid: list[bool]  # False after a rollback: no experience


class EpisodeRow(Row):
    """What the hosts of one iteration came to; ``split`` says whether the episodes trained the policy or chose the best
    checkpoint.
    """

    kind: ClassVar[str] = "episode"

    iteration: int
    split: Literal["train", "validation"]
    env_id: list[int]
    return_: Annotated[list[float], Field(alias="return")]  # undiscounted sum of rewards
    length: list[int]  # valid steps
    committed_accuracy: list[float]
    live_accuracy: list[float]
    params: list[int]
    committed_params: list[int]
    germinated: list[int]
    fossilized: list[int]
    pruned: list[int]
    panicked: list[bool]


class EventRow(Row):
    """One thing that happened to one host (slot -1: to the host as a whole); ``step`` 0 is the reset."""

    kind: ClassVar[str] = "event"

    iteration: int
    step: int
    name: str
    env: int
    slot: int
    detail: str


class FindingRow(Row):
    """What a check or the machinery found; ``iteration`` -1 = before the first one."""

    kind: ClassVar[str] = "finding"

    iteration: int
    check: str
    severity: Severity
    message: str
    evidence: dict[str, float | int | str] = {}

    def at_least(self, severity: Severity) -> bool:
        """Whether this is as grave as the given severity."""
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)


class TimingRow(Row):
    """Wall times of one iteration, in a file of their own because they differ between equal runs."""

    kind: ClassVar[str] = "timing"

    iteration: int
    collect_seconds: float
    update_seconds: float
    validate_seconds: float
    record_seconds: float


ROWS: dict[str, type[Row]] = {
    row.kind: row for row in (UpdateRow, StepRow, EpisodeRow, EventRow, FindingRow, TimingRow)
}
