"""One run of the pipeline through its real stages, in a process of its own::

    python play.py SOURCE WORKSPACE DONOR FAULT

SOURCE is a scratch copy of the package, so everything that is imported here has the fault. DONOR is the workspace of
another run, FAULT names one of the catalogue that tampers with files, if any. How it ended is written beside WORKSPACE.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1]]
    sys.path.append(str(Path(__file__).parents[2]))

import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from simic import params
from simic.audit.live import LiveAudit
from simic.errors import SimicError
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer
from tests.faults.catalogue import BY_ID
from tests.faults.setting import INTERRUPTED_AFTER


@dataclass
class Ending:
    """Hold how a run ended, and stage and message of a refusal or a crash."""

    how: Literal["ended", "refused", "crashed"] = "ended"
    stage: str = ""
    message: str = ""


class Interrupter(Observer):
    """Stop training after an iteration."""

    def __init__(self, after: int, stop: threading.Event) -> None:
        self.after, self.stop = after, stop

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        if update.iteration + 1 == self.after:
            self.stop.set()


def play(workspace: Workspace, donor: Workspace, fault: str) -> Ending:
    """Run all stages in order, up to the one that refuses or crashes, and tamper with files as the fault says."""
    tampering = BY_ID[fault].tampering if fault else None

    def tamper(when: str) -> None:
        if tampering is not None and tampering.after == when:
            tampering.do(workspace, donor)

    for name, stage in stages.STAGES.items():
        try:
            tree = params.load(workspace.params)
            if name == "train":
                train(tree, workspace, tamper)
            else:
                stage(tree, workspace)
            tamper(name)
        except SimicError as refusal:
            return Ending("refused", name, str(refusal))
        except Exception:  # noqa: BLE001 - whatever a fault does is what is asked for
            return Ending("crashed", name, traceback.format_exc())
    return Ending()


def train(tree: params.Params, workspace: Workspace, tamper: Callable[[str], None]) -> None:
    """Train with interruptions and resumes, watched by the live audit."""
    for after in INTERRUPTED_AFTER:
        stop = threading.Event()
        try:
            stages.train(tree, workspace, (LiveAudit(), Interrupter(after, stop)), stop)
        except Interrupted:
            tamper("interrupted")
        else:
            return  # it was done before
    stages.train(tree, workspace, (LiveAudit(),))


if __name__ == "__main__":
    played, other = (Workspace(Path(name)) for name in sys.argv[2:4])
    ended = play(played, other, sys.argv[4])
    played.root.with_name("ending.json").write_text(json.dumps(asdict(ended)), encoding="utf-8")
