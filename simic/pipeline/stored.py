"""Whether what a project or an unfinished training has on disk is sound; what is not, what the next start makes of it,
and what to do. Nothing is changed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simic import durable, seals
from simic.data.batches import META_FILE, read_meta
from simic.errors import SimicError
from simic.pipeline import mlflow_debts, stored_work
from simic.pipeline.answers import Answer, damaged, sound
from simic.pipeline.paths import Workspace
from simic.telemetry import starts, timing
from simic.training import checkpoint

PUBLISHED = ("best", "latest")
TRAIN_AGAIN = "simic run would train anew"


@dataclass(frozen=True)
class Place:
    """Something that is stored, how it is read, and what becomes of it where that fails."""

    name: str
    read: Callable[[], str]
    then: str

    def answer(self) -> Answer:
        """One line."""
        try:
            return sound(self.name, self.read())
        except (SimicError, OSError, pa.ArrowInvalid) as error:
            return damaged(self.name, str(error).splitlines()[0], self.then)


def examine(run: Path) -> list[Answer]:
    """Of a folder of .simic/work, or of a workspace and all such folders in it; SimicError where it is neither."""
    if stored_work.is_work(run):
        return list(stored_work.examine(run))
    found = list(of_workspace(Workspace(run)))
    if not found and not Workspace(run).params.exists():
        raise SimicError(f"{run}: neither a project nor a folder of .simic/work; simic where names the latter")
    return found


def of_workspace(workspace: Workspace) -> Iterator[Answer]:
    """Prepared data, what is published, its seals, what MLflow is owed, and unfinished or finished work."""
    for place in (*_prepared(workspace), *_checkpoints(workspace), *_telemetry(workspace), *_seals(workspace.root)):
        yield place.answer()
    yield from _debts(workspace)
    for parent in (workspace.state / "work", workspace.finished):
        for folder in sorted(path for path in parent.glob("[!.]*") if path.is_dir()):
            yield from stored_work.examine(folder)


def _prepared(workspace: Workspace) -> Iterator[Place]:
    folder = workspace.prepared
    if not folder.exists():
        return

    def read() -> str:
        meta = read_meta(folder)
        for name, digest in meta.sha256.items():
            if not (folder / name).exists():
                raise SimicError(f"{name} is missing")
            if durable.sha256(folder / name) != digest:
                raise SimicError(f"the sha256 of {name} is not the one in {META_FILE}")
        return f"{len(meta.sha256)} files"

    yield Place("data/prepared", read, "what reads it refuses; simic prepare makes it again")


def _checkpoints(workspace: Workspace) -> Iterator[Place]:
    for name in PUBLISHED if workspace.checkpoints.exists() else ():

        def read(name: str = name) -> str:
            found = checkpoint.read_published(workspace.checkpoints, name)
            return f"after {found.manifest.iteration} iterations, in the run's hash chain"

        then = f"evaluate and audit refuse it, {TRAIN_AGAIN}; dvc checkout checkpoints brings back what was recorded"
        yield Place(f"checkpoints/{name}", read, then)


def _telemetry(workspace: Workspace) -> Iterator[Place]:
    readers = {"*.parquet": _rows, timing.TIMING_FILE: _times, starts.RUN_FILE: _starts}
    then = f"the audit refuses it, {TRAIN_AGAIN}; dvc checkout telemetry brings back what was recorded"
    for pattern, read in readers.items():
        for path in sorted(workspace.telemetry.glob(pattern)):
            yield Place(f"telemetry/{path.name}", lambda path=path, read=read: read(path), then)


def _rows(path: Path) -> str:
    return f"{pq.read_table(path).num_rows} rows"


def _times(path: Path) -> str:
    return f"times of {len(timing.read(path))} iterations"


def _starts(path: Path) -> str:
    return f"{len(starts.read(path))} starts"


def _seals(root: Path) -> Iterator[Place]:
    """Of every stage that has made something: whether that is what it sealed."""
    for stage, sealed in seals.STAGES.items():
        if not any((root / place).exists() for place in sealed.writes):
            continue

        def read(stage: str = stage) -> str:
            seal = seals.read(root, stage)
            if seal is None:
                raise SimicError("missing, or not readable")
            now = {place: seals.content_hash(root / place) for place in seal.writes}
            now |= {place: seals.content_hash(root / place) for place in seal.apart}
            other = [place for place, digest in (seal.writes | seal.apart).items() if now[place] != digest]
            if other:
                raise SimicError(f"{', '.join(other)} changed since")
            return f"holds of {', '.join(seal.writes)}"

        then = f"the audit finds it (X6), simic run does {stage} again; dvc checkout brings back what was recorded"
        yield Place(f"seal of {stage}", read, then)


def _debts(workspace: Workspace) -> Iterator[Answer]:
    folder = workspace.state / mlflow_debts.FOLDER
    for file in sorted(folder.glob("*.json")):

        def read(file: Path = file) -> str:
            try:
                owed = mlflow_debts.parse(file.read_bytes())
            except ValueError as error:
                raise SimicError(str(error)) from None
            parts = [name for name, part in (("training", owed.training), ("audit", owed.report)) if part is not None]
            return f"its {' and '.join(parts)}; told at the next start, or when MLflow is back"

        then = "the next start puts it aside, and MLflow never has it; telemetry/ has all of it"
        yield Place(f"owed to MLflow of run {file.stem}", read, then).answer()
    for file in sorted(folder.glob("*.damaged")):
        then = "MLflow never has it, telemetry/ has all of it; remove the file"
        yield damaged(f"owed to MLflow of run {file.stem}", "put aside", then)
