"""MLflow learns every step exactly once, and training never depends on it. The store is a real one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simic import durable
from simic.audit.findings import SCHEMA_VERSION
from simic.pipeline import mlflow_observer, mlflow_store
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.telemetry.recorder import Extent, Recorder
from simic.telemetry.rows import FindingRow
from simic.training.observers import RunInfo
from tests import standard
from tests.helpers import ROOT, episode, iteration, update

FINGERPRINT = "0123456789abcdef"
NAME = run_name(FINGERPRINT)


def info_of(
    workspace: Workspace,
    findings: list[FindingRow] | None = None,
    fingerprint: str = FINGERPRINT,
    data_sha256: str = "d" * 64,
) -> RunInfo:
    """A run as the trainer describes it."""
    found: list[FindingRow] = [] if findings is None else findings
    return RunInfo(standard.Params(), workspace.work(fingerprint), data_sha256, 0, found.append)


def tracker(workspace: Workspace) -> mlflow_observer.MlflowObserver:
    return mlflow_observer.MlflowObserver(workspace, standard.Params(), {"simic.code": "abc"})


def run_of(workspace: Workspace, fingerprint: str = FINGERPRINT) -> tuple[mlflow_store.MlflowClient, str, str]:
    client, experiment_id = mlflow_store.connect(workspace)
    run_id = mlflow_store.find_run(client, experiment_id, "simic.fingerprint", fingerprint)
    assert run_id is not None
    return client, experiment_id, run_id


def steps(workspace: Workspace, metric: str, fingerprint: str = FINGERPRINT) -> list[int]:
    client, _, run_id = run_of(workspace, fingerprint)
    return [point.step for point in client.get_metric_history(run_id, metric)]


TRAINING = """
import os, signal, sys
from pathlib import Path
from tests.pipeline.test_mlflow_store import *
workspace, die_at = Workspace(Path(sys.argv[1])), int(sys.argv[2])
info = info_of(workspace)
saved = info.work_dir / "saved"
start, sha256 = saved.read_text().split() if saved.exists() else ("0", "")
watcher = tracker(workspace)
with Recorder(info.work_dir, Extent(int(start), sha256)) as log:
    watcher.on_start(info)
    for number in range(int(start), 12):
        watcher.on_iteration(update(number), episode())
        log.write(iteration(number))
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if number % 2:
            saved.write_text("{} {}".format(*log.flush()))
            if number == -die_at:  # between the checkpoint and telling MLflow
                os.kill(os.getpid(), signal.SIGKILL)
            watcher.on_checkpoint(Path(), number + 1)
