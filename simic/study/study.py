"""Run a study: what is left of its plan, with its table and MLflow's record; what a dead process left is taken up."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from simic import durable, params
from simic.errors import SimicError
from simic.pipeline import mlflow_store, mlflow_studies
from simic.pipeline.paths import Workspace
from simic.study import cells, runner, table
from simic.study.cells import Cell
from simic.study.plan import StudyPlan, in_words
from simic.training.interrupts import stop_on_signals
from simic.training.observers import duration


class Stopped(Exception):
    """Say that the study was asked to stop, and can go on."""


@dataclass
class Study:
    """Carry out a plan; ``failed`` has the reasons by fingerprint."""

    plan: StudyPlan
    project: Workspace
    runner: str
    workers: int
    say: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Go on until every cell is done or has failed; SimicError when some failed, ``Stopped`` when asked to stop."""
        plan, name = self.plan, self.plan.study.name
        runner.refuse_unknown(self.runner)
        with durable.locked(plan.folder / cells.LOCK, f"runs the study {name}"), stop_on_signals(self.stop):
            self.record = mlflow_studies.StudyRecord(self.project, name)
            for cell in plan.cells:
                if cells.finished(cell, plan.folder):
                    self._log(cell)
            if plan.left():
                self._compute()
            table.write(plan)
            self.record.ended(plan.folder / table.TABLE, "interrupted" if plan.left() else "finished")
        for line in table.summary(plan):
            self.say(line)
        self.say(f"table    {plan.folder / table.TABLE}")
        if self.failed:
            first = next(iter(self.failed.values())).splitlines()[-1]
            raise SimicError(
                f"{len(self.failed)} of {len(plan.cells)} cells failed, the first with: {first}; "
                "the same command tries them again"
            )
        if left := len(plan.left()):
            raise Stopped(f"stopped with {len(plan.cells) - left} of {len(plan.cells)} cells done")

    def _compute(self) -> None:
        """Compute what is left. Attempts that finish nothing are counted: every process may die of the same."""
        vain, most = 0, params.Runtime.model_validate(self.plan.cells[0].params["runtime"]).auto_resume
        while (left := self._left()) and vain <= most and not self.stop.is_set():
            runner.run_all(self.runner, left, self.plan.folder, self.workers, self.stop, self._ended)
            vain = 0 if len(self._left()) < len(left) else vain + 1
        if not self.stop.is_set():
            self.failed |= {cell.fingerprint: f"its process died, {vain} times" for cell in self._left()}

    def _left(self) -> list[Cell]:
        return [cell for cell in self.plan.left() if cell.fingerprint not in self.failed]

    def _ended(self, cell: Cell, reason: str) -> bool:
        """Tell of a cell; False where it is neither done nor has failed: its process was stopped, or died."""
        result, failure = cells.finished(cell, self.plan.folder), self.plan.folder / cell.fingerprint / cells.FAILURE
        where = f"{in_words(self.plan.study, cell.point)}, seed {cell.seed}"
        if result is not None:
            scores = ", ".join(f"{row.policy} {row.score.estimate:.1f}" for row in result.rows)
            left = len(self.plan.left())
            self.say(f"{where}: {scores}; in {duration(result.seconds)}, {left} cells left")
            table.write(self.plan)
            self._log(cell)
        elif failure.exists():
            self.failed[cell.fingerprint] = failure.read_text(encoding="utf-8").strip()
            self.say(f"{where}: failed: {self.failed[cell.fingerprint]}")
        elif not self.stop.is_set():
            self.say(f"{where}: its process ended ({reason}); it goes on from its last checkpoint")
        return result is not None or failure.exists()

    def _log(self, cell: Cell) -> None:
        point = {"seed": str(cell.seed), **dict(mlflow_store.flatten(cell.params))}
        name = f"{in_words(self.plan.study, cell.point)} seed={cell.seed}"
        self.record.cell(cell.fingerprint, name, point, Workspace(self.plan.folder / cell.fingerprint))
