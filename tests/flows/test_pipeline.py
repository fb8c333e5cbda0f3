"""The flow on a real Prefect server and a real DVC; only the stages are toys."""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect import flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import Artifact, FlowRun, State, StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_engine import run_flow
from prefect.runner import Runner
from prefect.states import Cancelling, Pending, Running
from prefect.types.entrypoint import EntrypointType

from flows import artifacts, pipeline, recovery, serve
from flows.overrides import Overrides
from simic import durable, params, seals
from simic.audit.findings import Summary
from simic.evaluation import result
from simic.pipeline import engine, run_summary, stages
from simic.pipeline.overrides import from_model
from simic.pipeline.paths import UI_VARIABLE, Workspace
from simic.telemetry.naming import run_name
from tests.helpers import ROOT, Toys

pytestmark = [pytest.mark.usefixtures("prefect_server")]


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys' evaluation.json is no real one; the table has a test of its own."""
    monkeypatch.setattr(result, "read", lambda path: None)
    monkeypatch.setattr(artifacts, "evaluation_rows", lambda evaluation: [{"policy": "learned"}])
    of_the_toys = run_summary.RunSummary(
        Summary(what="81.", record="sound", replay="equal", learning="nothing"),
        "no finding",
        "abc",
        "go on",
        False,
        True,
    )
    monkeypatch.setattr(
        run_summary, "of", lambda workspace: replace(of_the_toys, run=trained(workspace))
    )


def trained(workspace: Workspace) -> str:
    """The name of the run whose results are there."""
    seal = seals.read(workspace.root, "train")
    assert seal is not None
    return run_name(seal.sha256)


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as connection:
        yield connection


def last_run(client: SyncPrefectClient) -> FlowRun:
    return client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)[0]


def last_log(client: SyncPrefectClient, until: str) -> list[str]:
    """What the log of the last run says, once the line ``until`` has arrived; it is sent every two seconds."""
    log_filter = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[last_run(client).id]))
    deadline = time.monotonic() + 30
    while until not in (lines := [log.message for log in client.read_logs(log_filter)]):
        assert time.monotonic() < deadline, lines
        time.sleep(0.3)
    return lines


def artifact(client: SyncPrefectClient, key: str) -> Artifact:
    return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))[
        -1
    ]


def test_flow_runs_records_shows_and_pushes_and_then_does_nothing(
    workspace: Workspace,
    toys: Toys,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    client: SyncPrefectClient,
) -> None:
    monkeypatch.setenv(UI_VARIABLE, "http://127.0.0.1:5100")
    with (workspace.root / ".dvc" / "config").open("a") as config:  # in its section core
        config.write(
            f"    remote = results\n['remote \"results\"']\n    url = {tmp_path / 'store'}\n"
        )
    before = workspace.params.read_bytes()
    pipeline.simic(Overrides.model_validate({"train": {"iterations": 3}}))
    run = last_run(client)
    name = trained(workspace)
    assert run.state is not None and run.state.message == f"81. Run {name}."
    assert (run.name, run.state_type, run.state_name) == (name, StateType.COMPLETED, "No finding")
    assert toys.ran == [*Toys.MAKES]
    assert workspace.params.read_bytes() == before
    lock = yaml.safe_load((workspace.root / "dvc.lock").read_text())
    assert lock["stages"]["train"]["params"]["params.yaml"]["train"]["iterations"] == 3
    assert artifact(client, "report").data == "1"
    assert artifact(client, "training").data == 100.0
    assert len([path for path in (tmp_path / "store").rglob("*") if path.is_file()]) >= 5
    lines = last_log(client, f"run      {name}")
    iterations = [line.split("  ")[0] for line in lines if "committed" in line]
    assert iterations == ["train: 1/3", "train: 2/3", "train: 3/3"]
    assert {"what     81.", "record   sound", "replay   equal", "learning nothing"} <= {*lines}
    assert "for this run: train.iterations: 80 -> 3" in lines
    # What belongs to the run itself stands above what belongs to its tasks; a link to a file opens in no browser.
    verdict = artifact(client, "verdict")
    assert verdict.flow_run_id == run.id and verdict.task_run_id is None
    assert artifact(client, "report").task_run_id is not None
    text = str(verdict.data)
    assert "- **record** sound" in text and f"`{workspace.reports.resolve()}/report.html`" in text
    link = "http://127.0.0.1:5100/#/experiments?workflowType=machine_learning"
    assert f"[the run in MLflow]({link})" in text and "file://" not in text

    # Where a push fails, that is told, and no verdict is lost.
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("no folder")
    pipeline.simic(Overrides.model_validate({"train": {"iterations": 3}}))
    assert toys.ran == [*Toys.MAKES]
    run = last_run(client)
    assert (run.state_type, run.state_name) == (StateType.COMPLETED, "No finding, not pushed")
    advice = "the results are not in results; to send them: dvc push"
    assert advice in last_log(client, advice)


