"""Training that goes on with another run, unfinished or finished: with changes that do no harm, above all more
iterations, and, where it is allowed, with code that has changed. Where it went on is noted as a seam.
"""

import shutil
from pathlib import Path

from simic import durable
from simic.data.batches import META_FILE
from simic.params import Params, digest
from simic.pipeline import recipe, stale_runs
from simic.pipeline.paths import Workspace
from simic.pipeline.recipe import Changes, Kept, TrainingRecipe
from simic.pipeline.stale_runs import KeptRun, store_of
from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow
from simic.training.checkpoint import MANIFEST_FILE, Damaged, read_manifest
from simic.training.partial import FOLDER as PARTIAL
from simic.training.resume import Identity
from simic.training.run_layout import RECIPE, had_begun, make_room
from simic.training.session import LOCK_FILE

CODE_CHANGED = "code_changed"  # a finding


def begin(tree: Params, workspace: Workspace, fresh: bool, allow_code_change: bool) -> str | None:
    """Give training its work directory, with its recipe, and with the work of another run where it can go on with one;
    return what it goes on with, or has lost, in one line.
    """
    if not (workspace.prepared / META_FILE).exists():
        return None  # training says so
    source = None if fresh else stale_runs.extendable(tree, workspace, allow_code_change)
    now = TrainingRecipe.of(tree, workspace)
    work = workspace.work(now.fingerprint)
    if source is not None:
        return _adopt(source, now, work, tree).message
    make_room(work)
    kept, done = recipe.read(work), 0 if fresh else max(store_of(work, tree).iterations(), default=0)
    if fresh or kept is None or kept.recipe != now:
        recipe.write(work, Kept(recipe=now, seams=_lost_seams(work, done)))
    began = not fresh and not done and had_begun(work)
    return "no checkpoint is left of what was begun before, so training begins anew" if began else None


def _lost_seams(work: Path, done: int) -> tuple[FindingRow, ...]:
    """A run that was trained had a recipe, with its seams."""
    text = f"{work / RECIPE}: missing or damaged; whether the run went on with other code or params is unknown"
    lost = FindingRow(iteration=done, check="seams_lost", severity="medium", message=text)
    return (lost,) if done else ()


def _adopt(source: KeptRun, now: TrainingRecipe, work: Path, tree: Params) -> FindingRow:
    """Copy a run, its checkpoints with the new params, whole or not at all; remove it if it was unfinished."""
    assert source.kept is not None  # it was chosen by its recipe
    assert source.changes is not None
    seam = _seam(source, source.changes, tree)
    # Steps that other code has played are no part of an iteration that this code plays.
    left = (LOCK_FILE, PARTIAL) if source.changes.code else (LOCK_FILE,)
    with durable.new_directory(work) as folder:
        shutil.copytree(source.path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*left))
        store = store_of(folder, tree)
        for iteration in store.iterations():
            _rewrite(store.path(iteration), tree)
        recipe.write(folder, Kept(recipe=now, seams=(*source.kept.seams, seam)))
    if source.path.parent == work.parent:
        durable.remove_directory(source.path)
    return seam


def _rewrite(checkpoint: Path, tree: Params) -> None:
    """Give a checkpoint the params it now belongs to; a damaged one stays so, and is found when training opens it."""
    try:
        manifest = read_manifest(checkpoint)
    except Damaged:
        return
    values = Identity.params_of(tree)
    changed = manifest.model_copy(update={"params": values, "params_sha256": digest(values)})
    durable.replace_file(checkpoint / MANIFEST_FILE, changed.to_json())


def _seam(source: KeptRun, changes: Changes, tree: Params) -> FindingRow:
    done, name = source.iterations, run_name(source.path.name)
    text = f"goes on with run {name} after {done} iterations; changed: {', '.join(changes.named())}"
    if "train.iterations" in changes.params and tree.train.horizon is None:
        text += "; the entropy bonus now falls over all of them (train.horizon)"
    check, severity = (CODE_CHANGED, "medium") if changes.code else ("resumed_with_changes", "info")
    return FindingRow(iteration=done, check=check, severity=severity, message=text)
