"""The flow on a real Prefect server, a real DVC and a real MLflow store; only the stages are toys."""

import subprocess
import sys
from typing import Any

import pytest
import yaml
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectHTTPStatusError
from prefect.types.entrypoint import EntrypointType

from flows import artifacts, pipeline
from flows.overrides import Overrides
from simic.errors import SimicError
from simic.evaluation import result
from simic.pipeline import told
from simic.pipeline.paths import Workspace
from tests.helpers import Toys, episode, update
from tests.pipeline.test_mlflow_store import info_of

pytestmark = [pytest.mark.usefixtures("prefect_server")]


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys' evaluation.json is no real one; the table has a test of its own."""
    monkeypatch.setattr(result, "read", lambda path: None)
    monkeypatch.setattr(artifacts, "evaluation_rows", lambda evaluation: [{"policy": "learned"}])
    of_the_toys = told.Told("81", "none", "no finding, certified", "abc", "go on", alarming=False)
    monkeypatch.setattr(told, "of", lambda workspace: of_the_toys)


def last_state() -> State:
    with get_client(sync_client=True) as client:
        state = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)[0].state
    assert state is not None
    return state


def artifact(key: str) -> Any:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return found[-1].data


def test_flow_runs_records_and_shows_and_then_does_nothing(workspace: Workspace, toys: Toys) -> None:
    overrides = Overrides.model_validate({"train": {"iterations": 3}})
    pipeline.simic(overrides)
    state = last_state()
    assert (state.type, state.name, state.message) == (
        StateType.COMPLETED,
        "No finding, certified",
        "81; none; run abc",
    )
    assert toys.ran == ["prepare", "headroom", "train", "evaluate", "audit"]
    assert yaml.safe_load(workspace.params.read_text())["train"]["iterations"] == 3
    status = [sys.executable, "-m", "dvc", "status"]
    done = subprocess.run(status, cwd=workspace.root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Data and pipelines are up to date."
    assert artifact("verdict") == "# Verdict: sound\n"
    assert artifact("training") == 100.0
    pipeline.simic()
    assert toys.ran == ["prepare", "headroom", "train", "evaluate", "audit"]


def test_flow_refuses_rules_over_several_keys_before_anything_runs(workspace: Workspace, toys: Toys) -> None:
    before = workspace.params.read_bytes()
    with pytest.raises(SimicError, match=r"multiple of ppo\.minibatches"):
        pipeline.simic(Overrides.model_validate({"train": {"envs": 33}}))
    assert toys.ran == []
    assert workspace.params.read_bytes() == before


BAD = [7, {"trian": {}}, {"prepare": {"task": "imagenet"}}]
BAD += [{"train": each} for each in ({"envs": 0}, {"envs": "many"}, {"ppo": {"lr": 0.1}}, {"ppo": {"clip_range": -1}})]


def test_deployment_refuses_bad_overrides_at_submission_and_takes_good_ones(workspace: Workspace) -> None:
    deployment = pipeline.simic.to_deployment("train", entrypoint_type=EntrypointType.MODULE_PATH)
    deployment_id = deployment.apply()
    with get_client(sync_client=True) as client:
        for overrides in BAD:
            with pytest.raises(PrefectHTTPStatusError, match=r"Validation failed|Unprocessable|Conflict"):
                client.create_flow_run_from_deployment(deployment_id, parameters={"overrides": overrides})
        for overrides in ({"train": {"iterations": 50}}, {"train": {"ppo": {"target_kl": None}}}, None):
            client.create_flow_run_from_deployment(deployment_id, parameters={"overrides": overrides})
        assert client.read_deployment(deployment_id).entrypoint == "flows.pipeline.simic"


def test_progress_without_a_server_costs_one_line_and_no_error(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr(artifacts, "create_progress_artifact", gone)
    monkeypatch.setattr(artifacts, "SECONDS_BETWEEN_UPDATES", 0.0)
    progress = artifacts.ProgressArtifact()
    progress.on_start(info_of(workspace))
    for iteration in range(3):
        progress.on_iteration(update(iteration), episode())
    assert len([record for record in caplog.records if "Prefect does not answer" in record.message]) == 1
