"""Run the stages that are out of date, and record them: for `simic run`, `simic stage` and the Prefect flow."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simic import durable, params, seals
from simic.data.batches import data_hash
from simic.errors import SimicError, printable
from simic.params import read_tree
from simic.pipeline import dvc_record, kept_runs, stages
from simic.pipeline import overrides as writer
from simic.pipeline.paths import Workspace
from simic.training.interrupts import Interrupted, stop_at_once, stop_on_signals

if TYPE_CHECKING:
    from simic.training.observers import Observer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Execution:
    """Say how training runs: its observers, what stops it, whether unfinished work is discarded or may go on with
    other code.
    """

    observers: Sequence["Observer"] = ()
    stop: threading.Event | None = None
    fresh: bool = False
    allow_code_change: bool = False


def workspace_lock(workspace: Workspace) -> AbstractContextManager[None]:
    """Hold the workspace to run stages; SimicError naming the holder when that is another process."""
    return durable.locked(workspace.state / "workspace.lock", "runs stages")


def run_chain(
    workspace: Workspace, last: str, execution: Execution, say: Say, overrides: Sequence[str] = ()
) -> list[str]:
    """Run every stage that ``last`` needs, and is out of date, and record it with DVC; return those that ran. The
    caller holds the lock.
    """
    order = list(stages.STAGES)
    first, *rest = order[: order.index(last) + 1]
    if last == "train":
        rest = ["train"]  # it needs no headroom, and shows one that is there
    with overridden(workspace, overrides, say):
        current = dvc_record.current(workspace.root, [first, *rest])
        ran = [first] if refresh(first, workspace, execution, say, first not in current) else []
    for name in rest:
        stale = None if ran else name not in current
        if refresh(name, workspace, execution, say, stale):
            ran.append(name)
    return ran


def refresh(name: str, workspace: Workspace, execution: Execution, say: Say, stale: bool | None = None) -> bool:
    """Run and record one stage if it is ``stale`` (None: ask DVC); return whether it ran. The caller holds the lock."""
    started = time.monotonic()
    stop = execution.stop or threading.Event()
    due = (execution.fresh and name == "train") or _is_due(name, workspace, say, stale)
    if due:
        if name == "train":
            for line in kept_runs.staying(workspace, execution.allow_code_change):
                say(f"{name}: {line}")
        say(f"{name}: running")
        perform(name, workspace, replace(execution, stop=stop))
    asked = stop if name == "train" else threading.Event()
    with stop_on_signals(asked):  # what is done is recorded first
        if due:
            dvc_record.commit(workspace.root, name)
        if name == "train":  # recorded now or before
            stages.discard_work(params.load(workspace.params), workspace)
    if asked.is_set():
        raise Interrupted(f"stopped after {name}, which is done and recorded; the same command goes on")
    if name == "audit":
        log_run(workspace)  # also where nothing was due: MLflow may have been away before
    say(f"{name}: {f'done in {time.monotonic() - started:.1f} s' if due else 'up to date'}")
    return due


def perform(name: str, workspace: Workspace, execution: Execution) -> None:
    """Run one stage function; SimicError if its params were edited meanwhile. A signal ends it at once, training after
    its step.

    DVC records params as they are when a stage ends (dvc #11058), so an edit would make a false record.
    """
    before = recorded_params(name, workspace)  # first: what is edited after it differs at the end
    tree = params.load(workspace.params)
    with stop_at_once(name):
        if name == "train":
            _train(tree, workspace, execution)
        else:
            stages.STAGES[name](tree, workspace)
    after = recorded_params(name, workspace)
    if after != before:
        changed = ", ".join(sorted(key for key in before if before[key] != after.get(key)))
        raise SimicError(
            f"{workspace.params}: {changed} changed while {name} ran, so its outputs are not recorded; "
            f"restore the old values and run dvc commit -f {name}, or run again with the new ones"
        )


def _train(tree: params.Params, workspace: Workspace, execution: Execution) -> None:
    # From here and not from the stage: a changed check must not make finished training stale.
    seam = kept_runs.begin(tree, workspace, execution.fresh, execution.allow_code_change)
    if seam is not None:
        print(printable(f"train: {seam}"), flush=True)
    watching = (*execution.observers, *observers(tree, workspace))
    stages.STAGES["train"](tree, workspace, watching, stop=execution.stop, fresh=execution.fresh)


def log_run(workspace: Workspace) -> None:
    """Log to MLflow what it lacks of the audited run."""
    from simic.audit.findings import read_verdict
    from simic.pipeline import run_summary, tracking

    verdict = read_verdict(workspace.reports)
    tags = provenance(workspace) | {
        "simic.refuted": ", ".join(verdict.refuted),
    }
    description = "  \n".join(run_summary.of(workspace).lines)
    tree = params.load(workspace.params)
    tracking.log_run(workspace, tree, verdict.run, tags, description, sound=not verdict.refuted)


def run_alone(name: str, workspace: Workspace) -> None:
    """Run one stage, as DVC asks for it, which then records it; the caller holds the lock.

    DVC has no last word after it has recorded training, so the next stage removes the work directory. It is there no
    more when ``dvc repro -f`` asks for training that is recorded.
    """
    sealed = seals.path_of(Path(), "train").as_posix()
    if name in ("train", "evaluate") and dvc_record.is_recorded(workspace.root, sealed):
        stages.discard_work(params.load(workspace.params), workspace)
    perform(name, workspace, Execution())
    if name == "audit":
        log_run(workspace)


# --- what is out of date ---


def _is_due(name: str, workspace: Workspace, say: Say, stale: bool | None) -> bool:
    """Return whether a stage is out of date by DVC, or by files that DVC does not watch."""
    if dvc_record.is_stale(workspace.root, name) if stale is None else stale:
        return True
    changed = _changed_apart(name, workspace)
    if changed is not None:
        say(f"{name}: {changed}")
    return changed is not None


def _changed_apart(name: str, workspace: Workspace) -> str | None:
    """Say whether the user's own file has changed, of which DVC knows the place alone."""
    task, meta = params.load(workspace.params).prepare, workspace.prepared / "meta.json"
    if name == "prepare" and task.task in ("npz", "text") and task.source is not None and meta.exists():
        file = stages.raw_data(workspace) / task.source
        recorded = json.loads(meta.read_bytes())["source_sha256"]
        return f"{file} has changed" if file.exists() and durable.sha256(file) != recorded else None
    return None


# --- params.yaml ---


@contextmanager
def overridden(workspace: Workspace, overrides: Sequence[str], say: Say) -> Iterator[None]:
    """Write the overrides into params.yaml. What is refused inside, where data are read and sizes are looked at and
    nothing is measured or trained yet, leaves it as it was.
    """
    before = workspace.params.read_bytes()
    for change in writer.write(workspace.params, list(overrides)):
        say(f"params.yaml: {change}")
    written = workspace.params.read_bytes()
    try:
        yield
    except SimicError:
        if written != before and workspace.params.read_bytes() == written:  # else a hand has changed it meanwhile
            durable.replace_file(workspace.params, before)
            say("params.yaml: is again as it was before this run")
        raise


def held(workspace: Workspace) -> str:
    """Say that params.yaml holds overrides now, and how to undo that: without git by the old values, listed above."""
    undo = (
        ": git checkout params.yaml" if dvc_record.in_git(workspace.root) else ", restore the old values listed above"
    )
    return f"params.yaml now holds the overrides; to undo them{undo}"


def recorded_params(name: str, workspace: Workspace) -> dict[str, Any]:
    """Return the sections of params.yaml that dvc.yaml records for a stage, as written."""
    definition = read_tree(workspace.root / "dvc.yaml")
    tree = read_tree(workspace.params)
    return {key: writer.value_at(tree, key) for key in definition["stages"][name]["params"]}


# --- what is logged ---


def observers(tree: params.Params, workspace: Workspace) -> tuple["Observer", "Observer"]:
    """Make the observers of every training: the live audit and MLflow's log."""
    from simic.audit.live import LiveAudit
    from simic.pipeline import tracking

    return LiveAudit(), tracking.RunLogger(workspace, tree, provenance(workspace))


def provenance(workspace: Workspace) -> dict[str, str]:
    """Return which code and records a run is of, for its tags in MLflow."""
    root = workspace.root
    tags = {
        "simic.code": dvc_record.code_revision(root),
        "simic.dvc_lock": seals.content_hash(root / "dvc.lock"),
        "simic.data_sha256": data_hash(workspace.prepared),
    }
    experiment = os.environ.get("DVC_EXP_NAME")  # in a process of `dvc exp run`
    return tags if experiment is None else {**tags, "simic.experiment": experiment}
