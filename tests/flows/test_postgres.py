"""Prefect on a Postgres, as deploy/compose.yaml has it: runs outlast a restart of the database, and two workers in two
checkouts take a run each. Servers, workers and database are real; the stages are toys.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType

from tests.flows.test_serve import Project, answers, wait
from tests.helpers import ROOT
from tests.postgres import Postgres, a_postgres

pytestmark = pytest.mark.prove
AWAY = 5.0  # seconds without a database


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with a_postgres() as found:
        yield found


def restart(postgres: Postgres) -> None:
    postgres.control("-m", "immediate", "stop")  # as if its machine had lost power
    time.sleep(AWAY)
    postgres.start()


@contextlib.contextmanager
def child(project: Project, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "prefect", *arguments]
    with subprocess.Popen(command, cwd=project.root, env=project.env, start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def call(project: Project, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "prefect", *arguments], cwd=project.root, env=project.env, check=True)


def test_a_run_goes_on_while_the_database_is_away(tmp_path: Path, postgres: Postgres) -> None:
    project = Project(tmp_path)
    project.env["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = postgres.uri("postgresql+asyncpg")
    with project.served() as process:
        watching = project.submit(iterations=50)
        wait(lambda: project.saved() >= 3)
        restart(postgres)
        wait(lambda: project.run().state_type == StateType.COMPLETED)
        assert project.run().state_name == "No finding"
        assert project.run().run_count == 1 and project.starts() == [0]
        assert watching.wait(timeout=30) == 0
        process.send_signal(signal.SIGINT)
        process.wait(timeout=40)


def test_two_workers_in_two_checkouts_take_a_run_each(tmp_path: Path, postgres: Postgres) -> None:
    first, second = Project(tmp_path / "first"), Project(tmp_path / "second")
    for project in (first, second):
        shutil.copy(ROOT / "prefect.yaml", project.root)
        project.port = first.port
        project.env["PREFECT_API_URL"] = first.api
        project.env["PREFECT_HOME"] = str(project.root / ".prefect")
    first.env["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = postgres.uri("postgresql+asyncpg")
    with contextlib.ExitStack() as stack:
        stack.enter_context(child(first, "server", "start", "--port", str(first.port)))
        wait(lambda: answers(first.port))
        call(first, "work-pool", "create", "local", "--type", "process")
        call(first, "--no-prompt", "deploy", "--all")
        for project in (first, second):
            stack.enter_context(child(project, "worker", "start", "--pool", "local", "--limit", "1"))
        watching = [project.submit(iterations=60) for project in (first, second)]
        wait(lambda: all((project.root / "starts").exists() for project in (first, second)))
        restart(postgres)
        assert [each.wait(timeout=120) for each in watching] == [0, 0]
        with SyncPrefectClient(first.api) as client:
            wait(lambda: [run.state_type for run in client.read_flow_runs()] == [StateType.COMPLETED] * 2)
    assert [project.starts() for project in (first, second)] == [[0], [0]]
