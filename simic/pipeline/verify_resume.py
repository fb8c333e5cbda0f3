"""`simic verify-resume`: small trainings of this project's params, data and code that are killed by SIGKILL at random
moments and resumed until they are done, each held byte for byte against one that was not killed.
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

import numpy as np

from simic import durable, params, rng, seals
from simic.audit.resume_certificate import ResumeCertificate, ResumeSubject
from simic.certify.small_training import composed, thinned
from simic.data.batches import data_hash
from simic.errors import SimicError
from simic.params import EXTENSIONS_FOLDER, Params, digest
from simic.pipeline import lives
from simic.pipeline.lives import Life, Moment, Where
from simic.pipeline.paths import Workspace
from simic.training import checkpoint, machine
from simic.training.resume import Identity
from simic.training.session import layout

T = TypeVar("T")
Say = Callable[[str], None]
Contents = Callable[[Workspace], Mapping[str, bytes]]
PUBLISHED = ("checkpoints", "models", "telemetry")
TRAINING: tuple[Where, ...] = ("step", "checkpoint", "record", "any time")
FINISHING: tuple[Where, ...] = ("publication",) * 3  # has more changes than all of them
MOST_FILES = 5  # that are named
MOST_LIVES = 4  # for each kill that is asked for: some end before their moment
REACH = 1.5  # iterations: how far a life may come before it is killed
LATE_SECONDS = 0.004  # after a change is begun: a write and its sync take about as long


class Parting(NamedTuple):
    """How far two trainings are apart."""

    files: int
    bytes: int
    differing_bytes: int
    differing: tuple[str, ...]


@dataclass
class KillTally:
    """What all killed trainings came to."""

    kills: Counter[str] = field(default_factory=Counter)
    trainings: int = 0
    partings: list[Parting] = field(default_factory=list)
    retrained: int = 0
    failures: list[str] = field(default_factory=list)


def verify(tree: Params, workspace: Workspace, kills: int, seed: int, say: Say) -> ResumeCertificate:
    """Does it in a folder of its own and writes reports/resume.json."""
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
            kills={name: tally.kills[name] for name in get_args(Where) if tally.kills[name]},
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
    durable.replace_file(workspace.resume, found.to_json())
    return found


def _project(tree: Params, workspace: Workspace, target: Workspace) -> Params:
    """The smallest training with the settings of this one, as a project of its own."""
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
    """As the audit finds them in the seal and the checkpoints of a run."""
    code, _ = seals.recipe(workspace.root, "train", tree)
    return {
        "code_sha256": digest(code),
        "params_sha256": digest(Identity.params_of(tree)),
        "data_sha256": data_hash(workspace.prepared),
    }


def _machine(trained: Workspace) -> dict[str, str]:
    """The same."""
    found = checkpoint.read_published(trained.checkpoints, "latest").manifest.machine
    hardware = {"device": found.device, "cpu": found.cpu_capability, "threads": str(found.threads)}
    return {"python": found.python, **found.libraries, **hardware}


class Proof:
    """Trainings of the project ``begun``, killed ``kills`` times in all, beside the twin that was not. ``work`` is what
    a life does, ``left`` what it is held to.
    """

    def __init__(
        self,
        begun: Workspace,
        kills: int,
        seed: int,
        say: Say,
        work: lives.Work = lives.train,
        left: Contents | None = None,
    ):
        self.begun, self.kills, self.say, self.work, self.left = begun, kills, say, work, left or contents
        self.iterations = params.load(begun.params).train.iterations
        self.seed, self.draws = seed, 0
        self.tally = KillTally()
        self.twin = self._copy("twin")
        self.whole = lives.live(self.twin.root, None, 0, work)
        if self.whole.exitcode:
            raise SimicError(f"the training that nobody kills fails: {self.whole.said}")
        self.expected = self.left(self.twin)

    def run(self) -> KillTally:
        """Until there are as many kills as were asked for, or a training has failed."""
        while sum(self.tally.kills.values()) < self.kills and not self.tally.failures:
            self._training()
        return self.tally

    def _training(self) -> None:
        """One, killed until it is done."""
        self.tally.trainings += 1
        child, begun = self._copy(f"killed-{self.tally.trainings}"), list[int]()
        for number in range(MOST_LIVES * self.kills):
            life = self._life(child, number, begun)
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
            f"training {self.tally.trainings}: {sum(self.tally.kills.values())} of {self.kills} kills, "
            f"{parting.differing_bytes} of {parting.bytes} bytes differ"
        )
        shutil.rmtree(child.root)

    def _life(self, child: Workspace, number: int, begun: list[int]) -> Life:
        last = sum(self.tally.kills.values()) >= self.kills
        moment = None if last else self._moment(max(begun, default=0))
        life = lives.live(child.root, moment, number, self.work)
        if life.killed and moment is not None:
            self.tally.kills[moment.where] += 1
        return life

    def _moment(self, begun: int) -> Moment:
        """In this iteration or early in the next; at any change of publication where there is no next."""
        finishing = begun >= self.iterations - 1
        where = self._one_of((*TRAINING, *FINISHING) if finishing else TRAINING)
        if where == "any time":
            return Moment(where, self._drawn() * REACH * self.whole.seconds / self.iterations)
        counted = self.whole.counts[where]
        most = counted if where == "publication" else int(REACH * counted / self.iterations)
        late = self._one_of((0.0, self._drawn() * LATE_SECONDS))
        return Moment(where, self._one_of(range(1, 1 + max(1, most))), late)

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self._drawn() * len(choices))]

    def _drawn(self) -> float:
        """The next of this seed, at least 0 and less than 1."""
        self.draws += 1
        return float(rng.uniform(rng.key(self.seed, rng.Purpose.KILL, self.draws)))

    def _copy(self, name: str) -> Workspace:
        return Workspace(Path(shutil.copytree(self.begun.root, self.begun.root.with_name(name))))


def apart(expected: Mapping[str, bytes], got: Mapping[str, bytes]) -> Parting:
    """Byte for byte, of all that does not differ between equal trainings."""
    wrong = {name: _differing(expected.get(name), got.get(name)) for name in sorted(expected.keys() | got.keys())}
    named = tuple(f"{name} ({count})" for name, count in wrong.items() if count)
    return Parting(len(expected), sum(map(len, expected.values())), sum(wrong.values()), named)


def contents(workspace: Workspace) -> dict[str, bytes]:
    """What a training leaves, by place: what is published, its seal without hashes of wall times, and log and
    checkpoints of the work directory.
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
    """What a removal that was cut short has left: nothing reads it."""
    return place.parts[0].startswith(".")


def _differing(expected: bytes | None, got: bytes | None) -> int:
    """Bytes; of a file that only one of them has, all of it, and at least one."""
    if expected is None or got is None:
        return max(1, len(expected or got or b""))
    shorter = min(len(expected), len(got))
    first, second = (np.frombuffer(each, dtype=np.uint8, count=shorter) for each in (expected, got))
    return int((first != second).sum()) + abs(len(expected) - len(got))
