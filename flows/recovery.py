"""Reschedule runs whose process died: at once by a hook, or at start-up if everything died (power loss)."""

from contextlib import AbstractContextManager
from pathlib import Path
from uuid import UUID

from prefect import Flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry, Cancelled, Crashed

from simic import durable, params
from simic.pipeline.paths import Workspace

WAIT_FOR_EVER = -1.0


def alive(root: Path, flow_run_id: UUID) -> AbstractContextManager[None]:
    """Hold a lock while the process of a flow run lives; the kernel frees it however the process ends."""
    return durable.locked(_lock_path(root, flow_run_id), "runs this flow", WAIT_FOR_EVER)


def living(root: Path) -> list[int]:
    """List the process ids of the flow runs in progress in this project; the locks of dead ones are removed."""
    # By locks and not by process ids, which the system gives to other processes again.
    holders = [durable.holder(path) for path in (root / ".prefect" / "locks").glob("*.lock")]
    return [pid for pid in holders if pid]


def put_back(flow: Flow, flow_run: FlowRun, state: State) -> None:
    """Schedule a crashed run again (hook on_crashed): it resumes from its checkpoint, runtime.auto_resume times.

    Args:
        flow: Of the run; Prefect passes it to every hook.
        flow_run: The one that crashed, as it was when the hook was called.
        state: Its crashed state, which is not looked at.
    """
    # Read anew: the number of its starts may have changed since the hook got its copy.
    with get_client(sync_client=True) as client:
        _retry(client, client.read_flow_run(flow_run.id), _attempts(Path.cwd()))


def close_dead_tasks(flow_run_id: UUID) -> None:
    """Mark task runs of a killed attempt as crashed; they would stay Running for ever."""
    # Only those of this flow run: task runs of others may really be running.
    running = TaskRunFilter(
        state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING]))
    )
    flow_runs = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    # Forced, since Prefect's rules refuse to end a task run that no process answers for.
    with get_client(sync_client=True) as client:
        for task_run in client.read_task_runs(task_run_filter=running, flow_run_filter=flow_runs):
            client.set_task_run_state(
                task_run.id, Crashed(message="its process was killed"), force=True
            )


def reconcile(root: Path, flow_name: str) -> list[str]:
    """Settle runs left unfinished by a killed runner: cancelled if that was requested, else scheduled again.

    To be called before a runner starts: a run whose lock is free has no process.

    Returns:
        A line for each run.
    """
    # A crash of the whole machine calls no hook, so the server still believes these to be in progress.
    unfinished = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    filters = {
        "flow_filter": FlowFilter(name=FlowFilterName(any_=[flow_name])),
        "flow_run_filter": FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=unfinished))
        ),
    }
    attempts = _attempts(root)
    with get_client(sync_client=True) as client:
        # A living process holds the lock of its run, also one that another runner started.
        dead = [
            run
            for run in client.read_flow_runs(**filters)
            if durable.holder(_lock_path(root, run.id)) is None
        ]
        return [f"{run.name}: {_settle(client, run, attempts)}" for run in dead]


def _settle(client: SyncPrefectClient, run: FlowRun, attempts: int) -> str:
    # Who cancelled a run does not want it back, however its process ended.
    if run.state_type == StateType.CANCELLING:
        client.set_flow_run_state(run.id, Cancelled(message="its process is gone"), force=True)
        return "cancelled"
    # A run that dies again and again is not repeated for ever: it may be what kills the machine.
    if _retry(client, run, attempts):
        return "resumes"
    client.set_flow_run_state(run.id, Crashed(message="its process was killed"), force=True)
    return f"crashed, and not resumed again after {attempts} attempts (runtime.auto_resume)"


def _retry(client: SyncPrefectClient, run: FlowRun, attempts: int) -> bool:
    # The count has the first start too, so that this allows as many repetitions as attempts.
    if run.run_count > attempts:
        return False
    client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    return True


def _attempts(root: Path) -> int:
    return params.load(Workspace(root).params).runtime.auto_resume


def _lock_path(root: Path, flow_run_id: UUID) -> Path:
    return root / ".prefect" / "locks" / f"{flow_run_id}.lock"
