"""Run the Prefect flow `simic`: the stages of dvc.yaml as tasks, with overrides, artifacts, cancel and crash recovery.
Last the results go to the store that DVC has as default remote.

Postponed annotations must stay out of this file: Prefect resolves the parameter's model from the signature.
"""

import threading
from pathlib import Path
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows import artifacts, identity, interruptible, recovery
from flows.overrides import Overrides
from simic import params
from simic.errors import SimicError, printable
from simic.pipeline import dvc_record, engine, run_summary, stages
from simic.pipeline import overrides as writer
from simic.pipeline.paths import Workspace
from simic.training.observers import Lines


def _say(line: str) -> None:
    get_run_logger().info(printable(line))


# Seals decide what is up to date; Prefect's cache would answer even if the output was deleted.
@task(cache_policy=NO_CACHE)
def run_stage(name: str, tree: params.Params) -> bool:
    """Run and record one stage unless its record still holds; tell whether it ran."""
    workspace = Workspace(Path.cwd())
    observers = (artifacts.ProgressArtifact(), Lines(_say)) if name == "train" else ()

    def work(stop: threading.Event) -> bool:
        return engine.refresh(name, tree, workspace, engine.Execution(observers, stop), _say)

    # In a thread: Prefect's signal handlers keep the main one, and a cancelled training saves its state.
    ran = interruptible.run(work)
    artifacts.publish(name, workspace)
    return ran


@task(cache_policy=NO_CACHE)
def push(remote: str) -> None:
    """Send what the run recorded to DVC's default remote; SimicError with DVC's reason where that fails."""
    get_run_logger().info("%s files sent to %s", dvc_record.push(Path.cwd()), remote)


@flow(name="simic", on_crashed=[recovery.put_back])
def simic(overrides: Overrides | None = None) -> State:
    """Prepare, headroom, train, evaluate, audit; the run ends in a state that says the verdict.

    Args:
        overrides: Of params.yaml, for this run alone; None means as it stands.
    """
    workspace = Workspace(Path.cwd())
    run_id = UUID(flow_run.get_id())
    with recovery.alive(workspace.root, run_id), engine.workspace_lock(workspace):
        # A run that is repeated after a crash has task runs that nobody will end.
        recovery.close_dead_tasks(run_id)
        first, *later = stages.STAGES
        if overrides:
            for change in writer.changes(workspace.params, writer.from_model(overrides)):
                _say(f"for this run: {change}")
        tree = identity.keep_params(overrides, workspace)
        run_stage.with_options(name=first)(first, tree)
        # What is trained hangs on the data that are prepared by now.
        name = identity.keep_training(tree, workspace)
        for stage in later:
            run_stage.with_options(name=stage)(stage, tree)

        summary = run_summary.of(workspace)
        if summary.run != name:
            raise SimicError(
                f"the results in {workspace.root} are of run {summary.run}, and not of {name}"
            )
        artifacts.publish_verdict(summary, workspace)
        # Results that could not be pushed are no failure of the run: its verdict stands, and they are here.
        remote = dvc_record.default_remote(workspace.root)
        pushed = remote is None or push(remote, return_state=True).is_completed()
    if not pushed:
        get_run_logger().error("the results are not in %s; to send them: dvc push", remote)
    for line in summary.lines:
        _say(line)
    state = summary.headline.capitalize() + ("" if pushed else ", not pushed")
    # Prefect shows a completed run in green, whatever its state is called.
    end = Completed if summary.passed else Failed
    return end(name=state, message=f"{summary.verdict.what} Run {summary.run}.")
