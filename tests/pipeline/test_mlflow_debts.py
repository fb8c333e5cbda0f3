"""Whatever happens to MLflow it knows everything once in the end: points, models, end state and report of all runs."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from simic.pipeline import mlflow_observer, mlflow_store
from simic.pipeline.mlflow_observer import MlflowObserver
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow
from tests.pipeline.test_mlflow_store import (
    FINGERPRINT,
    MODELS,
    NAME,
    info_of,
    publish_files,
    run_of,
    steps,
    tracker,
    train,
)

GONE = "http://127.0.0.1:1"  # nobody listens there
OTHER = "fedcba9876543210"
Breaking = Callable[[Path], Iterator[None]]


def begun(workspace: Workspace, findings: list[FindingRow], fingerprint: str = FINGERPRINT) -> MlflowObserver:
    watcher = tracker(workspace)
    watcher.on_start(info_of(workspace, findings, fingerprint))
    return watcher


def owed(workspace: Workspace) -> list[str]:
    return sorted(file.stem for file in workspace.mlflow_debts.glob("*.json"))


def refuse(*_: object, **__: object) -> None:
    raise OSError("disk full")


@contextmanager
def failing(*names: str) -> Iterator[None]:
    """Of MLflow's client."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(mlflow_store.MlflowClient, name, refuse)
        yield


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_observer, "PAUSE", 0.0)


def test_store_gone_in_mid_run_is_one_finding_and_everything_comes_later(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch)
    findings: list[FindingRow] = []
    watcher = begun(workspace, findings)
    train(watcher, workspace, range(2))
    with failing("log_batch"):
        train(watcher, workspace, range(2, 5))
    assert [finding.check for finding in findings] == ["tracking_gone"]
    assert steps(workspace, "update/loss") == [0, 1]
    train(watcher, workspace, range(5, 6))
    assert steps(workspace, "update/loss") == list(range(6))


