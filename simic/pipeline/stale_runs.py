"""Runs that .simic keeps: unfinished ones in work/, and in finished/ the last one, put by to be made longer. Which of
them training cannot go on with, why, and their removal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simic import durable, params
from simic.data.batches import META_FILE, data_hash
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import recipe
from simic.pipeline.paths import Workspace
from simic.pipeline.recipe import Changes, Kept, TrainingRecipe
from simic.telemetry.naming import run_name
from simic.training.checkpoint import CheckpointStore, read_manifest
from simic.training.resume import HARMLESS, Identity, differences
from simic.training.run_layout import CHECKPOINTS

MOST_CHANGES = 3  # that are named
UNKNOWN = "params, data or code, as nothing was saved that says which,"
UNPREPARED = "the prepared data"


@dataclass(frozen=True)
class KeptRun:
    """A run in .simic, and what has changed since: None where nobody can tell, for want of ``kept`` or of data."""

    path: Path
    own: bool  # in the work directory that training would take now
    iterations: int
    kept: Kept | None
    changes: Changes | None

    @property
    def changed(self) -> tuple[str, ...]:
        """Name the changes; empty for the run that training now goes on with."""
        if self.changes is not None:
            return self.changes.named()
        return (UNKNOWN,) if self.kept is None else (UNPREPARED,)

    @property
    def stale(self) -> bool:
        return bool(self.changed)

    def extends_to(self, tree: Params, allow_code_change: bool) -> bool:
        """Return whether training with ``tree`` can go on after it: no change forbids it, and it is shorter."""
        if self.changes is None or self.changes.others or (self.changes.code and not allow_code_change):
            return False
        return self.changes.params.keys() <= {*HARMLESS} and 0 < self.iterations < tree.train.iterations

    def line(self) -> str:
        """Say in one line why it stays, and what to do."""
        named, rest = ", ".join(self.changed[:MOST_CHANGES]), len(self.changed) - MOST_CHANGES
        more = f" and {rest} more" if rest > 0 else ""
        code_alone = self.changes is not None and self.changes == Changes({}, self.changes.code, ())
        how = "restore that or use --allow-code-change" if code_alone else "restore that"
        return (
            f"unfinished run {self} stays as it is: {named}{more} changed since; {how} to go on with it, or remove it "
            "with simic clean"
        )

    def __str__(self) -> str:
        size = sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()) / 1e6
        return f"{run_name(self.path.name)}: {self.iterations} iterations, {size:.1f} MB, {self.path}"


def store_of(work: Path, tree: Params) -> CheckpointStore:
    """Return the checkpoints of a work directory."""
    return CheckpointStore(work / CHECKPOINTS, tree.runtime.keep_last)


def kept_runs(workspace: Workspace, tree: Params) -> list[KeptRun]:
    """Return unfinished and finished runs, beside what training with ``tree`` would do now."""
    folders = workspace.kept_runs()
    prepared = (workspace.prepared / META_FILE).exists()
    now = TrainingRecipe.of(tree, workspace) if folders and prepared else None
    own, found = now and workspace.work(now.fingerprint), []
    for path in folders:
        kept = recipe.read(path)
        changes = None if kept is None or now is None else kept.recipe.changes(now)
        done = max(store_of(path, tree).iterations(), default=0)
        found.append(KeptRun(path, path == own, done, kept, changes))
    return found


def unfinished(workspace: Workspace) -> list[KeptRun]:
    """Return all unfinished runs, that of the present params, data and code first."""
    if not workspace.kept_runs():
        return []
    found = kept_runs(workspace, params.load(workspace.params))
    return sorted((run for run in found if run.path.parent != workspace.finished), key=lambda run: run.stale)


def extendable(tree: Params, workspace: Workspace, allow_code_change: bool) -> KeptRun | None:
    """Return the run that training would go on with where it has none of its own: of several the longest."""
    found = kept_runs(workspace, tree)
    if any(run.own and run.iterations for run in found):
        return None
    fit = (run for run in found if run.extends_to(tree, allow_code_change))
    return max(fit, key=lambda run: run.iterations, default=None)


def staying(workspace: Workspace, allow_code_change: bool) -> list[str]:
    """Say of each run that the next training does not go on with why; and of a published one that cannot be made as
    long as asked for.
    """
    tree = params.load(workspace.params)
    source = extendable(tree, workspace, allow_code_change)
    found = unfinished(workspace)
    lines = [run.line() for run in found if run.stale and (source is None or run.path != source.path)]
    own = any(run.own and run.iterations for run in found)
    return lines if lines or source is not None or own else [*_not_extended(workspace, tree)]


def _not_extended(workspace: Workspace, tree: Params) -> Iterator[str]:
    """Say why a published run that differs by its length alone does not go on: its log is away, or the code changed."""
    try:
        manifest = read_manifest(workspace.checkpoints / "latest")
    except SimicError:
        return  # none, or one that whoever reads it will name
    if not (workspace.prepared / META_FILE).exists() or manifest.data_sha256 != data_hash(workspace.prepared):
        return
    changed = differences(manifest.params, Identity.params_of(tree))
    if not changed.keys() <= {*HARMLESS} or not 0 < manifest.iteration < tree.train.iterations:
        return
    why = f"that needs its log, which is kept only where it was trained, in {workspace.finished}"
    if any(workspace.finished.glob("[!.]*")):
        why = "the code has changed; --allow-code-change goes on with it"
    yield (
        f"the run in {workspace.checkpoints} has {manifest.iteration} of {tree.train.iterations} iterations and is not "
        f"made longer: {why}; training starts over"
    )


def remove(workspace: Workspace, everything: bool) -> Iterator[str]:
    """Remove unfinished runs of other params, data or code; or all, and what was put by. The caller holds the lock."""
    if not workspace.kept_runs():
        return
    for run in kept_runs(workspace, params.load(workspace.params)):
        finished = run.path.parent == workspace.finished
        if everything or (run.stale and not finished):
            said = f"{'finished' if finished else 'unfinished'} run {run}"
            durable.remove_directory(run.path)
            yield said
