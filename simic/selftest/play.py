"""One run of the pipeline through its real stages, in a process of its own: ``python -m simic.selftest.play JOB``.

The process is started in a scratch copy of the package, so everything it imports has the fault.
"""

import json
import sys
import threading
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import process_time
from typing import Literal

from simic import params, seals
from simic.audit.live import LiveAudit
from simic.errors import SimicError
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.selftest import lock
from simic.selftest.catalogue import BY_ID
from simic.selftest.fault import When
from simic.selftest.setting import INTERRUPTED_AFTER
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer

How = Literal["ended", "refused", "crashed"]


@dataclass(frozen=True)
class Job:
    """What to run where. ``fault`` names the one of the catalogue that tampers with files, if any does; ``reused``
    stages have their outputs in the workspace already.
    """

    workspace: str
    donor: str
    fault: str = ""
    reused: tuple[str, ...] = ()


@dataclass
class Ending:
    """How a run ended: in which stage, with which message of a refusal or a crash; CPU seconds of each stage."""

    how: How = "ended"
    stage: str = ""
    message: str = ""
    seconds: dict[str, float] = field(default_factory=dict)


class _Interrupter(Observer):
    """Asks training to stop once an iteration is whole."""

    def __init__(self, after: int, stop: threading.Event) -> None:
        self.after, self.stop = after, stop

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        if update.iteration + 1 == self.after:
            self.stop.set()


class Run:
    """A workspace on its way through the stages."""

    def __init__(self, job: Job) -> None:
        self.job, self.workspace, self.donor = job, Workspace(Path(job.workspace)), Workspace(Path(job.donor))

    def stage(self, name: str) -> None:
        """Runs it, unless its outputs are there, records it, and tampers with what it left if the fault says so."""
        tree = params.load(self.workspace.params)
        if name in self.job.reused:
            seals.write(self.workspace.root, name, tree)  # by this package, as if the stage had run here
        elif name == "train":
            self._train(tree)
        else:
            stages.STAGES[name](tree, self.workspace)
        lock.note(self.workspace, name)
        if name in ("prepare", "headroom", "train", "evaluate"):
            self._tamper(name)

    def _train(self, tree: params.Params) -> None:
        """Interrupted and resumed, watched by the live audit as any training is."""
        for after in INTERRUPTED_AFTER:
            stop = threading.Event()
            try:
                stages.train(tree, self.workspace, (LiveAudit(), _Interrupter(after, stop)), stop)
            except Interrupted:
                self._tamper("interrupted")
            else:
                return  # it was done before
        stages.train(tree, self.workspace, (LiveAudit(),))

    def _tamper(self, when: When) -> None:
        tampering = BY_ID[self.job.fault].tampering if self.job.fault else None
        if tampering is not None and tampering.after == when:
            tampering.do(self.workspace, self.donor)


def play(job: Job) -> Ending:
    """All stages in order, up to the one that refuses or crashes."""
    run, ending = Run(job), Ending()
    for name in stages.STAGES:
        started = process_time()
        try:
            run.stage(name)
        except SimicError as refusal:
            return Ending("refused", name, str(refusal), ending.seconds)
        except Exception:  # noqa: BLE001 - whatever a fault does is what is asked for
            return Ending("crashed", name, traceback.format_exc(), ending.seconds)
        ending.seconds[name] = round(process_time() - started, 2)
    return ending


def main(path: Path) -> None:
    """Plays the job of a file and writes how it ended beside it, as ``ending.json``."""
    asked = json.loads(path.read_text(encoding="utf-8"))
    ending = play(Job(**{**asked, "reused": tuple(asked["reused"])}))
    path.with_name("ending.json").write_text(json.dumps(asdict(ending), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