def test_server_gone_during_the_whole_run_is_paid_with_the_report(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is over, its work directory put by: metrics, models and report still arrive, once."""
    with monkeypatch.context() as gone:
        gone.setenv("MLFLOW_TRACKING_URI", GONE)
        findings: list[FindingRow] = []
        watcher = begun(workspace, findings)
        train(watcher, workspace, range(3))
        watcher.on_end("finished")
        publish_files(workspace)
        watcher.publish()
        mlflow_observer.log_report(workspace, NAME, {}, sound=True)
    assert [finding.check for finding in findings] == ["tracking_gone"]
    workspace.finished.mkdir()
    workspace.work(FINGERPRINT).rename(workspace.finished / FINGERPRINT)
    mlflow_observer.log_report(workspace, NAME, {"simic.dvc_lock": "x"}, sound=True)
    assert steps(workspace, "update/loss") == [0, 1, 2]
    client, experiment_id, run_id = run_of(workspace)
    assert client.get_run(run_id).info.status == "FINISHED"
    assert {model.name for model in client.search_logged_models([experiment_id])} == MODELS
    assert "report.html" in {artifact.path for artifact in client.list_artifacts(run_id)}
    assert owed(workspace) == []


def test_what_was_refused_at_the_last_checkpoint_is_told_at_the_end(workspace: Workspace) -> None:
    """The store is free again when training ends, a moment later: no attempt is due then, and one is made."""
    watcher = begun(workspace, [])
    with failing("log_batch"):
        train(watcher, workspace, range(3))
    watcher.on_end("finished")
    assert steps(workspace, "update/loss") == [0, 1, 2]
    assert owed(workspace) == []


def test_an_answer_that_was_lost_doubles_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    watcher = begun(workspace, [])
    arrives = mlflow_store.MlflowClient.log_batch

    def lost(*given: object, **named: object) -> None:
        arrives(*given, **named)  # type: ignore[arg-type]
        raise OSError("the connection was reset")

    with monkeypatch.context() as patch:
        patch.setattr(mlflow_store.MlflowClient, "log_batch", lost)
        train(watcher, workspace, range(2))
    train(watcher, workspace, range(2, 4))
    assert steps(workspace, "update/loss") == [0, 1, 2, 3]


def test_a_policy_that_could_not_be_published_is_registered_later(workspace: Workspace) -> None:
    watcher = begun(workspace, [])
    train(watcher, workspace, range(2))
    watcher.on_end("finished")
    publish_files(workspace)
    with failing("create_model_version"):
        watcher.publish()
    assert owed(workspace) == [NAME]
    begun(workspace, [], OTHER)  # the next start pays
    client, experiment_id, run_id = run_of(workspace)
    assert {model.name for model in client.search_logged_models([experiment_id])} == MODELS
    assert [version.run_id for version in client.search_model_versions("name = 'simic-policy'")] == [run_id]
    assert owed(workspace) == []


def test_models_of_another_run_are_not_taken_for_those_owed(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = begun(workspace, [])
    watcher.on_end("finished")
    publish_files(workspace)
    with failing("create_logged_model"):
        watcher.publish()
    manifest = workspace.checkpoints / "latest" / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    mlflow_observer.settle(workspace)
    client, experiment_id, _ = run_of(workspace)
    assert client.search_logged_models([experiment_id]) == [] and owed(workspace) == []
    assert f"will not have the policy of run {NAME}" in caplog.text


def lived_without_a_store(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, ended: str, fingerprint: str = FINGERPRINT
) -> None:
    with monkeypatch.context() as gone:
        gone.setenv("MLFLOW_TRACKING_URI", GONE)
        watcher = begun(workspace, [], fingerprint)
        train(watcher, workspace, range(2), fingerprint)
        watcher.on_end(ended)


def test_a_debt_of_an_earlier_life_does_not_undo_what_came_after(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed while MLflow was gone, went on, and finished."""
    lived_without_a_store(workspace, monkeypatch, "failed")
    assert owed(workspace) == [NAME]
    watcher = begun(workspace, [])
    train(watcher, workspace, range(2, 3))
    watcher.on_end("finished")
    mlflow_observer.settle(workspace)
    client, _, run_id = run_of(workspace)
    assert client.get_run(run_id).info.status == "FINISHED"
    assert steps(workspace, "update/loss") == [0, 1, 2] and owed(workspace) == []


def test_debts_of_several_runs_are_all_paid(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_without_a_store(workspace, monkeypatch, "finished")
    lived_without_a_store(workspace, monkeypatch, "interrupted", OTHER)
    assert owed(workspace) == sorted((NAME, run_name(OTHER)))
    mlflow_observer.settle(workspace)
    for fingerprint, status in ((FINGERPRINT, "FINISHED"), (OTHER, "KILLED")):
        client, _, run_id = run_of(workspace, fingerprint)
        assert client.get_run(run_id).info.status == status
        assert steps(workspace, "update/loss", fingerprint) == [0, 1]


def test_a_report_that_could_not_be_told_is_told_later_unless_another_took_its_place(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = begun(workspace, [])
    watcher.on_end("finished")
    publish_files(workspace)
    watcher.publish()
    for edited, told in ((True, False), (False, True)):
        with failing("log_artifact"):
            mlflow_observer.log_report(workspace, NAME, {}, sound=True)
        assert owed(workspace) == [NAME]
        findings = workspace.reports / "findings.json"
        if edited:
            findings.write_text(findings.read_text() + "\n")
        mlflow_observer.settle(workspace)
        client, _, run_id = run_of(workspace)
        assert bool(client.list_artifacts(run_id)) is told
        assert (f"will not have the report of run {NAME}" in caplog.text) is True
        assert owed(workspace) == []


@pytest.mark.parametrize("damage", [b"", b"\xff", b'{"status": 3}'])
def test_a_damaged_debt_is_said(damage: bytes, workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    file = workspace.mlflow_debt(NAME)
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    mlflow_observer.settle(workspace)
    assert f"what MLflow lacks of run {NAME} stays missing" in caplog.text and owed(workspace) == []


def test_metrics_of_a_run_whose_telemetry_was_removed_stay_missing_and_that_is_said(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lived_without_a_store(workspace, monkeypatch, "interrupted")
    shutil.rmtree(workspace.work(FINGERPRINT))
    mlflow_observer.settle(workspace)
    assert f"will not have all metrics of run {NAME}" in caplog.text and owed(workspace) == []
    client, _, run_id = run_of(workspace)
    assert client.get_run(run_id).info.status == "KILLED"


def test_a_store_that_makes_everyone_wait_is_not_asked_at_every_checkpoint(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt takes 5 seconds, an iteration 1: it is left alone for twenty times as long."""
    now, attempts = [0.0], []

    def slow(*_: object, **__: object) -> None:
        attempts.append(now[0])
        now[0] += 5.0
        raise OSError("database is locked")

    watcher = begun(workspace, [])
    monkeypatch.setattr(mlflow_observer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(mlflow_store.MlflowClient, "log_batch", slow)
    for number in range(200):
        now[0] += 1.0
        train(watcher, workspace, range(number, number + 1))
    assert attempts == [1.0, 106.0]


def locked(file: Path) -> Iterator[None]:
    """By another connection."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


def garbage(file: Path) -> Iterator[None]:
    kept = file.read_bytes()
    file.write_bytes(b"garbage" * 1000)
    yield
    file.write_bytes(kept)


def a_folder(file: Path) -> Iterator[None]:
    """In its place: even root cannot write to it."""
    aside = file.rename(file.with_suffix(".aside"))
    file.mkdir()
    yield
    file.rmdir()
    aside.rename(file)


@pytest.mark.parametrize(
    ("breaking", "why"),
    [(locked, "database is locked"), (garbage, "file is not a database"), (a_folder, "unable to open database file")],
)
def test_a_store_that_cannot_be_used_costs_a_finding_and_everything_comes_later(
    breaking: Breaking, why: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch)
    findings: list[FindingRow] = []
    watcher = begun(workspace, findings)
    with contextmanager(breaking)(workspace.root / "mlflow.db"):
        train(watcher, workspace, range(1))
    assert [finding.check for finding in findings] == ["tracking_gone"] and why in findings[0].message
    train(watcher, workspace, range(1, 2))
    watcher.on_end("finished")
    assert steps(workspace, "update/loss") == [0, 1] and owed(workspace) == []
