"""Whatever happens to MLflow or to us, in the end it has everything once, and training never depends on it."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from simic.errors import SimicError
from simic.pipeline import mlflow_observer, mlflow_store, promote
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.telemetry.rows import FindingRow
from tests.helpers import ROOT, free_port, some
from tests.pipeline.mlflow_runs import (
    FINGERPRINT,
    GONE,
    MODELS,
    NAME,
    OTHER,
    begun,
    failing,
    finished,
    owed,
    publish_files,
    run_of,
    steps,
    train,
)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is tried again without a pause."""
    monkeypatch.setattr(mlflow_observer, "PAUSE", 0.0)


def log_report(workspace: Workspace) -> None:
    mlflow_observer.log_report(workspace, NAME, {}, sound=True)


def assert_everything_is_known_once(workspace: Workspace) -> None:
    """Of a run of four iterations: points, end, models with what they are worth, version, report."""
    client, experiment_id, run_id = run_of(workspace)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    metrics = {"iteration", "update/policy_loss", "episode/return", "compare/score", "test/learned"}
    assert metrics < run.data.metrics.keys()
    for metric in run.data.metrics:
        found = steps(workspace, metric)
        assert found == (list(range(4)) if "/" not in metric or metric.startswith(("update", "episode")) else found[:1])
    assert [each.name for each in client.search_logged_models([experiment_id]) if each.name not in MODELS] == []
    ready = [each for each in client.search_logged_models([experiment_id]) if each.status == "READY"]
    assert {each.name for each in ready} == MODELS and len(ready) == len(MODELS)
    assert len(run.outputs.model_outputs) == len(MODELS)
    for each in ready:
        told = {(point.key, point.step): point.value for point in each.metrics or []}
        assert len(told) == len(each.metrics or [])
        assert told.get(("compare/score", 0)) == (None if each.name == "checkpoint-latest" else 80.0)
        assert told.get(("episode/return", 1)) == (1.5 if each.name == "checkpoint-best" else None)
    [version] = client.search_model_versions("name = 'simic-digits'")
    assert version.run_id == run_id
    assert "report.html" in {artifact.path for artifact in client.list_artifacts(run_id)}
    assert owed(workspace) == []


CALLS = (
    "create_run", "log_batch", "get_run", "set_terminated", "create_logged_model", "finalize_logged_model",
    "log_outputs", "get_logged_model", "create_model_version", "log_artifact",
)  # fmt: skip
FAILURES = [(call, arrives) for call in CALLS for arrives in (False, True) if not (call == "create_run" and arrives)]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("call", "arrives"), some(FAILURES, ("log_batch", False), ("log_outputs", True)))
def test_whatever_call_fails_or_loses_its_answer_everything_is_known_once(
    call: str, arrives: bool, workspace: Workspace
) -> None:
    """In the middle of training, then from its last iteration to the report; the next command pays."""
    findings: list[FindingRow] = []
    watcher = begun(workspace, findings)
    with failing(call, arrives=arrives):
        train(watcher, workspace, range(2))
    train(watcher, workspace, range(2, 3))
    with failing(call, arrives=arrives):
        train(watcher, workspace, range(3, 4))
        watcher.on_end("finished")
        publish_files(workspace)
        watcher.publish()
        log_report(workspace)
    assert {finding.check for finding in findings} <= {"tracking_gone"} and len(findings) <= 2
    workspace.finished.mkdir()
    workspace.work(FINGERPRINT).rename(workspace.finished / FINGERPRINT)
    mlflow_observer.settle(workspace)
    log_report(workspace)  # audited again
    assert_everything_is_known_once(workspace)


def test_iterations_that_are_made_again_after_a_kill_are_known_once(workspace: Workspace) -> None:
    """The first life was killed after iterations that no checkpoint has; telemetry is cut back to the checkpoint."""
    train(begun(workspace), workspace, range(5))
    watcher = begun(workspace)
    train(watcher, workspace, range(3, 7))
    watcher.on_end("finished")
    for metric in ("iteration", "update/policy_loss", "episode/return"):
        assert steps(workspace, metric) == list(range(7)), metric
    client, _, run_id = run_of(workspace)
    assert client.get_run(run_id).info.status == "FINISHED"