def test_schedules_stay_when_the_deployment_is_registered_again(
    workspace: Workspace, client: SyncPrefectClient
) -> None:
    """`make serve` does that at every start; Prefect would remove them."""

    def schedules() -> list[str]:
        fields = {"schedule", "active", "parameters"}
        rows = client.read_deployment_schedules(client.read_deployment_by_name("simic/train").id)
        return sorted(str(row.model_dump(include=fields)) for row in rows)

    asyncio.run(serve.register(Runner(name="first")))
    monthly = DeploymentScheduleCreate(
        schedule=CronSchedule(cron="0 3 1 * *", timezone="Europe/Paris"),
        active=False,
        parameters={"overrides": None},
    )
    nightly = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 3 * * *"))
    client.create_deployment_schedules(
        client.read_deployment_by_name("simic/train").id, [nightly, monthly]
    )
    before = schedules()
    asyncio.run(serve.register(Runner(name="second")))
    assert schedules() == before and len(before) == 2


def test_what_prefect_yaml_deploys_is_this_flow_with_overrides_that_it_takes() -> None:
    """And no limit that a killed worker would go on holding: how many runs at a time is the worker's matter."""
    declared, *_ = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert declared["entrypoint"] == "flows.pipeline.simic"
    assert "concurrency_limit" not in declared
    assert declared["work_pool"] == {"name": "local", "job_variables": {"working_dir": "."}}
    assert [*declared["pull"][0].values()] == [
        {"directory": "."}
    ]  # of the worker, not of who deployed
    [schedule] = declared["schedules"]
    assert not schedule["active"] and CronSchedule(
        cron=schedule["cron"], timezone=schedule["timezone"]
    )
    words = from_model(Overrides.model_validate(schedule["parameters"]["overrides"]))
    params.load(ROOT / "params.yaml", words)


def test_a_held_workspace_refuses_a_run(workspace: Workspace, toys: Any) -> None:
    with (
        engine.workspace_lock(workspace),
        pytest.raises(durable.Held, match="which runs stages; wait for it"),
    ):
        pipeline.simic()
    assert toys.ran == []


# --- a flow run keeps what it is of ---


class Kill(BaseException):
    """The process is gone."""


def killed_in(stage: str, overrides: Overrides | None, patch: pytest.MonkeyPatch) -> None:
    """Begin a flow run; its process dies when a stage begins."""

    def dying(*_: Any, **__: Any) -> None:
        raise Kill

    with patch.context() as dying_stage:
        dying_stage.setitem(stages.STAGES, stage, dying)
        with pytest.raises(Kill):
            pipeline.simic(overrides)


def repeated(run: FlowRun, client: SyncPrefectClient) -> FlowRun:
    """What a runner makes of a run that is put back."""
    client.set_flow_run_state(run.id, Pending(), force=True)
    run_flow(pipeline.simic, client.read_flow_run(run.id), return_type="state")
    return client.read_flow_run(run.id)


OTHER = Overrides.model_validate({"train": {"iterations": 2}})


