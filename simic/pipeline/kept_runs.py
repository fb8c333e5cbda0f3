"""Find the runs that .simic keeps, what has changed since they were begun, and the one that training goes on with.

Unfinished runs are in work/; in finished/ is the last finished one, kept so that it can be made longer. Each has a
recipe.json, of all that decides its results, the hash of which is the run's fingerprint. Training goes on with a run of
another recipe where the changes do no harm, above all with more iterations, and where changed code is allowed; where it
went on is noted as a seam.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from simic import durable, params, seals
from simic.data.batches import META_FILE, data_hash
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow
from simic.training.checkpoint import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    CheckpointStore,
    Damaged,
    read_manifest,
)
from simic.training.resume import HARMLESS, Identity, differences
from simic.training.run_layout import CHECKPOINTS, RECIPE, had_begun, make_room
from simic.training.session import LOCK_FILE

CODE_CHANGED = "code_changed"  # a finding
MOST_NAMED = 3  # changes, and files of code: of the others the number
UNKNOWN = "params, data or code, as nothing was saved that says which,"
UNPREPARED = "the prepared data"


def some(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Name the first of them, and say how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


class Changes(NamedTuple):
    """List the changes from one recipe to another: params with both values, files of code, and what else."""

    params: dict[str, str]
    code: tuple[str, ...]
    others: tuple[str, ...]

    def named(self) -> tuple[str, ...]:
        """Return each change in a few words."""
        values = (f"{name} ({text})" for name, text in self.params.items())
        return (*values, *self.others, *([f"the code ({some(self.code)})"] if self.code else []))


class TrainingRecipe(BaseModel):
    """Hold the params of training, sha256 of the data and of each file of code, format of checkpoints."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    params: dict[str, Any]
    data_sha256: str
    code: dict[str, str]
    format_version: int

    @classmethod
    def of(cls, tree: Params, workspace: Workspace) -> "TrainingRecipe":
        """Return the recipe of training with these params, and the data and code that are there now."""
        return cls(
            params=Identity.params_of(tree),
            data_sha256=data_hash(workspace.prepared),
            code=seals.recipe(workspace.root, "train", tree)[0],
            format_version=FORMAT_VERSION,
        )

    @property
    def fingerprint(self) -> str:
        return params.digest(self)

    def changes(self, now: "TrainingRecipe") -> Changes:
        """Return the differences to ``now``."""
        files = sorted(self.code.keys() | now.code.keys())
        others = {
            "the prepared data": self.data_sha256 != now.data_sha256,
            "the format of checkpoints": self.format_version != now.format_version,
        }
        return Changes(
            differences(self.params, now.params),
            tuple(file for file in files if self.code.get(file) != now.code.get(file)),
            tuple(name for name, changed in others.items() if changed),
        )