def lived_without_a_store(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, ended: str, fingerprint: str = FINGERPRINT
) -> None:
    with monkeypatch.context() as gone:
        gone.setenv("MLFLOW_TRACKING_URI", GONE)
        watcher = begun(workspace, [], fingerprint)
        train(watcher, workspace, range(2), fingerprint)
        watcher.on_end(ended)


def test_debts_of_several_runs_and_of_an_earlier_life_are_paid_and_undo_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run failed while MLflow was gone, went on, and finished; another was interrupted."""
    lived_without_a_store(workspace, monkeypatch, "failed")
    lived_without_a_store(workspace, monkeypatch, "interrupted", OTHER)
    assert owed(workspace) == sorted((NAME, run_name(OTHER)))
    watcher = begun(workspace)
    train(watcher, workspace, range(2, 3))
    watcher.on_end("finished")
    for fingerprint, status, done in ((FINGERPRINT, "FINISHED", 3), (OTHER, "KILLED", 2)):
        client, _, run_id = run_of(workspace, fingerprint)
        assert client.get_run(run_id).info.status == status
        assert steps(workspace, "update/policy_loss", fingerprint) == list(range(done))
    assert owed(workspace) == []


def test_models_and_report_of_another_run_are_not_taken_for_those_owed(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    with failing("create_logged_model", "log_artifact"):
        finished(workspace)
        log_report(workspace)
    for file in (workspace.checkpoints / "latest" / "manifest.json", workspace.reports / "findings.json"):
        file.write_text(file.read_text() + "\n")
    mlflow_observer.settle(workspace)
    client, experiment_id, run_id = run_of(workspace)
    assert client.search_logged_models([experiment_id]) == [] == client.list_artifacts(run_id)
    assert f"will not have the policy of run {NAME}" in caplog.text
    assert f"will not have the report of run {NAME}" in caplog.text and owed(workspace) == []


def test_a_damaged_debt_is_said(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    file = workspace.mlflow_debt(NAME)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xff")
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
    """Each attempt takes 5 seconds: it is left alone for twenty times as long."""
    now, attempts = [0.0], []

    def slow(*_: object, **__: object) -> None:
        attempts.append(now[0])
        now[0] += 5.0
        raise OSError("database is locked")

    watcher = begun(workspace)
    monkeypatch.setattr(mlflow_observer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(mlflow_store.MlflowClient, "log_batch", slow)
    for number, moment in enumerate((1.0, 7.0, 56.0, 105.0, 106.0, 112.0)):
        now[0] = moment
        train(watcher, workspace, range(number, number + 1))
    assert attempts == [1.0, 106.0]


@pytest.mark.usefixtures("at_once")
def test_a_store_that_cannot_be_used_costs_a_finding_and_everything_comes_later(workspace: Workspace) -> None:
    """A folder is in its place: even root cannot write to it."""
    findings, file = list[FindingRow](), workspace.root / "mlflow.db"
    watcher, aside = begun(workspace, findings), file.rename(file.with_suffix(".aside"))
    file.mkdir()
    train(watcher, workspace, range(1))
    file.rmdir()
    aside.rename(file)
    [finding] = findings
    assert (finding.check, finding.iteration) == ("tracking_gone", 0)
    assert "unable to open database file" in finding.message
    train(watcher, workspace, range(1, 2))
    watcher.on_end("finished")
    assert steps(workspace, "update/policy_loss") == [0, 1] and owed(workspace) == []


@pytest.mark.slow
def test_first_initialisation_by_several_processes_at_once_gives_one_experiment(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from simic.pipeline import mlflow_store; "
        "from simic.pipeline.paths import Workspace\n"
        "print(mlflow_store.connect(Workspace(Path(sys.argv[1])))[1])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    children = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(4)
    ]
    answers = {child.communicate()[0] for child in children}
    assert [child.returncode for child in children] == [0] * 4
    assert len(answers) == 1


# --- a store keeps absolute paths: a project that was copied or moved ---


def files_of(workspace: Workspace) -> set[Path]:
    return {path for path in workspace.root.rglob("*") if path.is_file()}


def test_a_copied_project_says_what_to_do_and_does_it_once_that_was_done(
    workspace: Workspace, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    finished(workspace)
    copy = Workspace(Path(shutil.copytree(workspace.root, tmp_path_factory.mktemp("moved") / "project")))
    before, findings = files_of(workspace), list[FindingRow]()
    watcher = begun(copy, findings, OTHER)
    train(watcher, copy, range(3), OTHER)
    watcher.on_end("finished")
    watcher.publish()
    assert [finding.check for finding in findings] == ["tracking_gone"]
    [said] = [record.getMessage() for record in caplog.records if "continues without it" in record.getMessage()]
    assert "\n" not in said and f"{copy.root}/mlflow.db keeps its files in {workspace.root.as_uri()}" in said
    assert len(owed(copy)) == 1

    command = shlex.split(said.partition("run in its folder: ")[2])
    assert command[0] == "mlflow"
    done = subprocess.run([sys.executable, "-m", *command], cwd=copy.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mlflow_observer.settle(copy)
    assert owed(copy) == [] and steps(copy, "update/policy_loss", OTHER) == [0, 1, 2]
    client, experiment_id, run_id = run_of(copy, OTHER)
    found = client.search_logged_models([experiment_id])
    assert {model.name for model in found} == MODELS
    assert all(model.artifact_location.startswith(copy.root.as_uri()) for model in found)
    assert files_of(workspace) == before
    assert run_id in {version.run_id for version in client.search_model_versions("name = 'simic-digits'")}


def test_a_champion_whose_files_stayed_behind_is_one_line(workspace: Workspace, tmp_path: Path) -> None:
    finished(workspace)
    client, _ = mlflow_store.connect(workspace)
    champion, uri = client.get_model_version("simic-digits", "1"), mlflow_store.store_uri(workspace)
    assert (promote.fetch(champion, tmp_path / "there", uri) / "MLmodel").is_file()
    shutil.rmtree(workspace.root / "mlruns")
    with pytest.raises(
        SimicError, match=r"version 1 of simic-digits: its files are not in file://.* or take its alias away in MLflow$"
    ):
        promote.fetch(champion, tmp_path / "gone", uri)


def test_a_server_keeps_its_files_wherever_it_likes(
    workspace: Workspace, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the way to the project may have many names."""
    mlflow_store.connect(workspace)
    link = tmp_path_factory.mktemp("link") / "project"
    link.symlink_to(workspace.root)
    assert mlflow_store.connect(Workspace(link))[1] == mlflow_store.connect(workspace)[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store.store_uri(workspace))
    mlflow_store.connect(Workspace(tmp_path_factory.mktemp("other")))


