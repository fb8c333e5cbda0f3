"""Unfinished training in .simic/work that the next training does not go on with: what it is, why, and its removal."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simic import durable, params
from simic.data.batches import META_FILE, data_hash
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import continuing, recipe, stages
from simic.pipeline.paths import Workspace
from simic.pipeline.recipe import Changes, TrainingRecipe
from simic.telemetry.naming import run_name
from simic.training.checkpoint import CheckpointStore, read_manifest
from simic.training.resume import HARMLESS, Identity, differences
from simic.training.run_layout import CHECKPOINTS

MOST_CHANGES = 3  # that are named
UNKNOWN = "params, data or code, as nothing was saved that says which,"
UNPREPARED = "the prepared data"


@dataclass(frozen=True)
class Leftover:
    """One unfinished run; ``changed`` is why training does not go on with it, empty where it does. It would with
    ``--allow-code-change`` where ``code_alone`` has changed.
    """

    path: Path
    iterations: int
    changed: tuple[str, ...]
    code_alone: bool = False

    def __str__(self) -> str:
        return (
            f"unfinished run {run_name(self.path.name)}: {self.iterations} iterations, {_size(self.path)}, {self.path}"
        )


def found(workspace: Workspace) -> list[Leftover]:
    """All unfinished training, that of the present params, data and code first."""
    folders = sorted(path for path in (workspace.state / "work").glob("[!.]*") if path.is_dir())
    if not folders:
        return []
    tree = params.load(workspace.params)
    now = TrainingRecipe.of(tree, workspace) if (workspace.prepared / META_FILE).exists() else None
    return sorted((_of(path, now, tree) for path in folders), key=lambda each: bool(each.changed))


def others(workspace: Workspace) -> list[Leftover]:
    """What is not of the present params, data and code."""
    return [each for each in found(workspace) if each.changed]


def staying(workspace: Workspace, allow_code_change: bool) -> list[str]:
    """Of each that the next training does not go on with, in one line; and of a published run that cannot be made as
    long as asked for.
    """
    if not (workspace.prepared / META_FILE).exists():
        return [told(each) for each in others(workspace)]
    tree = params.load(workspace.params)
    source = continuing.source_of(tree, workspace, allow_code_change)
    lines = [told(each) for each in others(workspace) if each.path != source]
    own = CheckpointStore(workspace.work(stages.fingerprint(tree, workspace)) / CHECKPOINTS, tree.runtime.keep_last)
    return lines if lines or source is not None or own.iterations() else [*_too_short(workspace, tree)]


def _too_short(workspace: Workspace, tree: Params) -> Iterator[str]:
    """Why a published run that differs by how long it is does not go on: its log is elsewhere, or the code is other."""
    try:
        manifest = read_manifest(workspace.checkpoints / "latest")
    except SimicError:
        return  # none, or one that whoever reads it will name
    changed = differences(manifest.params, Identity.params_of(tree))
    of_these = manifest.data_sha256 == data_hash(workspace.prepared) and changed.keys() <= {*HARMLESS}
    if not of_these or not 0 < manifest.iteration < tree.train.iterations:
        return
    here = any(workspace.finished.glob("[!.]*"))
    why = (
        "the code has changed; --allow-code-change goes on with it"
        if here
        else f"that needs its log, which is kept only where it was trained, in {workspace.finished}"
    )
    yield (
        f"the run in {workspace.checkpoints} has {manifest.iteration} of {tree.train.iterations} iterations and is not "
        f"made longer: {why}; training starts over"
    )


def remove(workspace: Workspace, everything: bool) -> Iterator[str]:
    """Removes unfinished training of other params, data or code; or all of it, and what was put by for a longer run.
    The caller holds the workspace.
    """
    for each in found(workspace) if everything else others(workspace):
        said = str(each)
        durable.remove_directory(each.path)
        yield said
    for path in sorted(workspace.finished.glob("[!.]*")) if everything else ():
        said = f"finished run {run_name(path.name)}, put by to be made longer: {_size(path)}, {path}"
        durable.remove_directory(path)
        yield said


def told(leftover: Leftover) -> str:
    """In one line, with what to do."""
    named = ", ".join(leftover.changed[:MOST_CHANGES])
    more = f" and {len(leftover.changed) - MOST_CHANGES} more" if len(leftover.changed) > MOST_CHANGES else ""
    how = "restore that or use --allow-code-change" if leftover.code_alone else "restore that"
    return (
        f"{leftover} stays as it is: {named}{more} changed since; {how} to go on with it, or remove it with simic clean"
    )


def _of(path: Path, now: TrainingRecipe | None, tree: Params) -> Leftover:
    iterations = max(CheckpointStore(path / CHECKPOINTS, tree.runtime.keep_last).iterations(), default=0)
    kept = recipe.read(path)
    if kept is None:
        return Leftover(path, iterations, (UNKNOWN,))
    if now is None:
        return Leftover(path, iterations, (UNPREPARED,))
    changes = kept.recipe.changes(now)
    return Leftover(path, iterations, changes.named(), bool(changes.code) and changes == Changes({}, changes.code, ()))


def _size(path: Path) -> str:
    return f"{sum(file.stat().st_size for file in path.rglob('*') if file.is_file()) / 1e6:.1f} MB"
