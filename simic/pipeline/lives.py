"""One life of a training in a process of its own: up to its end, or killed by SIGKILL at a moment that is given."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from simic import params
from simic.errors import exit_with_message
from simic.pipeline import killing, stages
from simic.pipeline.paths import Workspace
from simic.training.observers import Observer

# Writes of a checkpoint; of telemetry, times and starts; of what is published and its seal; environment steps.
Where = Literal["step", "checkpoint", "record", "publication", "any time"]
PRELOADED = (
    "torch._dynamo",
    "torch.export",
    "simic.pipeline.stages",
    "simic.training.trainer",
    "simic.training.card",
    "simic.telemetry.publish",
)
PLACES = {"checkpoints", "models", "telemetry", "reports"}
Work = Callable[[Workspace, Observer], None]  # a function of a module, which another process imports


@dataclass(frozen=True)
class Moment:
    """The ``at``-th step or change of a file of its kind in this life, or so many seconds after its start; and how long
    after that, so that some fall into the middle of a write.
    """

    where: Where
    at: float
    delay_seconds: float = 0.0


class Life:
    """What a life that ended had done: read from its trace, which outlives it."""

    def __init__(self, exitcode: int | None, trace: Path, output: Path):
        self.exitcode, self._output = exitcode, output
        lines = trace.read_text(encoding="utf-8").splitlines() if trace.exists() else []
        entries = [json.loads(line) for line in lines]
        self.begun = [entry["begun"] for entry in entries if "begun" in entry]
        self.counts: dict[str, int] = next((entry["counts"] for entry in entries if "counts" in entry), {})
        self.seconds: float = next((entry["seconds"] for entry in entries if "seconds" in entry), 0.0)

    @property
    def killed(self) -> bool:
        """By SIGKILL, rather than ended."""
        return self.exitcode == -signal.SIGKILL

    @property
    def said(self) -> str:
        """The last line that it printed."""
        lines = self._output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.exitcode}, without a word"


def train(workspace: Workspace, watching: Observer) -> None:
    """The stage, from where an earlier life stopped to its publication."""
    stages.train(params.load(workspace.params), workspace, (watching,))


def live(root: Path, moment: Moment | None, number: int, work: Work = train) -> Life:
    """Does it in the workspace ``root``. What is begun and said is written beside that."""
    trace, output = (root.with_name(f"{root.name}-{number}.{ending}") for ending in ("trace", "output"))
    context = multiprocessing.get_context("forkserver")  # which has imported everything, and computed nothing
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=_run, args=(work, str(root), moment, str(trace), str(output)))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():  # this process is being stopped
            process.kill()
            process.join()
    return Life(process.exitcode, trace, output)


class _Killer(Observer):
    """Counts steps and changes, writes down what is begun, and kills this process at its moment."""

    def __init__(self, root: str, moment: Moment | None, trace: str):
        self.root, self.moment, self.counts = root, moment, dict.fromkeys(get_args(Where), 0)
        self.trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.started = time.monotonic()
        if moment is not None and moment.where == "any time":
            self._die_after(moment.at)

    def on_step(self, iteration: int, step: int) -> None:
        if step == 1:
            self.note(begun=iteration)
        self.count("step")

    def changed(self, place: str) -> None:
        where = kind_of(os.path.relpath(place, self.root)) if os.path.isabs(place) else None
        if where is not None:
            self.count(where)

    def count(self, where: Where) -> None:
        self.counts[where] += 1
        if self.moment is not None and (self.moment.where, self.moment.at) == (where, self.counts[where]):
            if self.moment.delay_seconds:
                self._die_after(self.moment.delay_seconds)
            else:
                _die()

    def note(self, **entry: object) -> None:
        os.write(self.trace, (json.dumps(entry) + "\n").encode())

    def ended(self) -> None:
        self.moment = None  # whatever is still to come is too late
        self.note(counts=self.counts, seconds=time.monotonic() - self.started)

    def _die_after(self, seconds: float) -> None:
        def wait() -> None:
            time.sleep(seconds)
            if self.moment is not None:
                _die()

        threading.Thread(target=wait, daemon=True).start()


def kind_of(place: str) -> Where | None:
    """Of a change of a file, by its place in the workspace; None for locks and caches."""
    first, *rest = Path(place).parts or (".",)
    if (first, *rest[:1]) == (".simic", "work"):
        return "checkpoint" if rest[2:3] == ["checkpoints"] else "record"
    return "publication" if first.lstrip(".").partition(".")[0] in PLACES else None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run(work: Work, root: str, moment: Moment | None, trace: str, output: str) -> None:
    """In the child."""
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    killer = _Killer(root, moment, trace)
    with exit_with_message("life"):
        killing.observe(root, killer.changed)
        work(Workspace(Path(root)), killer)
        killer.ended()
    sys.stdout.flush()
