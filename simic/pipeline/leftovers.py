"""Unfinished training in .simic/work that the next training does not go on with: what it is, why, and its removal."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simic import durable, params
from simic.data.batches import META_FILE, data_hash
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry.recorder import run_name
from simic.training.checkpoint import CheckpointStore, Damaged, read_manifest
from simic.training.resume import Identity, differences
from simic.training.session import CHECKPOINTS

MOST_CHANGES = 3  # that are named


@dataclass(frozen=True)
class Leftover:
    """One unfinished run; ``changed`` is why training does not go on with it, empty where it does."""

    path: Path
    iterations: int
    changed: tuple[str, ...]

    def __str__(self) -> str:
        size = sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()) / 1e6
        return f"unfinished run {run_name(self.path.name)}: {self.iterations} iterations, {size:.1f} MB, {self.path}"


def found(workspace: Workspace) -> list[Leftover]:
    """All unfinished training, that of the present params, data and code first."""
    folders = sorted(path for path in (workspace.state / "work").glob("[!.]*") if path.is_dir())
    if not folders:
        return []
    tree = params.load(workspace.params)
    own = workspace.work(stages.fingerprint(tree, workspace)) if _is_prepared(workspace) else None
    return sorted((_of(path, path == own, tree, workspace) for path in folders), key=lambda each: bool(each.changed))


def others(workspace: Workspace) -> list[Leftover]:
    """What the next training does not go on with."""
    return [each for each in found(workspace) if each.changed]


def remove(workspace: Workspace, everything: bool) -> Iterator[Leftover]:
    """Removes what the next training does not go on with, or all; the caller holds the workspace."""
    for each in found(workspace) if everything else others(workspace):
        yield each
        durable.remove_directory(each.path)


def told(leftover: Leftover) -> str:
    """In one line, with what to do."""
    named = ", ".join(leftover.changed[:MOST_CHANGES])
    more = f" and {len(leftover.changed) - MOST_CHANGES} more" if len(leftover.changed) > MOST_CHANGES else ""
    return (
        f"{leftover} stays as it is: {named}{more} changed since; restore that to go on with it, or remove it with "
        "simic clean"
    )


def _of(path: Path, own: bool, tree: Params, workspace: Workspace) -> Leftover:
    store = CheckpointStore(path / CHECKPOINTS, tree.runtime.keep_last)
    iterations = store.iterations()
    if own:
        return Leftover(path, max(iterations, default=0), ())
    for iteration in reversed(iterations):
        try:
            manifest = read_manifest(store.path(iteration))
        except Damaged:
            continue
        except SimicError:  # of another version of simic
            return Leftover(path, iteration, ("the format of checkpoints",))
        changed = differences(manifest.params, Identity.params_of(tree))
        named = [f"{name} ({text})" for name, text in changed.items()]
        if not _is_prepared(workspace) or manifest.data_sha256 != data_hash(workspace.prepared):
            named.append("the prepared data")
        return Leftover(path, iteration, tuple(named) or ("the code",))
    return Leftover(path, 0, ("params, data or code, as nothing was saved that says which,",))


def _is_prepared(workspace: Workspace) -> bool:
    return (workspace.prepared / META_FILE).exists()
