"""Find the one training of a project, and decide whether it goes on or training begins anew.

It is in .simic/work, in a folder named by the identity of the stage train. With more iterations it goes on. With other
params, data or code training begins anew; what had been begun is then put by in .simic/previous, in place of what was
there, and goes on when the earlier settings are restored. A finished training that DVC has recorded is removed.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from simic import durable, params, seals
from simic.data.batches import META_FILE
from simic.params import Params, digest
from simic.pipeline import dvc_record
from simic.pipeline.paths import Workspace
from simic.seals import Identity
from simic.telemetry.naming import run_name
from simic.training import resume
from simic.training.checkpoint import MANIFEST_FILE, CheckpointStore, Damaged, read_manifest
from simic.training.resume import HARMLESS
from simic.training.run_layout import CHECKPOINTS, IDENTITY, had_begun, make_room

MOST_CHANGES = 3  # named in one line


class Training(NamedTuple):
    """Describe a training in .simic: its folder, the iterations that it has, what it is of (None: not readable)."""

    folder: Path
    iterations: int
    identity: Identity | None

    @classmethod
    def read(cls, folder: Path) -> "Training":
        # Without an identity nobody knows what it is of; in a folder of the right name it is written again.
        try:
            identity = Identity.model_validate(durable.checked((folder / IDENTITY).read_bytes()))
        except (OSError, ValueError):
            identity = None
        return cls(
            folder, max(CheckpointStore(folder / CHECKPOINTS, 1).numbers(), default=0), identity
        )

    @property
    def finished(self) -> bool:
        # The length that it was to have is part of what it is of, so that this needs no other file.
        train = self.identity.params["train"] if self.identity else None
        return isinstance(train, dict) and train["iterations"] == self.iterations

    def goes_on_as(self, now: Identity, iterations: int) -> bool:
        """Tell whether training of identity ``now``, so long, can continue it: only harmless params differ."""
        # A longer one cannot be made shorter: its later iterations have decided its state.
        if self.identity is None or not 0 < self.iterations < iterations:
            return False
        return self.identity.changes(now).keys() <= set(HARMLESS)

    def changed(self, now: Identity) -> str:
        """Name what has changed since it was begun."""
        if self.identity is None:
            return f"{IDENTITY} is damaged"
        # Both values where they are short enough to tell: params, but not hashes.
        changes = [
            f"{name} ({values})" if values else name
            for name, values in self.identity.changes(now).items()
        ]
        more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
        return f"{', '.join(changes[:MOST_CHANGES])}{more} changed since"


def trainings(workspace: Workspace) -> list[Training]:
    """List the training of the project, and the one that was put by."""
    # Hidden names are those of trainings that are being removed.
    return [
        Training.read(folder)
        for parent in (workspace.work_root, workspace.previous)
        for folder in sorted(parent.glob("[!.]*"))
        if folder.is_dir()
    ]


def describe(workspace: Workspace) -> Iterator[str]:
    """Say of every training in .simic whether the next start goes on with it, and else why not."""
    tree = params.load(workspace.params)
    if not (workspace.prepared / META_FILE).exists():
        return
    # The same question that begin() asks, so that what is announced is what happens.
    now = seals.identify(workspace.root, "train", tree)
    continued = _continued(now, workspace, tree)
    for training in trainings(workspace):
        line = f"{run_name(training.folder.name)}: {training.iterations} iterations in {training.folder}"
        if training == continued:
            left = training.iterations < tree.train.iterations
            yield f"{line}; {'the next training goes on with it' if left else 'nothing is left to train'}"
        elif training.folder.name == now.sha256[:16]:
            yield f"{line}; the next training does not go on with it"
        else:
            yield f"{line}: {training.changed(now)}; restore that to go on with it"


def changed_since(name: str, now: Identity, workspace: Workspace) -> str:
    """Name what has changed since the run of that name was begun, as far as its folder still tells."""
    for training in trainings(workspace):
        if run_name(training.folder.name) == name:
            return training.changed(now)
    return "its code or data changed since"


def _continued(now: Identity, workspace: Workspace, tree: Params) -> Training | None:
    """Find the training that the next start goes on with: the one in its work directory, else the first that can."""
    work = workspace.work(now.sha256)
    candidates = [
        training
        for training in trainings(workspace)
        if training.goes_on_as(now, tree.train.iterations)
        or (training.folder.name == work.name and training.iterations)
    ]
    return min(candidates, key=lambda training: training.folder != work, default=None)


def begin(tree: Params, workspace: Workspace, fresh: bool) -> list[str]:
    """Give training its work directory; the caller holds the workspace's lock.

    Args:
        tree: The params that training has now.
        workspace: With the trainings that were begun.
        fresh: Take up nothing that was begun before.

    Returns:
        Lines that say what it goes on with, what has changed, or what was lost.
    """
    if not (workspace.prepared / META_FILE).exists():
        return []  # training says so
    now = seals.identify(workspace.root, "train", tree)
    work = workspace.work(now.sha256)
    # A process that was killed while it removed a training left the rest of it under a hidden name.
    for parent in (workspace.work_root, workspace.previous):
        durable.clear_leftovers(parent)
    make_room(work)
    lines = list[str]()
    continued = None if fresh else _continued(now, workspace, tree)
    if continued and continued.folder != work:
        lines.append(_take_up(continued, now, work, tree))
    for training in trainings(workspace):
        if training.folder.parent == work.parent and training.folder != work:
            lines += _put_by(training, now, workspace)
    # Lost checkpoints are said: the user may have a copy of them.
    if not fresh and not continued and not lines and had_begun(work):
        lines.append("no checkpoint is left of what was begun before, so training begins anew")
    _note(work, now)
    return lines


def _note(folder: Path, identity: Identity) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    durable.replace_file(folder / IDENTITY, durable.with_checksum(identity.model_dump(mode="json")))


def _take_up(training: Training, now: Identity, work: Path, tree: Params) -> str:
    """Rename the folder of what this training goes on with to its work directory; say so."""
    # Stopped anywhere in here, the next start does the same again.
    _rewrite_params(training.folder, tree)
    _note(training.folder, now)
    durable.remove_directory(work)
    durable.move_directory(training.folder, work)
    changes = training.identity.changes(now) if training.identity else {}
    text = (
        f"goes on with run {run_name(training.folder.name)} after {training.iterations} iterations"
    )
    text += "".join(f"; {name} ({values}) changed" for name, values in changes.items())
    # The schedule of the entropy bonus then bends at the place where it was made longer.
    if "train.iterations" in changes and tree.train.horizon is None:
        text += "; the entropy bonus now falls over all of them (train.horizon)"
    return text


def _rewrite_params(folder: Path, tree: Params) -> None:
    """Give checkpoints the params that they go on with, as those of a training that was so long from its start."""
    # Resuming compares params: without this it would report a change at every later start.
    store = CheckpointStore(folder / CHECKPOINTS, tree.runtime.keep_last)
    values = resume.RunIdentity.params_of(tree)
    for iteration in store.numbers():
        with suppress(Damaged):  # it stays so, and is found when training opens it
            path = store.path(iteration)
            manifest = read_manifest(path)
            update = {"params": values, "params_sha256": digest(values)}
            durable.replace_file(path / MANIFEST_FILE, manifest.model_copy(update=update).to_json())


def _put_by(training: Training, now: Identity, workspace: Workspace) -> list[str]:
    """Make room for a training of another identity; say what has changed, and where the earlier one is."""
    # Before its first checkpoint nothing would be lost.
    if not training.iterations:
        durable.remove_directory(training.folder)
        return []
    line = f"run {run_name(training.folder.name)} does not go on: {training.changed(now)}"
    if training.finished and _recorded(training, workspace):
        durable.remove_directory(training.folder)
        return [line]
    target = workspace.previous / training.folder.name
    durable.remove_directory(target)
    durable.move_directory(training.folder, target)
    line += f"; its {training.iterations} iterations are put by in {target}: restore that to go on with them"
    # Only now, so that a process that is killed in between leaves both.
    for earlier in trainings(workspace):
        if earlier.folder.parent == workspace.previous and earlier.folder != target:
            durable.remove_directory(earlier.folder)
            name = run_name(earlier.folder.name)
            line += (
                f"; run {name}, put by earlier after {earlier.iterations} iterations, is removed"
            )
    return [line]


def _recorded(training: Training, workspace: Workspace) -> bool:
    """Tell whether DVC has the results of a training: otherwise its folder is the only place where they are."""
    # Both must be of this training: its seal, and what DVC has stored under that seal.
    seal = seals.read(workspace.root, "train")
    if seal is None or training.identity is None or seal.sha256 != training.identity.sha256:
        return False
    return dvc_record.is_recorded(workspace.root, seals.path_of(Path(), "train").as_posix())


def clean(workspace: Workspace) -> Iterator[str]:
    """Remove every training in .simic, and name it; the caller holds the workspace's lock."""
    for training in trainings(workspace):
        durable.remove_directory(training.folder)
        yield f"run {run_name(training.folder.name)}: {training.iterations} iterations, {training.folder}"
