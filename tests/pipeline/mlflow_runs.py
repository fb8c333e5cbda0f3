"""Runs as training tells MLflow of them, with the files that are published; the store is a real one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simic import durable
from simic.audit.findings import SCHEMA_VERSION
from simic.pipeline import mlflow_store
from simic.pipeline.mlflow_observer import MlflowObserver
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.telemetry.recorder import Extent, Recorder
from simic.telemetry.rows import FindingRow
from simic.training.observers import RunInfo
from tests import standard
from tests.helpers import iteration

FINGERPRINT, OTHER = "0123456789abcdef", "fedcba9876543210"
NAME = run_name(FINGERPRINT)
GONE = "http://127.0.0.1:1"  # nobody listens there
CODE = "c0ffee" * 6 + "abcd"
ITERATIONS = {"checkpoint-best": "2", "checkpoint-latest": "4", "policy": "2"}
MODELS = set(ITERATIONS)
SHAPES = {"features": [5], "categories": [2], "mask_op": [4], "h": [3], "c": [3]}
DTYPES = {"categories": "int64", "mask_op": "bool"}
INPUTS = {name: {"shape": ["batch", *shape], "dtype": DTYPES.get(name, "float32")} for name, shape in SHAPES.items()}
HEADS = [{"name": "op", "size": 4}, {"name": "slot", "size": 2}]


def _split(name: str, context: str) -> dict[str, str]:
    named = {"context": context, "name": f"digits-{name}", "digest": (name * 16)[:36]}
    return named | {"source_type": "local", "source": "{}", "schema": "", "profile": ""}


SPLITS = (_split("train", "training"), _split("val", "validation"), _split("test", "testing"))


def info_of(
    workspace: Workspace,
    findings: list[FindingRow] | None = None,
    fingerprint: str = FINGERPRINT,
    data_sha256: str = "d" * 64,
) -> RunInfo:
    """A run as the trainer describes it."""
    found: list[FindingRow] = [] if findings is None else findings
    return RunInfo(standard.Params(), workspace.work(fingerprint), data_sha256, 0, found.append)


def begun(
    workspace: Workspace, findings: list[FindingRow] | None = None, fingerprint: str = FINGERPRINT, code: str = CODE
) -> MlflowObserver:
    watcher = MlflowObserver(workspace, standard.Params(), {"simic.code": code}, SPLITS)
    watcher.on_start(info_of(workspace, findings, fingerprint))
    return watcher


def train(watcher: MlflowObserver, workspace: Workspace, iterations: range, fingerprint: str = FINGERPRINT) -> None:
    with Recorder(workspace.work(fingerprint), Extent(iterations.start)) as log:
        for number in iterations:
            log.write(iteration(number))
            watcher.on_checkpoint(Path(), number + 1)


def finished(workspace: Workspace, findings: list[FindingRow] | None = None) -> MlflowObserver:
    """Four iterations, whose checkpoints are published."""
    watcher = begun(workspace, findings)
    train(watcher, workspace, range(4))
    watcher.on_end("finished")
    publish_files(workspace)
    watcher.publish()
    return watcher


def run_of(workspace: Workspace, fingerprint: str = FINGERPRINT) -> tuple[mlflow_store.MlflowClient, str, str]:
    client, experiment_id = mlflow_store.connect(workspace)
    run_id = mlflow_store.find_run(client, experiment_id, "simic.fingerprint", fingerprint)
    assert run_id is not None
    return client, experiment_id, run_id


def steps(workspace: Workspace, metric: str, fingerprint: str = FINGERPRINT) -> list[int]:
    client, _, run_id = run_of(workspace, fingerprint)
    return [point.step for point in client.get_metric_history(run_id, metric)]


def owed(workspace: Workspace) -> list[str]:
    return sorted(file.stem for file in workspace.mlflow_debts.glob("*.json"))


@contextmanager
def failing(*names: str, arrives: bool = False) -> Iterator[None]:
    """Calls of MLflow's client fail; with ``arrives`` their answer alone is lost."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            call = getattr(mlflow_store.MlflowClient, name)

            def refuse(*given: object, call: object = call, **named: object) -> None:
                if arrives:
                    call(*given, **named)  # type: ignore[operator]
                raise OSError("the connection was reset")

            patch.setattr(mlflow_store.MlflowClient, name, refuse)
        yield


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
    told = dict.fromkeys(("title", "question", "measured", "threshold", "source", "fix"), "")
    kinds = (("high", "finding"), ("critical", "pass"))
    numbers = {"statistics": [], "evidence": []}
    results = [{"check": "R1", "layer": "symptom", "severity": s, "status": t, **numbers, **told} for s, t in kinds]
    found = {"schema_version": SCHEMA_VERSION, "run": "x", "results": results}
    (workspace.reports / "findings.json").write_bytes(durable.with_checksum(found))
    workspace.model_card.write_text("# A controller")
    (workspace.reports / "report.html").write_text("<html></html>")
    workspace.figures.mkdir(exist_ok=True)
    (workspace.figures / "learning.svg").write_text("<svg/>")
    policies = {"learned": {"test_accuracy_pct": {"estimate": 81.0}}}
    evaluated = {"checkpoint": "best", "checkpoint_iteration": 2, "policies": policies}
    workspace.evaluation.write_text(json.dumps(evaluated))
    workspace.metrics.write_text(json.dumps({"score": 80.0, "gap_closed": 0.25}))
