"""Training that goes on with the work of another run, unfinished or finished: with changes that do no harm, above all
more iterations, and, where it is allowed, with code that has changed. The seam is noted.
"""

import shutil
from pathlib import Path

from simic import durable
from simic.data.batches import META_FILE
from simic.params import Params, digest
from simic.pipeline import recipe
from simic.pipeline.paths import Workspace
from simic.pipeline.recipe import Changes, Kept, TrainingRecipe
from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow
from simic.training import run_layout
from simic.training.checkpoint import MANIFEST_FILE, CheckpointStore, Damaged, read_manifest
from simic.training.partial import FOLDER as PARTIAL
from simic.training.resume import HARMLESS, Identity
from simic.training.run_layout import CHECKPOINTS, had_begun, make_room
from simic.training.session import LOCK_FILE

CODE_CHANGED = "code_changed"  # a finding


def begin(tree: Params, workspace: Workspace, fresh: bool, allow_code_change: bool) -> str | None:
    """Gives training its work directory, with its recipe, and with the work of another run where it can go on with one;
    what it goes on with, or has lost, in one line.
    """
    if not (workspace.prepared / META_FILE).exists():
        return None  # training says so
    source = None if fresh else source_of(tree, workspace, allow_code_change)
    now = TrainingRecipe.of(tree, workspace)
    if source is not None:
        return _adopt(source, now, tree, workspace).message
    work = workspace.work(now.fingerprint)
    make_room(work)
    kept, done = recipe.read(work), 0 if fresh else max(_store(work, tree).iterations(), default=0)
    if fresh or kept is None or kept.recipe != now:
        recipe.write(work, Kept(recipe=now, seams=_lost_seams(work, done)))
    began = not fresh and not done and had_begun(work)
    return "no checkpoint is left of what was begun before, so training begins anew" if began else None


def _lost_seams(work: Path, done: int) -> tuple[FindingRow, ...]:
    """A run that was trained had a recipe, with its seams."""
    text = (
        f"{work / run_layout.RECIPE}: missing or damaged; whether the run went on with other code or params is unknown"
    )
    lost = FindingRow(iteration=done, check="seams_lost", severity="medium", message=text)
    return (lost,) if done else ()


def source_of(tree: Params, workspace: Workspace, allow_code_change: bool) -> Path | None:
    """The work that training would go on with, other than its own: of several the furthest."""
    places = [*(workspace.state / "work").glob("[!.]*"), *workspace.finished.glob("[!.]*")]
    if not places:
        return None
    now = TrainingRecipe.of(tree, workspace)
    if _store(workspace.work(now.fingerprint), tree).iterations():
        return None
    done = {place: _done(place, now, tree, allow_code_change) for place in sorted(places)}
    return max((place for place in done if done[place]), key=lambda place: done[place], default=None)


def _done(place: Path, now: TrainingRecipe, tree: Params, allow_code_change: bool) -> int:
    """How many iterations training would go on after, at least one; 0 where it cannot."""
    kept = recipe.read(place)
    if kept is None or not _goes_on(kept.recipe.changes(now), allow_code_change):
        return 0
    done = max(_store(place, tree).iterations(), default=0)
    return done if done < tree.train.iterations else 0


def _goes_on(changes: Changes, allow_code_change: bool) -> bool:
    return not changes.others and changes.params.keys() <= {*HARMLESS} and (allow_code_change or not changes.code)


def _store(place: Path, tree: Params) -> CheckpointStore:
    return CheckpointStore(place / CHECKPOINTS, tree.runtime.keep_last)


def _adopt(source: Path, now: TrainingRecipe, tree: Params, workspace: Workspace) -> FindingRow:
    """A copy whose checkpoints are of the new params, whole or not at all; what was unfinished then goes."""
    kept, work = recipe.read(source), workspace.work(now.fingerprint)
    assert kept is not None  # it was chosen by its recipe
    done = max(_store(source, tree).iterations())
    changes = kept.recipe.changes(now)
    seam = _seam(source, done, changes, tree)
    # Steps that other code has played are no part of an iteration that this code plays.
    left = (LOCK_FILE, PARTIAL) if changes.code else (LOCK_FILE,)
    with durable.new_directory(work) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*left))
        for iteration in _store(folder, tree).iterations():
            _rewrite(_store(folder, tree).path(iteration), tree)
        recipe.write(folder, Kept(recipe=now, seams=(*kept.seams, seam)))
    if source.parent == work.parent:
        durable.remove_directory(source)
    return seam


def _rewrite(checkpoint: Path, tree: Params) -> None:
    """With the params it now belongs to; what is damaged stays so, and is found when training opens it."""
    try:
        manifest = read_manifest(checkpoint)
    except Damaged:
        return
    values = Identity.params_of(tree)
    named = {"params": values, "params_sha256": digest(values)}
    durable.replace_file(checkpoint / MANIFEST_FILE, manifest.model_copy(update=named).to_json())


def _seam(source: Path, done: int, changes: Changes, tree: Params) -> FindingRow:
    text = f"goes on with run {run_name(source.name)} after {done} iterations; changed: {', '.join(changes.named())}"
    if "train.iterations" in changes.params and tree.train.horizon is None:
        text += "; the entropy bonus now falls over all of them (train.horizon)"
    check, severity = (CODE_CHANGED, "medium") if changes.code else ("resumed_with_changes", "info")
    return FindingRow(iteration=done, check=check, severity=severity, message=text)