def test_a_database_server_that_nobody_runs_is_out_of_reach_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/mlflow")
    with pytest.raises(OSError, match="refused"):
        mlflow_store.refuse_unusable(Workspace(tmp_path))


@contextmanager
def server(folder: Path, port: int) -> Iterator[None]:
    """A real one, which is killed at the end with its workers."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db"]
    command += ["--artifacts-destination", str(folder / "files")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, start_new_session=True, **quiet) as process:
        deadline, answered = time.monotonic() + 240, False
        while not answered:
            assert time.monotonic() < deadline and process.poll() is None, "mlflow server does not start"
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                answered = True
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.prove
@pytest.mark.usefixtures("at_once")
def test_a_server_that_was_killed_in_mid_run_has_everything_once(
    workspace: Workspace, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, port, findings = tmp_path_factory.mktemp("server"), free_port(), list[FindingRow]()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with server(folder, port):
        watcher = begun(workspace, findings)
        train(watcher, workspace, range(2))
    train(watcher, workspace, range(2, 3))
    assert [finding.check for finding in findings] == ["tracking_gone"]
    with server(folder, port):
        train(watcher, workspace, range(3, 4))
        watcher.on_end("finished")
        publish_files(workspace)
        watcher.publish()
        log_report(workspace)
        assert_everything_is_known_once(workspace)
