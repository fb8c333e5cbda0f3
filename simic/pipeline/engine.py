"""Run the stages that are out of date, and record them: for `simic run`, `simic stage` and the Prefect flow."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from simic import durable, params, seals
from simic.data.batches import data_hash
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import dvc_record, stages, training_work
from simic.pipeline import overrides as writer
from simic.pipeline.paths import Workspace
from simic.training.interrupts import Interrupted, stop_at_once, stop_on_signals

if TYPE_CHECKING:
    from simic.training.observers import Observer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Execution:
    """Say how training runs: its observers, what stops it, whether it begins anew."""

    observers: Sequence["Observer"] = ()
    stop: threading.Event | None = None
    fresh: bool = False


def workspace_lock(workspace: Workspace) -> AbstractContextManager[None]:
    """Hold the workspace to run stages; SimicError naming the holder when that is another process."""
    return durable.locked(workspace.state / "workspace.lock", "runs stages")


def run_chain(
    tree: Params,
    workspace: Workspace,
    last: str,
    execution: Execution,
    say: Say,
    overrides: Sequence[str] = (),
) -> list[str]:
    """Run every stage that ``last`` needs, and is out of date, and record it with DVC. The caller holds the lock.

    Args:
        tree: The params, overrides included.
        workspace: In which params.yaml is given the overrides once all is done: then it says what dvc.lock says.
        last: The name of the last stage.
        execution: How training runs.
        say: Called with lines for the user.
        overrides: In DVC's ``-S`` syntax.

    Returns:
        The names of the stages that ran.
    """
    # The order of the table is that in which stages read each other.
    order = list(stages.STAGES)
    first, *rest = order[: order.index(last) + 1]
    if last == "train":
        rest = ["train"]  # it needs no headroom, and shows one that is there
    # Worked out now, since it may be refused; written when all is done: nothing that ends a run leaves it changed.
    before = workspace.params.read_bytes()
    after = writer.edited(workspace.params, list(overrides))
    for change in writer.changes(workspace.params, list(overrides)):
        say(f"for this run: {change}")
    ran = [name for name in (first, *rest) if refresh(name, tree, workspace, execution, say)]
    if after != before and workspace.params.read_bytes() == before:
        durable.replace_file(workspace.params, after)
        say(f"params.yaml now holds these values; to undo that{_undo(workspace)}")
    elif after != before:
        say(
            "params.yaml was edited meanwhile, and stays so; the values listed above were this run's"
        )
    return ran


def refresh(name: str, tree: Params, workspace: Workspace, execution: Execution, say: Say) -> bool:
    """Run and record one stage unless it is up to date. The caller holds the lock.

    Args:
        name: Of the stage.
        tree: The params, overrides included.
        workspace: In which the stage runs.
        execution: How training runs.
        say: Called with lines for the user.

    Returns:
        Whether it ran.

    Raises:
        Interrupted: A signal came while it was recorded, which is then done.
    """
    # Two records must hold: the seal, which knows what decides a result, and dvc.lock, which shares it.
    started = time.monotonic()
    if up_to_date(name, tree, workspace) and not (execution.fresh and name == "train"):
        if name == "audit":
            log_run(tree, workspace)  # MLflow may have been away before
        # DVC watches more than a result depends on; recorded anew, dvc status is clean.
        recorded = _recorded(tree, workspace)
        if not dvc_record.sees_no_change(workspace.root, name, recorded):
            dvc_record.commit(workspace.root, name, recorded)
        say(f"{name}: up to date")
        return False
    say(f"{name}: running")
    # The stage is out of date, or training is to begin anew.
    stop = execution.stop or threading.Event()
    perform(name, tree, workspace, replace(execution, stop=stop), say)
    # A stage that is done is recorded before a signal ends the run.
    interrupted = stop if name == "train" else threading.Event()
    with stop_on_signals(interrupted):
        dvc_record.commit(workspace.root, name, _recorded(tree, workspace))
    if interrupted.is_set():
        raise Interrupted(
            f"stopped after {name}, which is done and recorded; the same command goes on"
        )
    if name == "audit":
        log_run(tree, workspace)
    say(f"{name}: done in {time.monotonic() - started:.1f} s")
    return True


def _recorded(tree: Params, workspace: Workspace) -> dict[str, JsonValue]:
    """Give params as DVC records them: as params.yaml has them where it says the same, since it may leave some out."""
    # Whatever has become of that file meanwhile does not concern this run.
    with suppress(SimicError):
        if params.load(workspace.params) == tree:
            return params.read_tree(workspace.params)
    return tree.model_dump(mode="json")


def up_to_date(name: str, tree: Params, workspace: Workspace) -> bool:
    """Tell whether a stage's outputs are those of the present code, params and inputs, and DVC has recorded them.

    Args:
        name: Of the stage.
        tree: The params, overrides included.
        workspace: With the seals and dvc.lock.
    """
    seal = seals.path_of(Path(), name).as_posix()
    return seals.holds(workspace.root, name, tree) and dvc_record.is_recorded(workspace.root, seal)


def perform(name: str, tree: Params, workspace: Workspace, execution: Execution, say: Say) -> None:
    """Run one stage function. A signal ends it at once, training after its step.

    Args:
        name: Of the stage.
        tree: The params that it runs with.
        workspace: In which it runs.
        execution: How training runs; other stages do not look at it.
        say: Called with lines for the user.

    Raises:
        SimicError: The stage refuses.
    """
    with stop_at_once(name):
        if name == "train":
            _train(tree, workspace, execution, say)
        else:
            stages.STAGES[name](tree, workspace)


def _train(tree: Params, workspace: Workspace, execution: Execution, say: Say) -> None:
    for line in training_work.begin(tree, workspace, execution.fresh):
        say(f"train: {line}")
    # From here and not from the stage: a changed check must not make finished training stale.
    watching = (*execution.observers, *observers(tree, workspace))
    stages.STAGES["train"](tree, workspace, watching, stop=execution.stop, fresh=execution.fresh)


def log_run(tree: Params, workspace: Workspace) -> None:
    """Log to MLflow what it lacks of the audited run."""
    from simic.audit.findings import read_verdict
    from simic.pipeline import run_summary, tracking

    # MLflow gets the words that the report has, so that the two never disagree.
    verdict = read_verdict(workspace.reports)
    tags = {**provenance(workspace), "simic.unsound": ", ".join(verdict.unsound)}
    description = "  \n".join(run_summary.of(workspace).lines)
    tracking.log_run(workspace, tree, verdict.run, tags, description, sound=not verdict.unsound)


def run_alone(name: str, tree: Params, workspace: Workspace, say: Say) -> None:
    """Run one stage, as DVC asks for it, which then records it; the caller holds the lock.

    Training that is recorded already is asked for by ``dvc repro -f``: it begins anew. Where DVC sees a change that
    decides no result there is nothing to do, and DVC records the change.

    Args:
        name: Of the stage.
        tree: The params, as params.yaml has them.
        workspace: In which DVC runs the stage.
        say: Called with lines for the user.

    Raises:
        SimicError: The stage refuses, or its params were edited meanwhile.
    """
    # DVC itself asked for the stage: it found a change, or was forced.
    recorded = up_to_date(name, tree, workspace)
    if recorded and not dvc_record.sees_no_change(workspace.root, name, _recorded(tree, workspace)):
        say(f"{name}: up to date")
        return
    fresh = name == "train" and recorded
    perform(name, tree, workspace, Execution(fresh=fresh), say)
    # DVC records params as they are when a stage ends (dvc #11058): of edited ones it would make a false record.
    before = seals.params_of(name, tree)
    after = seals.params_of(name, params.load(workspace.params))
    if edited := ", ".join(key for key in before if before[key] != after[key]):
        raise SimicError(
            f"{workspace.params}: {edited} changed while {name} ran, which is not recorded; "
            f"restore the old values and run dvc commit -f {name}, or run again"
        )
    if name == "audit":
        log_run(tree, workspace)


def _undo(workspace: Workspace) -> str:
    """Say how to undo a change of params.yaml: without git by the old values, which were listed."""
    return (
        ": git checkout params.yaml"
        if dvc_record.in_git(workspace.root)
        else ", restore the old ones listed above"
    )


# --- what is logged ---


def observers(tree: Params, workspace: Workspace) -> tuple["Observer", "Observer"]:
    """Make the observers of every training: the live audit and MLflow's log."""
    from simic.audit.live import LiveAudit
    from simic.pipeline import tracking

    return LiveAudit(), tracking.RunLogger(workspace, tree, provenance(workspace))


def provenance(workspace: Workspace) -> dict[str, str]:
    """Collect which code and records a run is of, for its tags in MLflow."""
    root = workspace.root
    # Hashes and not paths: the workspace goes on to other runs.
    tags = {
        "simic.code": dvc_record.code_revision(root),
        "simic.dvc_lock": seals.content_hash(root / "dvc.lock"),
        "simic.data_sha256": data_hash(workspace.prepared),
    }
    experiment = os.environ.get("DVC_EXP_NAME")  # in a process of `dvc exp run`
    return tags if experiment is None else {**tags, "simic.experiment": experiment}
