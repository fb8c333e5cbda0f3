"""Two commands started at once in one workspace, and witnesses of what they do to it."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from simic.pipeline.paths import Workspace
from tests.helpers import copy_checkout, simic_command
from tests.pipeline.small_suite import tree

PYTHON = sys.executable
FLOW = """
from simic.errors import exit_with_message
from flows.pipeline import simic
with exit_with_message("flow"):
    simic()
"""
COMMANDS = {
    "run": [PYTHON, "-m", "simic", "run"],
    "fresh": [PYTHON, "-m", "simic", "run", "--fresh"],
    "audit": [PYTHON, "-m", "simic", "audit"],
    "repro": [PYTHON, "-m", "dvc", "repro"],
    "flow": [PYTHON, "-c", FLOW],
    "grow": [PYTHON, "-m", "simic", "grow", "mine.npz", "--n", "2", "--out", "grown"],
}
# What has been edited since the last run: nothing, or what the last stage, the last two, or all of them depend on.
CHANGES = {
    "nothing": {},
    "audit": {"audit": {"fail_on": "critical"}},
    "evaluate": {"evaluate": {"counterfactuals": 0}},
    "everything": {"rng_seed": 2},
}
OUTPUTS = (
    "data/prepared", "checkpoints", "models", "telemetry", "reports/grown", "reports/figures", "reports/headroom.json",
    "reports/evaluation.json", "reports/metrics.json", "reports/findings.json", "reports/report.html", "dvc.lock",
)  # fmt: skip
LOCK = ".simic/workspace.lock"
HELD = re.compile(r"in use by process (\d+) on \S+, which runs stages; wait for it, or stop it first")
DVC_BUSY = re.compile(r"(?:\(PID (\d+)\): |Unable to acquire lock)")


def make_project(folder: Path) -> None:
    """A checkout with params of seconds, data to grow on, and `simic` as a command."""
    copy_checkout(folder)
    edit(Workspace(folder), tree("audit.certify=false").model_dump(mode="json"))
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 3
    np.savez(folder / "mine.npz", x=rng.random((240, 1, 8, 8), np.float32) + labels[:, None, None, None], y=labels)
    simic_command(folder)


def edit(workspace: Workspace, changes: dict) -> None:
    """Of params.yaml, whose sections it holds; others stay."""
    known = yaml.safe_load(workspace.params.read_text()) if workspace.params.exists() else {}
    for key, value in changes.items():
        known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
    workspace.params.write_text(yaml.safe_dump(known, sort_keys=False))


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    name: str
    code: int
    said: str
    seconds: float


class Command:
    """One that runs in a workspace; what it says goes to a file, so that it never waits for a reader. With ``notes``,
    what it changes in the workspace is noted there.
    """

    def __init__(self, workspace: Workspace, name: str, who: str = "alone", notes: Path | None = None, **more: str):
        self.name, self._began, root = name, time.monotonic(), workspace.root
        env = os.environ | {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(root), **more}
        if notes is not None:
            witness = Path(__file__).with_name("hook")
            env |= {"PYTHONPATH": f"{root}:{witness}", "WITNESS": str(notes), "WITNESS_BELOW": f"{root}/"}
            env |= {"WITNESS_AS": who}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed at its end
        self._process = subprocess.Popen(
            COMMANDS[name], cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=self._said, stderr=subprocess.STDOUT
        )

    def end(self) -> Ended:
        """Waits for it."""
        code = self._process.wait(timeout=900)
        seconds = time.monotonic() - self._began
        self._said.seek(0)
        with self._said as said:
            return Ended(self.name, code, said.read().decode(), seconds)


@dataclass(frozen=True)
class Note:
    """One change of one file."""

    at: float
    pid: int
    who: str
    program: str
    kind: str
    path: str


def read_notes(file: Path) -> list[Note]:
    """In the order of time."""
    split = [line.split(" ", 5) for line in file.read_text().splitlines()] if file.exists() else []
    return sorted((Note(float(at), int(pid), *rest) for at, pid, *rest in split), key=lambda note: note.at)


@dataclass(frozen=True)
class Hold:
    """From the moment that the holder has written its name until it removes it."""

    pid: int
    who: str
    start: float
    end: float


def holds(notes: Sequence[Note]) -> list[Hold]:
    """Of the workspace's lock; one that a process took with it ends never."""
    found, begun = [], dict[int, Note]()
    for note in notes:
        if note.path != LOCK:
            continue
        if note.kind == "write":
            begun[note.pid] = note
        elif note.kind == "os.remove" and note.pid in begun:
            first = begun.pop(note.pid)
            found.append(Hold(first.pid, first.who, first.at, note.at))
    found += [Hold(note.pid, note.who, note.at, float("inf")) for note in begun.values()]
    return sorted(found, key=lambda hold: hold.start)


@dataclass
class Watcher:
    """Looks at the outputs all the time: is each of them there, and is what is JSON whole?"""

    root: Path
    seen: list[str] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.001):
            self.looks += 1
            self.seen += [f"{name} is missing" for name in OUTPUTS if not os.path.lexists(self.root / name)]
            if self.looks % 20 == 0:
                self.seen += list(self._halves())

    def _halves(self) -> Iterator[str]:
        for name in OUTPUTS:
            if name.endswith(".json"):
                try:
                    json.loads((self.root / name).read_bytes())
                except ValueError as error:
                    yield f"{name} is half-written: {error}"
                except FileNotFoundError:
                    yield f"{name} is missing"


@dataclass(frozen=True)
class Pair:
    """Which two commands, after which edit, so long after each other (as a share of what the first one takes)."""

    number: int
    first: str
    second: str
    change: str
    offset: float

    @classmethod
    def drawn(cls, number: int) -> "Pair":
        """That of a number: always the same one."""
        draw = random.Random(number)
        names = list(COMMANDS)
        first, second = draw.choice(names[:-1]), draw.choice(names)
        return cls(number, first, second, draw.choice(list(CHANGES)), draw.random())


def together(pair: Pair, workspace: Workspace, notes: Path, seconds: float, **more: str) -> tuple[Ended, Ended]:
    """Both, the first of which would take so long alone."""
    first = Command(workspace, pair.first, "first", notes, **more)
    time.sleep(pair.offset * seconds)
    second = Command(workspace, pair.second, "second", notes, **more)
    return first.end(), second.end()


def copied(template: Path, target: Path) -> Workspace:
    return Workspace(Path(shutil.copytree(template, target, symlinks=True)))