watcher.on_end("finished")
"""


def test_every_step_exactly_once_after_kills(workspace: Workspace) -> None:
    """Killed before a checkpoint (4), and after one that MLflow was not told of (7)."""
    for die_at, code in ((4, -9), (-7, -9), (99, 0)):
        command = [sys.executable, "-c", TRAINING, str(workspace.root), str(die_at)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    for metric in ("iteration", "update/loss", "episode/return"):
        assert steps(workspace, metric) == list(range(12)), metric
    client, _, run_id = run_of(workspace)
    run = client.get_run(run_id)
    assert (run.data.tags["simic.resumes"], run.info.status) == ("2", "FINISHED")


def test_a_run_states_its_params_data_and_code(workspace: Workspace) -> None:
    watcher = tracker(workspace)
    watcher.on_start(info_of(workspace))
    client, _, run_id = run_of(workspace)
    run = client.get_run(run_id)
    assert run.data.params["train.ppo.gamma"] == str(standard.PPOParams().gamma)
    assert not [name for name in run.data.params if name.startswith("runtime")]
    assert run.data.tags["simic.code"] == "abc"


def test_metrics_are_those_of_the_rows_and_missing_ones_are_left_out() -> None:
    point = mlflow_store.point(update(3), episode())
    assert point.metrics["update/loss"] == 0.25
    assert point.metrics["episode/return"] == 1.5  # (1 + 2) / 2
    assert point.metrics["episode/committed_accuracy"] == 40.0  # the other host was not measured
    assert point.metrics["episode/panicked"] == 0.5
    assert not {"update/missing", "validation/score"} & point.metrics.keys()


def train(
    watcher: mlflow_observer.MlflowObserver, workspace: Workspace, iterations: range, fingerprint: str = FINGERPRINT
) -> None:
    with Recorder(workspace.work(fingerprint), Extent(iterations.start)) as log:
        for number in iterations:
            watcher.on_iteration(update(number), episode())
            log.write(iteration(number))
            watcher.on_checkpoint(Path(), number + 1)


SHAPES = {"features": [5], "categories": [2], "mask_op": [4], "h": [3], "c": [3]}
DTYPES = {"categories": "int64", "mask_op": "bool"}
INPUTS = {name: {"shape": ["batch", *shape], "dtype": DTYPES.get(name, "float32")} for name, shape in SHAPES.items()}
HEADS = [{"name": "op", "size": 4}, {"name": "slot", "size": 2}]


def publish_files(workspace: Workspace) -> None:
    for name, done in (("best", 2), ("latest", 4)):
        folder = workspace.checkpoints / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"iteration": done, "scalars": {"best_score": 77.5}}))
        (folder / "state.safetensors").write_bytes(b"weights")
    (workspace.models / "policy").mkdir(parents=True)
    (workspace.models / "policy" / "weights.safetensors").write_bytes(b"weights")
    (workspace.models / "program").mkdir()
    (workspace.models / "program" / "policy.json").write_text(json.dumps({"inputs": INPUTS, "heads": HEADS}))
    workspace.reports.mkdir(exist_ok=True)
    told = dict.fromkeys(("title", "question", "measured", "threshold", "source", "fix", "passes_when"), "")
    kinds = (("high", "finding"), ("critical", "pass"))
    counted = {"occurred": 1, "counted": "update", "statistics": [], "evidence": []}
    results = [{"check": "R1", "layer": "symptom", "severity": s, "status": t, **counted, **told} for s, t in kinds]
    found = {"schema_version": SCHEMA_VERSION, "run": "x", "results": results}
    (workspace.reports / "findings.json").write_bytes(durable.with_checksum(found))
    workspace.model_card.write_text("---\nlibrary_name: simic\n---\n\n# A controller\n")
    (workspace.reports / "report.html").write_text("<html></html>")
    workspace.figures.mkdir(exist_ok=True)
    (workspace.figures / "learning.svg").write_text("<svg/>")
    policies = {"learned": {"test_accuracy_pct": {"estimate": 81.0}}}
    evaluated = {"checkpoint": "best", "checkpoint_iteration": 2, "policies": policies}
    workspace.evaluation.write_text(json.dumps(evaluated))
    workspace.metrics.write_text(json.dumps({"score": 80.0, "gap_closed": 0.25}))


ITERATIONS = {"checkpoint-best": "2", "checkpoint-latest": "4", "policy": "2"}
MODELS = set(ITERATIONS)


def test_published_files_are_models_and_the_policy_is_registered_without_an_alias(workspace: Workspace) -> None:
    watcher = tracker(workspace)
    watcher.on_start(info_of(workspace))
    publish_files(workspace)
    watcher.publish()
    watcher.publish()  # again: nothing is doubled
    client, experiment_id, run_id = run_of(workspace)
    models = client.search_logged_models([experiment_id])
    assert sorted(model.name for model in models) == sorted(MODELS)
    assert {model.name: model.params["iteration"] for model in models} == ITERATIONS
    assert all(model.params["train.ppo.gamma"] == str(standard.PPOParams().gamma) for model in models)
    [version] = client.search_model_versions("name = 'simic-policy'")
    assert (str(version.version), version.run_id, list(version.aliases)) == ("1", run_id, [])
    assert version.tags == {"simic.data_sha256": "d" * 64}
    files = list((workspace.root / "mlruns").rglob("weights.safetensors"))
    assert len(files) == 1
    assert version.source is not None
    assert files[0].as_uri().startswith(version.source)


def test_report_findings_and_verdict_are_on_the_run_of_the_checkpoints(workspace: Workspace) -> None:
    watcher = tracker(workspace)
    watcher.on_start(info_of(workspace))
    publish_files(workspace)
    watcher.publish()
    mlflow_observer.log_report(workspace, NAME, {"simic.dvc_lock": "76"}, sound=True)
    mlflow_observer.log_report(workspace, NAME, {"simic.dvc_lock": "77"}, sound=True)  # a second audit of the same run
    client, _, run_id = run_of(workspace)
    assert [(m.step, m.value) for m in client.get_metric_history(run_id, "test/learned")] == [(2, 81.0)]
    for name, value in (("score", 80.0), ("gap_closed", 0.25)):
        assert [(m.step, m.value) for m in client.get_metric_history(run_id, f"compare/{name}")] == [(0, value)]
    tags = client.get_run(run_id).data.tags
    assert tags["simic.verdict"] == "high"  # the critical check passed
    assert (tags["simic.findings.high"], tags["simic.findings.critical"]) == ("1", "0")
    assert tags["simic.dvc_lock"] == "77"
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert [drawn.path for drawn in client.list_artifacts(run_id, "figures")] == ["figures/learning.svg"]
    assert {"report.html", "findings.json"} <= names
    version = client.get_model_version_by_alias("simic-policy", "challenger")
    assert (version.run_id, version.description) == (run_id, "# A controller")
    [card] = (workspace.root / "mlruns").glob("*/models/*/artifacts/README.md")
    assert card.read_text() == workspace.model_card.read_text()
    assert card.parent.as_uri() == version.source


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
