"""`simic verify-resume`: small trainings of this project's params, data and code that are killed by SIGKILL at random
moments and resumed until they are done, each held byte for byte against one that was not killed.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simic import durable, params, rng, seals
from simic.audit.resume_certificate import ResumeCertificate, ResumeSubject
from simic.certify.small_training import composed, thinned
from simic.data.batches import data_hash
from simic.errors import SimicError, exit_with_message
from simic.params import EXTENSIONS_FOLDER, Params, digest
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training import checkpoint, machine
from simic.training.observers import Observer
from simic.training.resume import Identity
from simic.training.session import layout

Say = Callable[[str], None]
Contents = Callable[[Workspace], Mapping[str, bytes]]
Work = Callable[[Workspace, Observer], None]  # a function of a module, which another process imports
PUBLISHED = ("checkpoints", "models", "telemetry")
PRELOADED = ("torch._dynamo", "torch.export", "simic.pipeline.stages", "simic.training.trainer", "simic.training.card")
MOST_FILES = 5  # that are named
MOST_LIVES = 4  # for each kill that is asked for: some end before their moment
REACH = 1.5  # iterations: how far a life may come at every other draw; at the others to the end


class Life(NamedTuple):
    """A process that trained until it ended or was killed: the iterations it began, and its last words."""

    exitcode: int | None
    begun: list[int]
    said: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.exitcode == -signal.SIGKILL


class _Trace(Observer):
    """Writes down, where a kill cannot reach it, which iterations are begun."""

    def __init__(self, file: Path):
        self.file = file

    def on_step(self, iteration: int, step: int) -> None:
        if step == 1:
            with self.file.open("a", encoding="utf-8") as trace:
                trace.write(f"{iteration}\n")


def train(workspace: Workspace, watching: Observer) -> None:
    """Train from where an earlier process stopped, and publish."""
    stages.train(params.load(workspace.params), workspace, (watching,))


def live(root: Path, seconds: float | None, number: int, work: Work = train) -> Life:
    """Do the work in the workspace ``root``, for so many seconds at most. What is begun and said is written beside."""
    trace, output = (root.with_name(f"{root.name}-{number}.{ending}") for ending in ("trace", "output"))
    context = multiprocessing.get_context("forkserver")  # which has imported everything, and computed nothing
    context.set_forkserver_preload(list(PRELOADED))
    warm = context.Process(target=int)  # the first one waits for the imports
    warm.start()
    warm.join()
    process, started = context.Process(target=_run, args=(work, root, trace, output)), time.monotonic()
    process.start()
    try:
        process.join(seconds)
    finally:
        process.kill()
        process.join()
    begun = trace.read_text(encoding="utf-8").split() if trace.exists() else []
    said = output.read_text(encoding="utf-8", errors="replace").strip() if output.exists() else ""
    last = said.rpartition("\n")[2] or f"exit code {process.exitcode}, without a word"
    return Life(process.exitcode, [*map(int, begun)], last, time.monotonic() - started)


def _run(work: Work, root: Path, trace: Path, output: Path) -> None:
    """Run in the child."""
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    with exit_with_message("life"):
        work(Workspace(root), _Trace(trace))
    sys.stdout.flush()


class Parting(NamedTuple):
    """How far two trainings are apart."""

    files: int
    bytes: int
    differing_bytes: int
    differing: tuple[str, ...]


@dataclass
class KillTally:
    """What all killed trainings came to."""

    kills: int = 0
    trainings: int = 0
    partings: list[Parting] = field(default_factory=list)
    retrained: int = 0
    failures: list[str] = field(default_factory=list)


def verify(tree: Params, workspace: Workspace, kills: int, seed: int, say: Say) -> ResumeCertificate:
    """Kill small trainings in a folder of its own and write reports/resume.json."""
    with tempfile.TemporaryDirectory(prefix="simic-verify-resume-") as scratch:
        begun = Workspace(Path(scratch) / "begun")
        small = _project(tree, workspace, begun)
        trained = (
            f"a small training of this project: {small.train.iterations} iterations of {small.train.episode_steps} "
            f"steps, {small.train.envs} hosts"
        )
        say(f"trained    {trained}, not killed")
        before = _hashes(tree, workspace)
        proof = Proof(begun, kills, seed, say)
        tally = proof.run()
        found = ResumeCertificate(
            subject=ResumeSubject(**before, machine=_machine(proof.twin)),
            trained=trained,
            seed=seed,
            trainings=tally.trainings,
            kills={"any time": tally.kills},
            compared_files=sum(each.files for each in tally.partings),
            compared_bytes=sum(each.bytes for each in tally.partings),
            differing_bytes=sum(each.differing_bytes for each in tally.partings),
            differing=tuple(name for each in tally.partings for name in each.differing)[:MOST_FILES],
            retrained_beyond_one=tally.retrained,
            failures=tuple(tally.failures),
        )
    if _hashes(tree, workspace) != before:
        raise SimicError("code or data changed while trainings were killed: nothing is certified; run it again")
    workspace.reports.mkdir(exist_ok=True)
    durable.replace_file(workspace.resume, found.content())
    return found


def _project(tree: Params, workspace: Workspace, target: Workspace) -> Params:
    """Make the smallest training with the settings of this one, as a project of its own."""
    device = machine.configure(tree.runtime)
    layout(tree, device)  # sets as many threads as its training has
    quiet = tree.model_copy(update={"runtime": tree.runtime.model_copy(update={"progress": "none"})})
    thinned(workspace.prepared, target.prepared)
    small = composed(quiet, target.prepared)
    target.params.write_text(json.dumps(small.model_dump(mode="json")), encoding="utf-8")
    if tree.extensions:
        shutil.copytree(workspace.root / EXTENSIONS_FOLDER, target.root / EXTENSIONS_FOLDER)
    return params.load(target.params)


def _hashes(tree: Params, workspace: Workspace) -> dict[str, str]:
    """Return the hashes that the audit finds in the seal and the checkpoints of a run."""
    code, _ = seals.recipe(workspace.root, "train", tree)
    return {
        "code_sha256": digest(code),
        "params_sha256": digest(Identity.params_of(tree)),
        "data_sha256": data_hash(workspace.prepared),
    }


def _machine(trained: Workspace) -> dict[str, str]:
    found = checkpoint.read_published(trained.checkpoints, "latest").manifest.machine
    hardware = {"device": found.device, "cpu": found.cpu_capability, "threads": str(found.threads)}
    return {"python": found.python, **found.libraries, **hardware}


class Proof:
    """Trainings of the project ``begun``, killed ``kills`` times in all, beside the twin that was not. ``work`` is what
    a life does, ``left`` what it is held to.
    """

    def __init__(
        self, begun: Workspace, kills: int, seed: int, say: Say, work: Work = train, left: Contents | None = None
    ):
        self.begun, self.kills, self.say, self.work, self.left = begun, kills, say, work, left or contents
        self.iterations = params.load(begun.params).train.iterations
        self.seed, self.draws = seed, 0
        self.tally = KillTally()
        self.twin = self._copy("twin")
        self.whole = live(self.twin.root, None, 0, work)
        if self.whole.exitcode:
            raise SimicError(f"the training that nobody kills fails: {self.whole.said}")
        self.expected = self.left(self.twin)

    def run(self) -> KillTally:
        """Train until there are as many kills as were asked for, or a training has failed."""
        while self.tally.kills < self.kills and not self.tally.failures:
            self._training()
        return self.tally

    def _training(self) -> None:
        """Do one training, killed until it is done."""
        self.tally.trainings += 1
        child, begun = self._copy(f"killed-{self.tally.trainings}"), list[int]()
        for number in range(MOST_LIVES * self.kills):
            life = self._life(child, number)
            again = {*begun} & {*life.begun}
            self.tally.retrained += max(0, len(again) - 1)
            begun += life.begun
            if life.exitcode == 0:
                break
            if not life.killed:
                self.tally.failures.append(f"training {self.tally.trainings}: {life.said}")
                break
        parting = apart(self.expected, self.left(child))
        self.tally.partings.append(parting)
        self.say(
            f"training {self.tally.trainings}: {self.tally.kills} of {self.kills} kills, "
            f"{parting.differing_bytes} of {parting.bytes} bytes differ"
        )
        shutil.rmtree(child.root)

    def _life(self, child: Workspace, number: int) -> Life:
        life = live(child.root, None if self.tally.kills >= self.kills else self._moment(), number, self.work)
        self.tally.kills += life.killed
        return life

    def _moment(self) -> float:
        """Return the seconds that a life has: less than it needs for an iteration or two, or for the whole training."""
        self.draws += 1
        key = rng.key(self.seed, rng.Purpose.KILL, self.draws)
        share = 1.0 if self.draws % 2 else REACH / self.iterations
        return float(rng.uniform(key)) * min(share, 1.0) * self.whole.seconds

    def _copy(self, name: str) -> Workspace:
        return Workspace(Path(shutil.copytree(self.begun.root, self.begun.root.with_name(name))))


def apart(expected: Mapping[str, bytes], got: Mapping[str, bytes]) -> Parting:
    """Compare byte for byte."""
    wrong = {name: _differing(expected.get(name), got.get(name)) for name in sorted(expected.keys() | got.keys())}
    named = tuple(f"{name} ({count})" for name, count in wrong.items() if count)
    return Parting(len(expected), sum(map(len, expected.values())), sum(wrong.values()), named)


def contents(workspace: Workspace) -> dict[str, bytes]:
    """Return what does not differ between equal trainings, by place: what is published, its seal without hashes of
    wall times, and log and checkpoints of the work directory.
    """
    root = workspace.root
    work = [folder for folder in (workspace.state / "work").glob("[!.]*") if folder.is_dir()]
    folders = [*(root / name for name in PUBLISHED), *(each / name for each in work for name in PUBLISHED)]
    files = [
        file
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file() and file.name not in seals.APART and not _leftover(file.relative_to(folder))
    ]
    found = {str(file.relative_to(root)): file.read_bytes() for file in files}
    seal = seals.read(root, "train")
    if seal is not None:
        path = seals.path_of(root, "train").relative_to(root)
        found[str(path)] = seal.model_copy(update={"apart": {}}).model_dump_json().encode()
    return found


def _leftover(place: Path) -> bool:
    """Return whether a removal that was cut short has left it: nothing reads it."""
    return place.parts[0].startswith(".")


def _differing(expected: bytes | None, got: bytes | None) -> int:
    """Count bytes that differ; of a file that only one of them has, all of it, and at least one."""
    if expected is None or got is None:
        return max(1, len(expected or got or b""))
    shorter = min(len(expected), len(got))
    first, second = (np.frombuffer(each, dtype=np.uint8, count=shorter) for each in (expected, got))
    return int((first != second).sum()) + abs(len(expected) - len(got))
