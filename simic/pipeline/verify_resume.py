"""Run `simic verify-resume`: kill small trainings of this project's params, data and code by SIGKILL at random moments,
resume them until they are done, and compare each byte for byte with one that was not killed.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, zip_longest
from pathlib import Path
from typing import NamedTuple

from simic import durable, params, rng, seals
from simic.audit.resume_certificate import ResumeCertificate, ResumeSubject
from simic.certify.small_training import composed, thinned
from simic.data.batches import data_hash
from simic.errors import SimicError, exit_with_message
from simic.params import EXTENSIONS_FOLDER, Params, digest
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training import checkpoint
from simic.training.machine import configure
from simic.training.observers import Observer
from simic.training.resume import Identity
from simic.training.session import layout

Say = Callable[[str], None]
PUBLISHED = ("checkpoints", "models", "telemetry")
PRELOADED = ("torch._dynamo", "torch.export", "simic.pipeline.stages", "simic.training.trainer", "simic.training.card")
MOST_FILES = 5  # that are named
MOST_LIVES = 4  # for each kill that is asked for: some end before their moment
REACH = 1.5  # iterations: how far a life may come at every other draw; at the others to the end


class Life(NamedTuple):
    """Describe a process that trained until it ended or was killed: its exit code, iterations begun, last words,
    seconds.
    """

    exitcode: int | None
    begun: list[int]
    said: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.exitcode == -signal.SIGKILL


class _Trace(Observer):
    """Note in a file, where a kill cannot reach it, which iterations are begun."""

    def __init__(self, file: Path):
        self.file = file

    def on_step(self, iteration: int, step: int) -> None:
        if step == 1:
            with self.file.open("a", encoding="utf-8") as trace:
                trace.write(f"{iteration}\n")


def live(root: Path, seconds: float | None, number: int) -> Life:
    """Train in the workspace ``root``, for so many seconds at most. What is begun and said is written beside."""
    trace, output = (root.with_name(f"{root.name}-{number}.{ending}") for ending in ("trace", "output"))
    context = multiprocessing.get_context("forkserver")  # which has imported everything, and computed nothing
    context.set_forkserver_preload(list(PRELOADED))
    warm = context.Process(target=int)  # the first one waits for the imports
    warm.start()
    warm.join()
    process, started = context.Process(target=_train, args=(root, trace, output)), time.monotonic()
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


def _train(root: Path, trace: Path, output: Path) -> None:
    """Train in the child from where an earlier one stopped, and publish."""
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    with exit_with_message("life"):
        workspace = Workspace(root)
        stages.train(params.load(workspace.params), workspace, (_Trace(trace),))
    sys.stdout.flush()


@dataclass
class KillTally:
    """Count what all killed trainings came to, under the names of the certificate."""

    kills: int = 0
    trainings: int = 0
    compared_files: int = 0
    compared_bytes: int = 0
    differing_bytes: int = 0
    differing: list[str] = field(default_factory=list)
    retrained_beyond_one: int = 0
    failures: list[str] = field(default_factory=list)

    def compare(self, expected: Mapping[str, bytes], got: Mapping[str, bytes]) -> int:
        """Compare files byte for byte; return how many bytes differ."""
        wrong = dict[str, int]()
        for name in sorted(expected.keys() | got.keys()):
            if expected.get(name) != got.get(name):  # of a file that only one of them has, all of it, and at least one
                pairs = zip_longest(expected.get(name, b""), got.get(name, b""))
                wrong[name] = max(1, sum(one != other for one, other in pairs))
        self.compared_files += len(expected)
        self.compared_bytes += sum(map(len, expected.values()))
        self.differing_bytes += sum(wrong.values())
        self.differing += [f"{name} ({count})" for name, count in wrong.items()]
        return sum(wrong.values())


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
        tally, twin = kill_trainings(begun, kills, seed, say)
        machine = checkpoint.read_published(twin.checkpoints, "latest").manifest.machine
    hardware = {"device": machine.device, "cpu": machine.cpu_capability, "threads": str(machine.threads)}
    subject = ResumeSubject(**before, machine={"python": machine.python, **machine.libraries, **hardware})
    counted = vars(tally) | {"kills": {"any time": tally.kills}, "differing": tally.differing[:MOST_FILES]}
    certificate = ResumeCertificate(subject=subject, trained=trained, seed=seed, **counted)
    if _hashes(tree, workspace) != before:
        raise SimicError("code or data changed while trainings were killed: nothing is certified; run it again")
    workspace.reports.mkdir(exist_ok=True)
    durable.replace_file(workspace.resume, certificate.content())
    return certificate


def _project(tree: Params, workspace: Workspace, target: Workspace) -> Params:
    """Make the smallest training with the settings of this one, as a project of its own."""
    layout(tree, configure(tree.runtime))  # sets as many threads as its training has
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


def kill_trainings(begun: Workspace, kills: int, seed: int, say: Say) -> tuple[KillTally, Workspace]:
    """Train in copies of the project ``begun``, killed ``kills`` times in all, and compare each with a twin that
    is not, which is returned too. Stop where a training fails.
    """
    twin = Workspace(shutil.copytree(begun.root, begun.root.with_name("twin")))
    whole = live(twin.root, None, 0)
    if whole.exitcode:
        raise SimicError(f"the training that nobody kills fails: {whole.said}")
    expected, tally = contents(twin), KillTally()
    moments = _moments(seed, params.load(begun.params).train.iterations, whole.seconds)
    while tally.kills < kills and not tally.failures:
        tally.trainings += 1
        child = Workspace(shutil.copytree(begun.root, begun.root.with_name(f"killed-{tally.trainings}")))
        done = set[int]()
        for number in range(MOST_LIVES * kills):  # until it is done, or all kills are spent
            life = live(child.root, next(moments) if tally.kills < kills else None, number)
            tally.kills += life.killed
            tally.retrained_beyond_one += max(0, len(done & {*life.begun}) - 1)
            done |= {*life.begun}
            if not life.killed:
                if life.exitcode:
                    tally.failures.append(f"training {tally.trainings}: {life.said}")
                break
        differing = tally.compare(expected, contents(child))
        total = sum(map(len, expected.values()))
        say(f"training {tally.trainings}: {tally.kills} of {kills} kills, {differing} of {total} bytes differ")
        shutil.rmtree(child.root)
    return tally, twin


def _moments(seed: int, iterations: int, seconds: float) -> Iterator[float]:
    """Yield the seconds that lives have: less than an iteration or two take, or than the whole training, in turn."""
    for draw in count(1):
        share = 1.0 if draw % 2 else min(REACH / iterations, 1.0)
        yield float(rng.uniform(rng.key(seed, rng.Purpose.KILL, draw))) * share * seconds


def contents(workspace: Workspace) -> dict[str, bytes]:
    """Return what does not differ between equal trainings, by place: what is published, its seal without hashes of
    wall times, and log and checkpoints of the work directory. Hidden entries are what a removal that was cut short has
    left: nothing reads them.
    """
    root = workspace.root
    work = [folder for folder in (workspace.state / "work").glob("[!.]*") if folder.is_dir()]
    folders = [parent / name for parent in (root, *work) for name in PUBLISHED]
    shown = [path for folder in folders for path in folder.glob("[!.]*")]
    files = [file for path in shown for file in (path, *path.rglob("*")) if file.is_file()]
    files_by_place = {str(file.relative_to(root)): file.read_bytes() for file in files if file.name not in seals.APART}
    seal = seals.read(root, "train")
    if seal is not None:
        path = seals.path_of(root, "train").relative_to(root)
        files_by_place[str(path)] = seal.model_copy(update={"apart": {}}).model_dump_json().encode()
    return files_by_place
