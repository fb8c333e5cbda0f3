"""The flows of production: on a real Prefect server, and in `make serve`, where a finding starts a retraining."""

# ruff: noqa: F811 - fixtures are imported

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.runner import Runner

from flows import production, recovery, serve
from simic.pipeline.paths import Workspace
from simic.serving.watch import looks_in
from tests.flows.test_serve import Project, wait
from tests.helpers import ROOT
from tests.serving.shop import (  # noqa: F401
    NAME,
    aliases,
    initialised,
    project,
    shared_network,
    table,
)
from tests.serving.test_retrain import answer, served  # noqa: F401

WHAT = {"model": NAME, "data": "old.csv", "labels": "labels.csv"}


@pytest.mark.usefixtures("prefect_server")
def test_a_finding_is_an_event_with_what_a_retraining_needs_and_both_say_how_they_end(
    served: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[dict[str, Any]] = []
    # The server of tests has no events.
    monkeypatch.setattr(production, "emit_event", lambda name, **event: events.append(event))
    shutil.copy(ROOT / "params.yaml", served.root)
    for _ in range(2):
        assert production.watch(**WHAT, return_state=True).name == "Shift"
    [event] = events
    assert event["payload"]["findings"] == ["age", "accuracy"]
    # Each parameter of the automation is in there.
    payload = {f"{{{{ event.payload.{name} }}}}": value for name, value in event["payload"].items()}
    parameters = {name: payload[text] for name, text in production.RETRAINS.parameters.items()}
    assert parameters == {**WHAT, "requests": "requests"}
    Path("labels.csv").write_text("request,buys\n0-0,yes\n")
    assert production.retrain(**parameters, return_state=True).name == "Waits for labels"


@pytest.mark.usefixtures("prefect_server")
def test_the_automation_is_there_once_however_often_it_is_registered() -> None:
    for name in ("first", "second"):
        asyncio.run(serve.register(Runner(name=name)))
    with get_client(sync_client=True) as client:
        retrain = client.read_deployment_by_name("simic/retrain")
        [automation] = client.read_automations_by_name(str(production.RETRAINS.name))
        assert automation.actions[0].deployment_id == retrain.id
        assert client.read_deployment_by_name("simic/watch").enforce_parameter_schema


def kill(project: Path) -> None:
    """Kill the flow run in progress, and wait until it is gone."""
    wait(lambda: bool(recovery.living(project)))
    for process in recovery.living(project):
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow
def test_in_make_serve_a_shift_makes_one_challenger_whatever_is_killed(
    tmp_path: Path,
    shared_network: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Server, runner, flows and the automation between them; kill -9 of a watch, of a retraining, and of all."""
    served = Project(tmp_path)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shared_network, "grown")

    def run(*command: str) -> None:
        subprocess.run([sys.executable, "-m", *command], env=served.env, check=True)

    run("simic", "register", "grown", "shop")
    answer(0)
    table(300, seed=0).to_csv("old.csv", index=False)
    made = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Challenger"])))
    with served.served() as process:
        given = [f"-p{name}={value}" for name, value in WHAT.items()]
        run("prefect", "deployment", "run", "simic/watch", *given)
        kill(tmp_path)
        wait((tmp_path / "production" / NAME / "data.dvc").exists)
        kill(tmp_path)
        # The runner starts it again; now the servers and the runner go too.
        wait(lambda: bool(recovery.living(tmp_path)))
        for part in [*psutil.Process(process.pid).children(recursive=True), process]:
            part.kill()
        process.wait()
    with served.served() as process:
        with served.client() as client:
            wait(lambda: bool(client.read_flow_runs(flow_run_filter=made)))
            assert len(client.read_flow_runs(flow_run_filter=made)) == 1
        process.terminate()
        process.wait(timeout=40)
    assert aliases(Workspace(tmp_path)) == {"champion": "1", "challenger": "2"}
    assert len(looks_in(tmp_path / "production/watch" / NAME)) == 1
    run("simic", "promote", NAME)
    assert aliases(Workspace(tmp_path)) == {"champion": "2"}
