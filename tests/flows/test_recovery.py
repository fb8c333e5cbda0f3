"""Runs whose process is gone are settled, runs that live are left alone."""

import os
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelling, Pending, Running

from flows import recovery
from simic import params
from simic.pipeline.paths import Workspace

pytestmark = [pytest.mark.usefixtures("prefect_server")]


@flow(name="dead")
def dead() -> None:
    """Never runs."""


def create(state: State[Any], run_count: int = 1) -> UUID:
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(dead, state=Pending())
        for _ in range(run_count):  # the server counts entries into RUNNING
            client.set_flow_run_state(run.id, Running(), force=True)
        if not state.is_running():
            client.set_flow_run_state(run.id, state, force=True)
        return run.id


def read(flow_run_id: UUID) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run_id)


def state(flow_run_id: UUID) -> str | None:
    return read(flow_run_id).state_name


def test_reconcile_settles_the_dead_and_leaves_the_living(workspace: Workspace) -> None:
    attempts = params.load(workspace.params).runtime.auto_resume
    killed, asked_to_stop, waiting = create(Running()), create(Cancelling()), create(Pending())
    hopeless, living = create(Running(), attempts + 1), create(Running())
    with recovery.alive(workspace.root, living):
        (workspace.root / ".prefect" / "locks" / f"{UUID(int=7)}.lock").write_text("process 1 on this machine")
        lines = recovery.reconcile(workspace.root, "dead")
        assert recovery.living(workspace.root) == [os.getpid()]
    assert len(lines) == 4
    assert state(killed) == state(waiting) == "AwaitingRetry"
    assert state(asked_to_stop) == "Cancelled"
    assert state(hopeless) == "Crashed"
    assert state(living) == "Running"
    assert list((workspace.root / ".prefect" / "locks").iterdir()) == []


def test_hook_puts_a_crashed_run_back_until_the_attempts_are_used_up(workspace: Workspace) -> None:
    attempts = params.load(workspace.params).runtime.auto_resume
    for run_count, expected in ((1, "AwaitingRetry"), (attempts, "AwaitingRetry"), (attempts + 1, "Running")):
        flow_run_id = create(Running(), run_count)
        run = read(flow_run_id)
        assert run.state is not None
        recovery.put_back(dead, run, run.state)
        assert state(flow_run_id) == expected
