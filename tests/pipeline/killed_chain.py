"""What is killed in a real project, with DVC and MLflow, and what is then held against a project never killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from simic.pipeline import engine, lives, mlflow_store, verify_resume
from simic.pipeline.paths import Workspace
from simic.training.observers import Observer
from tests.helpers import copy_checkout
from tests.pipeline.small_suite import tree

TIMED = ("telemetry", "reports/seals/train.json")  # outputs whose hash in dvc.lock depends on wall times


def make(root: Path, store: bytes) -> Workspace:
    """A checkout with prepare and headroom done and recorded, and a store with tables."""
    workspace = Workspace(root)
    root.mkdir(parents=True)
    copy_checkout(root)
    (root / "bin").mkdir()
    (root / "bin" / "simic").write_text(f"#!{sys.executable}\nfrom simic.cli import main\nmain()\n")
    (root / "bin" / "simic").chmod(0o755)
    (root / "mlflow.db").write_bytes(store)
    small = tree("audit.certify=false").model_dump(mode="json")
    workspace.params.write_text(yaml.safe_dump(small))
    with engine.workspace_lock(workspace):
        engine.run_chain(workspace, "headroom", engine.Execution(), print)
    return workspace


def train_stage(workspace: Workspace, watching: Observer) -> None:
    """As `simic train` does."""
    with engine.workspace_lock(workspace):
        engine.refresh("train", workspace, engine.Execution((watching,)), print)


def evaluate_stage(workspace: Workspace, _: Observer) -> None:
    """As `simic evaluate` does."""
    with engine.workspace_lock(workspace):
        engine.refresh("evaluate", workspace, engine.Execution(), print)


def left(workspace: Workspace) -> dict[str, bytes]:
    """After it is evaluated, by nobody who is killed: outputs, what DVC recorded, and MLflow's points."""
    life = lives.live(workspace.root, None, 9999, evaluate_stage)
    assert life.exitcode == 0, life.said
    return outputs(workspace)


def outputs(workspace: Workspace) -> dict[str, bytes]:
    """Of train and evaluate, dvc.lock, points: what must not depend on wall times."""
    found = dict(verify_resume.contents(workspace))
    found["reports/evaluation.json"] = workspace.evaluation.read_bytes()
    found["reports/metrics.json"] = workspace.metrics.read_bytes()
    found["dvc.lock"] = json.dumps(_recorded(workspace), sort_keys=True).encode()
    found["mlflow"] = json.dumps(points(workspace), sort_keys=True).encode()
    return found


def _recorded(workspace: Workspace) -> dict:
    """Of prepare to evaluate, every hash that equal runs share."""
    stages = yaml.safe_load((workspace.root / "dvc.lock").read_text())["stages"]
    stages.pop("audit", None)
    for out in stages["train"]["outs"]:
        if out["path"] in TIMED:
            out.pop("md5")
            out.pop("size")
    return stages


def points(workspace: Workspace) -> dict[str, list]:
    """Every step and value of every metric, as often as MLflow has it; of the one run. The load of the machine is of no
    run.
    """
    client, experiment_id = mlflow_store.connect(workspace)
    runs = client.search_runs([experiment_id])
    assert len(runs) == 1, [run.info.run_name for run in runs]
    assert runs[0].info.status == "FINISHED"
    found = {}
    for name in [each for each in runs[0].data.metrics if not each.startswith("system/")]:
        history = client.get_metric_history(runs[0].info.run_id, name)
        found[name] = sorted((each.step, repr(each.value)) for each in history)
    return found


def copy(begun: Workspace, name: str) -> Workspace:
    """Beside it."""
    return Workspace(Path(shutil.copytree(begun.root, begun.root.with_name(name))))


def copy_to(begun: Workspace, target: Path) -> Workspace:
    """Elsewhere."""
    return Workspace(Path(shutil.copytree(begun.root, target)))


def program(workspace: Workspace, command: list[str], seconds: float | None, env: dict[str, str] | None = None) -> int:
    """Exit status of a command and all that it starts, killed after so many seconds, if it takes that long."""
    path = f"{workspace.root / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    whole = os.environ | {"PATH": path, "PYTHONPATH": str(workspace.root)} | (env or {})
    with workspace.root.with_name(f"{workspace.root.name}.said").open("ab") as said:
        process = subprocess.Popen(
            command, cwd=workspace.root, env=whole, stdout=said, stderr=said, start_new_session=True
        )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def killed_program(
    begun: Workspace, command: list[str], kills: int, seed: int, env: dict[str, str] | None = None
) -> tuple[Workspace, list[Workspace]]:
    """One project in which it is left in peace, and as many as it takes to kill it so often, at moments all over its
    time; in each it is started again until it is done.
    """
    twin, drawn, children, done = copy(begun, "twin"), random.Random(seed), list[Workspace](), 0
    started = time.monotonic()
    assert program(twin, command, None, env) == 0, said(twin)
    seconds = time.monotonic() - started
    while done < kills:
        children.append(copy(begun, f"killed-{len(children)}"))
        status = -signal.SIGKILL
        while status:
            seconds_to_live = None if done == kills else drawn.uniform(0.2 * seconds, 1.1 * seconds)
            status = program(children[-1], command, seconds_to_live, env)
            assert status in (0, -signal.SIGKILL), said(children[-1])
            done += status != 0
    return twin, children


def said(workspace: Workspace) -> str:
    """The end of what its commands said."""
    return workspace.root.with_name(f"{workspace.root.name}.said").read_text()[-3000:]
