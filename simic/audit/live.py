"""Live checks during training: an observer that reports a finding once, and again if it gets worse."""

from collections import deque

from simic.audit import audit
from simic.audit.findings import Result, Status
from simic.audit.record import RunRecord, Table
from simic.telemetry import recorder
from simic.telemetry.columns import Columns
from simic.telemetry.rows import SEVERITIES, FindingRow, UpdateRow
from simic.training.observers import Observer, RunInfo

UPDATES_KEPT = 200  # enough for every check, and bounds the work per iteration


class LiveAudit(Observer):
    """Run the live checks after every iteration; ``train.stop_on`` decides whether a finding stops training."""

    def __init__(self) -> None:
        self._updates: deque[UpdateRow] = deque(maxlen=UPDATES_KEPT)
        self._steps = Table()
        self._told: dict[str, int] = {}  # gravest severity reported, by check
        self._info: RunInfo | None = None

    def on_start(self, info: RunInfo) -> None:
        """Read the updates and findings recorded before a resume, so that none is forgotten or repeated."""
        self._info = info
        for file in recorder.read(info.work_dir / recorder.FOLDER) if info.start_iteration else ():
            if (update := file.update) is not None:
                self._updates.append(update)
            for finding in file.findings:
                self._told[finding.check] = max(self._told.get(finding.check, 0), SEVERITIES.index(finding.severity))

    def on_rollout(self, iteration: int, steps: Columns) -> None:
        """Keep the steps until the iteration is examined."""
        self._steps = Table.of_steps(iteration, steps)

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        """Run every live check on the recent updates and on this iteration's steps."""
        assert self._info is not None  # on_start comes first
        self._updates.append(update)
        run = RunRecord(self._info.params, updates=Table.from_rows(list(self._updates)), steps=self._steps)
        self._steps = Table()
        for result in (check.run(run) for check in audit.checks(live=True, of_gym=run.params.prepare.is_gym)):
            if result.status is Status.FINDING and SEVERITIES.index(result.severity) > self._told.get(result.check, -1):
                self._told[result.check] = SEVERITIES.index(result.severity)
                self._info.report(_row(update.iteration, result))


def _row(iteration: int, result: Result) -> FindingRow:
    evidence = dict(result.evidence[0]) if result.evidence else {}
    return FindingRow(
        iteration=iteration,
        check=result.check,
        severity=result.severity,
        message=f"{result.title}: {result.measured}",
        evidence=evidence,
    )
