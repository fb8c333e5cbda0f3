"""Answer `simic doctor`: whether machine and checkout are fit for a run, and what is stored is whole; nothing changes.

What a stage made is held against its seal. Of unfinished training the checks of the next start are made.
"""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from simic import durable, params, seals
from simic.errors import SimicError
from simic.pipeline import dvc_record, training_work
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.telemetry.recorder import FOLDER as LOG
from simic.telemetry.recorder import Chain
from simic.training import resume, worker_layout
from simic.training.checkpoint import CheckpointStore
from simic.training.run_layout import CHECKPOINTS, IDENTITY

FREE_GIB = 2.0
MOST_NAMED = 3  # files in one line


@dataclass(frozen=True)
class Answer:
    """Hold a line of `simic doctor`: what was checked, whether it is well, and what was seen."""

    question: str
    well: bool
    seen: str


def examine(workspace: Workspace) -> list[Answer]:
    """Check what a run needs, in the order in which to put things right."""
    # Checkpoints are written beside the old ones, so that a full disk stops a run late.
    free = shutil.disk_usage(workspace.root).free / 2**30
    writable = os.access(workspace.root, os.W_OK)
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU (none is needed)"
    )
    # Each answer is the condition of the next: without packages DVC cannot be asked.
    return [
        _asked("packages", _packages),
        _asked("code", lambda: _code(workspace.root)),
        _asked("params.yaml", lambda: f"valid, rng_seed {params.load(workspace.params).rng_seed}"),
        _asked(
            "dvc",
            lambda: (
                f"prepare is {'out of' if dvc_record.is_stale(workspace.root, 'prepare') else 'up to'} date"
            ),
        ),
        Answer(
            "disk",
            writable and free >= FREE_GIB,
            f"{free:.1f} GiB free, {'' if writable else 'not '}writable",
        ),
        Answer(
            "compute",
            True,
            f"{worker_layout.cores()} of {os.cpu_count()} CPUs, {torch.get_num_threads()} torch threads, {device}",
        ),
        _asked("training", lambda: "; ".join(training_work.describe(workspace)) or "none"),
    ]


def _asked(question: str, ask: Callable[[], str]) -> Answer:
    try:
        return Answer(question, True, ask())
    except SimicError as error:
        return Answer(question, False, str(error))


def _packages() -> str:
    try:
        versions = [
            f"{name} {importlib.metadata.version(name)}"
            for name in ("torch", "prefect", "mlflow", "dvc")
        ]
    except importlib.metadata.PackageNotFoundError as missing:
        raise SimicError(
            f"{missing.name} is not installed; pip install 'simic-grow[pipeline]'"
        ) from None
    return ", ".join((f"python {platform.python_version()}", *versions))


def _code(root: Path) -> str:
    """Say whether the code is what it was; SimicError where files of it are missing."""
    if removed := dvc_record.removed_files(root):
        raise SimicError(
            f"missing: {', '.join(removed[:MOST_NAMED])}; git checkout, or another installation, brings them back"
        )
    if changed := dvc_record.changed_files(root):
        return f"differs from the commit: {', '.join(changed[:MOST_NAMED])} ({len(changed)} files)"
    if revision := dvc_record.code_revision(root):
        return f"that of commit {revision[:12]}"
    # Without git only what has run here tells what the code was.
    for stage in seals.STAGES:
        seal = seals.read(root, stage)
        now = seals.code_hashes(seals.STAGES[stage].code)
        if seal is not None and (
            other := [name for name in now if seal.code.get(name) != now[name]]
        ):
            raise SimicError(
                f"simic/{', simic/'.join(other[:MOST_NAMED])}: edited, or files are missing, since {stage} ran; "
                "unpack simic again, or simic run does that stage again"
            )
    return "as it was when the stages ran"


def examine_stored(run: Path) -> list[Answer]:
    """Check a folder of .simic/work, or a project and all such folders in it; SimicError where it is neither."""
    workspace = Workspace(run)
    # A single work folder may come from elsewhere, as in a bug report.
    if not workspace.params.exists() and (
        (run / IDENTITY).exists() or any((run / CHECKPOINTS).glob("[0-9]*"))
    ):
        return list(_work(run))
    answers = [*_made(run), *_stores(run)]
    for training in training_work.trainings(workspace):
        answers += _work(training.folder)
    if not answers and not workspace.params.exists():
        raise SimicError(f"{run}: neither a project nor a folder of .simic/work")
    return answers


def _damaged(name: str, what: str, then: str) -> Answer:
    return Answer(name, False, f"damaged: {what}; {then}")