class Kept(BaseModel):
    """Keep a recipe with the seams of the run: recipe.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: TrainingRecipe
    seams: tuple[FindingRow, ...] = ()

    def write(self, work: Path) -> None:
        """Write recipe.json into the work directory."""
        work.mkdir(parents=True, exist_ok=True)
        durable.replace_file(work / RECIPE, durable.with_checksum(self.model_dump(mode="json")))

    @classmethod
    def read(cls, work: Path) -> "Kept | None":
        """Return the content of recipe.json; None where it is missing or damaged."""
        try:
            return cls.model_validate(durable.checked((work / RECIPE).read_bytes()))
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class KeptRun:
    """Describe a run in .simic, and its ``changes`` since: None where ``kept`` or data are missing."""

    path: Path
    own: bool  # in the work directory that training would take now
    iterations: int
    kept: Kept | None
    changes: Changes | None

    @property
    def finished(self) -> bool:
        return self.path.parent.name == "finished"

    @property
    def changed(self) -> tuple[str, ...]:
        """Name the changes; empty for the run that training now goes on with, also where its recipe is damaged."""
        if self.own:
            return ()
        if self.changes is not None:
            return self.changes.named()
        return (UNKNOWN,) if self.kept is None else (UNPREPARED,)

    def line(self) -> str:
        """Say in one line why it stays, and what to do."""
        code_alone = self.changes is not None and self.changes == Changes({}, self.changes.code, ())
        how = "restore that or use --allow-code-change" if code_alone else "restore that"
        return (
            f"unfinished run {self} stays as it is: {some(self.changed)} changed since; {how} to go on with it, or "
            "remove it with simic clean"
        )

    def __str__(self) -> str:
        size = sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()) / 1e6
        return f"{run_name(self.path.name)}: {self.iterations} iterations, {size:.1f} MB, {self.path}"


def _store(work: Path, tree: Params) -> CheckpointStore:
    return CheckpointStore(work / CHECKPOINTS, tree.runtime.keep_last)


def kept_runs(workspace: Workspace, tree: Params) -> list[KeptRun]:
    """Return unfinished and finished runs, beside what training with ``tree`` would do now."""
    folders = workspace.kept_runs()
    prepared = (workspace.prepared / META_FILE).exists()
    now = TrainingRecipe.of(tree, workspace) if folders and prepared else None
    own, runs = now and workspace.work(now.fingerprint), []
    for path in folders:
        kept = Kept.read(path)
        changes = None if kept is None or now is None else kept.recipe.changes(now)
        done = max(_store(path, tree).numbers(), default=0)
        runs.append(KeptRun(path, path == own, done, kept, changes))
    return runs


def unfinished(workspace: Workspace) -> list[KeptRun]:
    """Return all unfinished runs, that of the present params, data and code first."""
    if not workspace.kept_runs():
        return []
    runs = kept_runs(workspace, params.load(workspace.params))
    return sorted((run for run in runs if not run.finished), key=lambda run: bool(run.changed))


def remove(workspace: Workspace, everything: bool) -> Iterator[str]:
    """Remove unfinished runs of other params, data or code; or all, and what was put by. The caller holds the lock."""
    if not workspace.kept_runs():
        return
    for run in kept_runs(workspace, params.load(workspace.params)):
        if everything or (run.changed and not run.finished):
            said = f"{'finished' if run.finished else 'unfinished'} run {run}"
            durable.remove_directory(run.path)
            yield said


# --- what the next training goes on with ---


def extendable(runs: Sequence[KeptRun], tree: Params, allow_code_change: bool) -> KeptRun | None:
    """Return the run that training would go on with where it has none of its own: of several the longest. It is shorter
    than asked for, and no change forbids it.
    """
    if any(run.own and run.iterations for run in runs):
        return None

    def fits(run: KeptRun) -> bool:
        if run.changes is None or run.changes.others or (run.changes.code and not allow_code_change):
            return False
        return run.changes.params.keys() <= {*HARMLESS} and 0 < run.iterations < tree.train.iterations

    return max(filter(fits, runs), key=lambda run: run.iterations, default=None)


def staying(workspace: Workspace, allow_code_change: bool) -> list[str]:
    """Say of each run that the next training does not go on with why; and of a published one that cannot be made as
    long as asked for.
    """
    tree = params.load(workspace.params)
    runs = kept_runs(workspace, tree)
    source = extendable(runs, tree, allow_code_change)
    lines = [run.line() for run in runs if run.changed and not run.finished and run is not source]
    own = any(run.own and run.iterations for run in runs)
    return lines if lines or source is not None or own else [*_not_extended(workspace, tree)]


def _not_extended(workspace: Workspace, tree: Params) -> Iterator[str]:
    """Say why a published run that differs by its length alone does not go on: its log is away, or the code changed."""
    try:
        manifest = read_manifest(workspace.checkpoints / "latest")
    except SimicError:
        return  # none, or one that its reader will name
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


def begin(tree: Params, workspace: Workspace, fresh: bool, allow_code_change: bool) -> str | None:
    """Give training its work directory, with its recipe, and with the work of another run where it can go on with one;
    return what it goes on with, or has lost, in one line.
    """
    if not (workspace.prepared / META_FILE).exists():
        return None  # training says so
    source = None if fresh else extendable(kept_runs(workspace, tree), tree, allow_code_change)
    now = TrainingRecipe.of(tree, workspace)
    work = workspace.work(now.fingerprint)
    if source is not None:
        return _adopt(source, now, work, tree)
    make_room(work)
    kept, done = Kept.read(work), 0 if fresh else max(_store(work, tree).numbers(), default=0)
    if fresh or kept is None or kept.recipe != now:
        text = f"{work / RECIPE}: missing or damaged; whether the run went on with other code or params is unknown"
        lost = FindingRow(iteration=done, check="seams_lost", severity="medium", message=text)
        Kept(recipe=now, seams=(lost,) if done else ()).write(work)  # what was trained had a recipe, with its seams
    began = not fresh and not done and had_begun(work)
    return "no checkpoint is left of what was begun before, so training begins anew" if began else None


def _adopt(source: KeptRun, now: TrainingRecipe, work: Path, tree: Params) -> str:
    """Copy a run, its checkpoints with the new params, whole or not at all; remove it if it was unfinished. Return the
    words of the seam.
    """
    assert source.kept is not None and source.changes is not None  # it was chosen by its recipe
    done, code = source.iterations, source.changes.code
    text = f"goes on with run {run_name(source.path.name)} after {done} iterations; changed: "
    text += ", ".join(source.changes.named())
    if "train.iterations" in source.changes.params and tree.train.horizon is None:
        text += "; the entropy bonus now falls over all of them (train.horizon)"
    check, severity = (CODE_CHANGED, "medium") if code else ("resumed_with_changes", "info")
    seam = FindingRow(iteration=done, check=check, severity=severity, message=text)
    values = Identity.params_of(tree)
    with durable.new_directory(work) as folder:
        shutil.copytree(source.path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK_FILE))
        store = _store(folder, tree)
        for checkpoint in map(store.path, store.numbers()):
            with suppress(Damaged):  # it stays so, and is found when training opens it
                changed = {"params": values, "params_sha256": params.digest(values)}
                manifest = read_manifest(checkpoint).model_copy(update=changed)
                durable.replace_file(checkpoint / MANIFEST_FILE, manifest.to_json())
        Kept(recipe=now, seams=(*source.kept.seams, seam)).write(folder)
    if not source.finished:
        durable.remove_directory(source.path)
    return text
