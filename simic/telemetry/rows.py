"""Type the rows of what is recorded once for an iteration or more seldom. Field names are those of the published tables
(docs/metrics.md); NaN is a measurement that was not made.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Severity = Literal["info", "low", "medium", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high", "critical")


class Row(BaseModel):
    """A record that does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class UpdateRow(Row):
    """One PPO update: the metrics of docs/metrics.md by name, and the hash chain of the state after it."""

    iteration: int
    env_steps: int  # valid environment steps of the whole run so far
    metrics: dict[str, float]
    # mean score: committed accuracy less the price, points; NaN when no validation episodes were played
    validation_accuracy: float
    best_iteration: int | None  # iterations done at the best validation so far
    state_chain: str  # sha256 over the previous link and every tensor and counter of the state
    state_begun: str = ""  # sha256 over every tensor of the state as the iteration took it up
    state_ended: str = ""  # the same as it left it


class FindingRow(Row):
    """What a check or the machinery found; ``iteration`` -1 = before the first one."""

    iteration: int
    check: str
    severity: Severity
    message: str
    evidence: dict[str, float | int | str] = {}

    def at_least(self, severity: Severity) -> bool:
        """Tell whether this is as grave as a severity."""
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)


class StartRow(Row):
    """One start or resume of a run: what differs between equal runs."""

    name: str  # of the run
    command: str
    unix_seconds: float
    host: str
    process: int
    code: str  # its revision
    changed_files: list[str] = []  # of the code, beside that revision
    start_iteration: int
    iterations: int  # that training had from then on: its schedules may fall over all of them
    telemetry_files_dropped: int
    findings: list[FindingRow]


class TimingRow(Row):
    """The wall times of one iteration, apart because equal runs differ in them; NaN where lost."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    iteration: int
    collect_seconds: float
    update_seconds: float
    validate_seconds: float
    record_seconds: float

    @property
    def seconds(self) -> float:
        """The seconds of the whole iteration."""
        return (
            self.collect_seconds + self.update_seconds + self.validate_seconds + self.record_seconds
        )