def _made(root: Path) -> Iterator[Answer]:
    """Hold what every stage has made against the hashes that it noted, and its seal against dvc.lock."""
    try:
        recorded = dvc_record.recorded_stages(root)
    except SimicError as error:
        yield Answer("dvc.lock", False, str(error))
        recorded = set[str]()
    seal_of = {
        stage: seal for stage in seals.STAGES if (seal := seals.read(root, stage)) is not None
    }
    digests = {place: digest for seal in seal_of.values() for place, digest in seal.writes.items()}
    reads = {place for seal in seal_of.values() for place in seal.reads}
    for stage, sealed in seals.STAGES.items():
        file = seals.path_of(Path(), stage).as_posix()
        # A stage that has not run is not damaged: nothing is there of it, and nobody has read or recorded any of it.
        places = (*sealed.writes, file)
        has_run = stage in recorded or any(
            place in reads or (root / place).exists() for place in places
        )
        if not has_run:
            continue
        problems = [f"{file} is missing or not readable"]
        if (seal := seal_of.get(stage)) is not None:
            # Files that differ between equal runs have hashes of their own in the seal.
            problems = [
                f"{place} {'changed since' if (root / place).exists() else 'is missing'}"
                for place, digest in (seal.writes | seal.apart).items()
                if seals.content_hash(root / place) != digest
            ]
            # What another stage made, and the seals themselves.
            problems += [
                f"{place} is not the one that it read"
                for place, digest in seal.reads.items()
                if digests.get(place, digest) != digest
                or (place.startswith(seals.FOLDER.as_posix()) and _differs(root / place, digest))
            ]
            if recorded and not dvc_record.is_recorded(root, file):
                problems.append(f"{file} is not the one in dvc.lock")
        if problems:
            then = f"simic run does {stage} again, dvc checkout brings back what was recorded"
            yield _damaged(f"made by {stage}", ", ".join(problems), then)
        else:
            yield Answer(f"made by {stage}", True, f"whole: {', '.join(sealed.writes)}")


def _differs(path: Path, digest: str) -> bool:
    return seals.content_hash(path) != digest


def _stores(root: Path) -> Iterator[Answer]:
    """Look into MLflow's store and DVC's cache, where they are in the project."""
    store = root / "mlflow.db"
    if store.exists():
        then = "move it away: the next run makes a new one, and what it had is lost"
        damage = durable.database_damage(store, "experiments")
        yield _damaged(store.name, damage, then) if damage else Answer(store.name, True, "whole")
    if damaged := dvc_record.damaged_cache(root):
        then = "remove them; dvc commit stores again what is here"
        yield _damaged("DVC's cache", ", ".join(map(str, damaged[:MOST_NAMED])), then)


def _work(folder: Path) -> Iterator[Answer]:
    """Say where training goes on in this folder, and what becomes of what is damaged."""
    # Nothing is repaired here: the next start does that, and a user may want a copy before.
    name = f"work {run_name(folder.name)}"
    store = CheckpointStore(folder / CHECKPOINTS, 1)
    log = Chain.of(folder / LOG)
    try:
        # The very function that the next start calls: so that both say the same.
        start, newer = resume.usable(store, log)
    except SimicError as error:
        yield Answer(f"{name}, checkpoints", False, f"not usable: {error}")
        return
    then = "the next start refuses: no checkpoint is usable; --fresh starts over"
    if start is not None:
        then = f"the next start goes on after {start.manifest.iteration} iterations; nothing to do"
        yield Answer(
            f"{name}, checkpoints",
            True,
            f"training goes on after {start.manifest.iteration} iterations",
        )
        # The best checkpoint is the one that the checkpoint to start from names.
        extent = resume.extent_of(start.manifest)
        best = start.manifest.best_iteration
        damage = None if best is None else resume.damage_of(store, best, log.links(extent))
        if damage is not None:
            yield _damaged(
                f"{name}, checkpoint {best}",
                str(damage),
                "the next start takes the best of the others",
            )
    elif not newer:
        yield Answer(
            f"{name}, checkpoints", True, "none yet; the next start begins at the beginning"
        )
    for iteration, damage in newer.items():
        yield _damaged(f"{name}, checkpoint {iteration}", str(damage), then)
    # The identity is compared when params change, so that its damage shows late.
    if (folder / IDENTITY).exists() and training_work.Training.read(folder).identity is None:
        then = "with its params, data and code the next start writes it again, with others it cannot go on"
        yield _damaged(f"{name}, {IDENTITY}", "its checksum does not match", then)