@pytest.mark.parametrize(("stage", "first"), [("train", None), ("audit", OTHER)])
def test_a_killed_run_goes_on_as_itself_whatever_ran_and_was_edited_meanwhile(
    stage: str,
    first: Overrides | None,
    workspace: Workspace,
    toys: Toys,
    client: SyncPrefectClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = params.load(workspace.params, from_model(first) if first else [])
    killed_in(stage, first, monkeypatch)
    run = last_run(client)
    pipeline.simic(None if first else OTHER)
    between = trained(workspace)
    text = workspace.params.read_text()
    workspace.params.write_text(text.replace("rng_seed: 1\n", "rng_seed: 9\n"))
    ended = repeated(run, client)
    assert ended.state is not None and ended.state_type == StateType.COMPLETED
    seal = seals.read(workspace.root, "train")
    assert seal is not None and seal.params == seals.params_of("train", wanted)
    assert trained(workspace) != between and trained(workspace) in str(ended.state.message)


def test_a_run_whose_data_changed_since_it_began_fails_and_says_so(
    workspace: Workspace, toys: Toys, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result would be that of another run, under this one's name."""
    killed_in("train", None, monkeypatch)
    run = last_run(client)
    (workspace.prepared / "more").write_text("rows")
    ended = repeated(run, client)
    assert ended.state is not None and ended.state_type == StateType.FAILED
    assert "this flow run began as run" in str(ended.state.message)
    assert "start another flow run" in str(ended.state.message)


def test_grave_findings_are_not_shown_in_green(
    workspace: Workspace, toys: Toys, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = run_summary.of
    grave = {"headline": "2 critical or high findings", "passed": False}
    monkeypatch.setattr(run_summary, "of", lambda workspace: replace(of(workspace), **grave))
    pipeline.simic(return_state=True)
    run = last_run(client)
    assert (run.state_type, run.state_name) == (StateType.FAILED, "2 critical or high findings")


BAD = [7, {"trian": {}}, {"prepare": {"task": "imagenet"}}]
BAD += [
    {"train": values}
    for values in ({"envs": 0}, {"envs": "many"}, {"ppo": {"lr": 0.1}}, {"ppo": {"clip_range": -1}})
]


def test_deployment_refuses_bad_overrides_at_submission_and_takes_good_ones(
    workspace: Workspace, client: SyncPrefectClient
) -> None:
    deployment_id = pipeline.simic.to_deployment(
        "train", entrypoint_type=EntrypointType.MODULE_PATH
    ).apply()
    for overrides in BAD:
        with pytest.raises(
            PrefectHTTPStatusError, match=r"Validation failed|Unprocessable|Conflict"
        ):
            client.create_flow_run_from_deployment(
                deployment_id, parameters={"overrides": overrides}
            )
    for overrides in ({"train": {"iterations": 50}}, {"train": {"ppo": {"target_kl": None}}}, None):
        client.create_flow_run_from_deployment(deployment_id, parameters={"overrides": overrides})
    assert client.read_deployment(deployment_id).entrypoint == "flows.pipeline.simic"


# --- runs whose process is gone are settled, runs that live are left alone ---


@flow(name="dead")
def dead() -> None:
    """Never runs."""


def create(client: SyncPrefectClient, state: State[Any], run_count: int = 1) -> UUID:
    run = client.create_flow_run(dead, state=Pending())
    for _ in range(run_count):  # the server counts entries into RUNNING
        client.set_flow_run_state(run.id, Running(), force=True)
    if not state.is_running():
        client.set_flow_run_state(run.id, state, force=True)
    return run.id


def test_reconcile_settles_the_dead_and_leaves_the_living(
    workspace: Workspace, client: SyncPrefectClient
) -> None:
    attempts = params.load(workspace.params).runtime.auto_resume
    killed, asked_to_stop, waiting = (
        create(client, run) for run in (Running(), Cancelling(), Pending())
    )
    hopeless, living = (create(client, Running(), count) for count in (attempts + 1, 1))
    with recovery.alive(workspace.root, living):
        (workspace.root / ".prefect" / "locks" / f"{UUID(int=7)}.lock").write_text(
            "process 1 on this machine"
        )
        lines = recovery.reconcile(workspace.root, "dead")
        assert recovery.living(workspace.root) == [os.getpid()]
    assert len(lines) == 4
    names = [
        client.read_flow_run(run).state_name
        for run in (killed, waiting, asked_to_stop, hopeless, living)
    ]
    assert names == ["AwaitingRetry", "AwaitingRetry", "Cancelled", "Crashed", "Running"]
    assert list((workspace.root / ".prefect" / "locks").iterdir()) == []


def test_hook_puts_a_crashed_run_back_until_the_attempts_are_used_up(
    workspace: Workspace, client: SyncPrefectClient
) -> None:
    attempts = params.load(workspace.params).runtime.auto_resume
    for run_count, expected in ((attempts, "AwaitingRetry"), (attempts + 1, "Running")):
        flow_run_id = create(client, Running(), run_count)
        run = client.read_flow_run(flow_run_id)
        assert run.state is not None
        recovery.put_back(dead, run, run.state)
        assert client.read_flow_run(flow_run_id).state_name == expected
