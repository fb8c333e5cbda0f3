"""Live checks during training: an observer that reports a finding once, and again if it gets worse."""

from collections import deque

import numpy as np

from simic.audit import audit
from simic.audit.findings import Result, Status
from simic.audit.record import RunRecord, Table
from simic.telemetry import recorder
from simic.telemetry.columns import Array, Columns
from simic.telemetry.rows import SEVERITIES, FindingRow, UpdateRow
from simic.training.observers import Observer, RunInfo

RECENT_UPDATES = 200  # enough for every check, and bounds the work per iteration


class LiveAudit(Observer):
    """Run the live checks after every iteration; ``train.stop_on`` decides whether a finding stops training."""

    def __init__(self) -> None:
        self._updates: deque[UpdateRow] = deque(maxlen=RECENT_UPDATES)
        self._returns: deque[Array] = deque(maxlen=RECENT_UPDATES)
        self._steps = Table()
        self._reported: dict[str, int] = {}  # gravest severity, by check
        self._info: RunInfo | None = None

    def on_start(self, info: RunInfo) -> None:
        """Read what was recorded before a resume, so that none is forgotten or repeated."""
        # A resume begins with an empty observer: without the earlier rows trends would start anew and findings be
        # repeated.
        self._info = info
        # After a resume: updates, returns and findings of before.
        for file in recorder.read(info.work_dir / recorder.FOLDER) if info.start_iteration else ():
            if (update := file.update) is not None:
                self._updates.append(update)
                self._returns.append(file.columns("train")["return"])
            for finding in file.findings:
                self._note(finding.check, SEVERITIES.index(finding.severity))

    def on_rollout(self, iteration: int, steps: Columns) -> None:
        """Keep the steps until the iteration is examined."""
        # Steps of one iteration only: those of all would fill the memory of a long training.
        self._steps = Table.of_steps(iteration, steps)

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        """Run every live check on the recent updates and on this iteration's steps."""
        assert self._info is not None  # on_start comes first
        self._updates.append(update)
        self._returns.append(episode["return"])
        # Tables as the published ones, so that the very same checks decide now and at the end.
        updates = Table.from_rows(list(self._updates))
        episodes = Table(
            {"iteration": updates.column("iteration"), "return": np.stack(self._returns)}
        )
        run = RunRecord(self._info.params, updates=updates, steps=self._steps, episodes=episodes)
        # Examined once: a large table must not lie beside the next rollout's.
        self._steps = Table()
        # Each finding once, and again where it has become graver.
        for check in audit.checks(live=True, is_gym=run.params.prepare.is_gym):
            result = check.run(run)
            severity = SEVERITIES.index(result.severity)
            if result.status is Status.FINDING and severity > self._reported.get(result.check, -1):
                self._note(result.check, severity)
                self._info.report(_row(update.iteration, result))

    def _note(self, check: str, severity: int) -> None:
        self._reported[check] = max(severity, self._reported.get(check, 0))


def _row(iteration: int, result: Result) -> FindingRow:
    return FindingRow(
        iteration=iteration,
        check=result.check,
        severity=result.severity,
        message=f"{result.title}: {result.measured}",
        evidence=dict(result.evidence[0]) if result.evidence else {},
    )
