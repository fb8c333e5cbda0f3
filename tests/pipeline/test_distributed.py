"""Training with parts of the hosts in several processes, with the environment variables of torchrun; all are real."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from simic.params import Params
from simic.pipeline import distributed, stages, tracking
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.training.checkpoint import read
from simic.training.session import open_session
from simic.training.trainer import train
from tests.helpers import in_two_ranks, outputs, started
from tests.training.small_runs import (
    episodes_of,
    findings_of,
    small_params,
    steps_of,
    updates_of,
)

MODULE = ["-m", "simic.pipeline.distributed"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
Project = Callable[[Path, Params], tuple[Workspace, Path]]


def small(**changes: object) -> Params:
    tree = small_params({"progress": "plain", "device": "cpu"}, **changes)
    # Data are prepared already; the processes know no suite that this one has registered.
    prepare = tree.prepare.model_copy(
        update={"suite": tree.prepare.suite.model_copy(update={"name": "tables"})}
    )
    return tree.model_copy(update={"prepare": prepare})


@pytest.fixture(scope="module")
def project(prepared, initialised) -> Project:
    """Makes a project in a folder; tells its root and its work directory."""

    def make(folder: Path, tree: Params) -> tuple[Workspace, Path]:
        workspace = Workspace(folder)
        workspace.params.write_text(yaml.safe_dump(tree.model_dump(mode="json")))
        shutil.copytree(prepared, workspace.prepared)
        (folder / "mlflow.db").write_bytes(initialised)
        return workspace, workspace.work(stages.fingerprint(tree, workspace))

    return make


def run_command(root: Path) -> None:
    os.chdir(root)
    sys.argv = ["distributed"]
    distributed.main()


@pytest.fixture(scope="module")
def together(project, tmp_path_factory) -> tuple[Path, str]:
    """The work directory of a whole training run of two processes; and what they said."""
    workspace, work = project(tmp_path_factory.mktemp("together"), small())
    output = in_two_ranks(tmp_path_factory.mktemp("logs"), partial(run_command, workspace.root))
    assert not list(workspace.state.rglob("*lock")), "locks go with their holders"
    return work, output


def test_the_first_process_writes_the_rows_of_all_hosts(together, finished) -> None:
    work, _ = together
    for kind in (steps_of, updates_of):
        assert [row.iteration for row in kind(work)] == [row.iteration for row in kind(finished)]
    for split, iterations in (("train", [0, 1, 2, 3]), ("validation", [1, 3])):
        assert [iteration for iteration, _ in episodes_of(work, split)] == iterations
        assert all(
            episode["env_id"].tolist() == [0, 1, 2, 3] for _, episode in episodes_of(work, split)
        )
    # Before the first update nothing but rounding can differ.
    for row, expected in list(zip(steps_of(work), steps_of(finished), strict=True))[:3]:
        assert (row.op, row.slot, row.blueprint) == (expected.op, expected.slot, expected.blueprint)
        assert row.stage == expected.stage and row.reward == pytest.approx(
            expected.reward, abs=1e-3
        )


def test_progress_and_mlflow_are_told_once(together) -> None:
    work, output = together
    assert sum("4/4" in line for line in output.splitlines()) == 1
    workspace = Workspace(work.parents[2])
    client, experiment = tracking.connect(workspace)
    [run] = client.search_runs([experiment])
    assert run.data.tags[tracking.RUN_TAG] == run_name(work.name)
    steps = [point.step for point in client.get_metric_history(run.info.run_id, tracking.MARKER)]
    assert steps == [0, 1, 2, 3]


def test_any_number_of_processes_goes_on_from_a_checkpoint(together, prepared) -> None:
    work, _ = together
    manifest = read(work / "checkpoints" / "000004").manifest
    assert manifest.machine.ranks == 2
    assert len(read(work / "checkpoints" / "000004").tensors["normalizers/reward.running"]) == 4
    with open_session(small(iterations=5), work, prepared) as session:
        assert session.state.counters.iteration == 4
        assert train(session).iteration == 5
    messages = [row.message for row in findings_of(work) if row.check == "inexact_resume"]
    assert len(messages) == 1
    assert "ranks (2 → 1)" in messages[0]


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_and_saves(project, tmp_path) -> None:
    _, work = project(tmp_path, small(iterations=1000, validate_every=1000))
    with started(MODULE, tmp_path) as processes:
        assert processes[0].stdout is not None
        first = next(line for line in processes[0].stdout if "1/1000" in line)
        processes[1].send_signal(signal.SIGTERM)
        output = outputs(processes)
    assert [process.returncode for process in processes] == [3, 3], (first, output)
    saved = read(sorted((work / "checkpoints").iterdir())[-1]).manifest.iteration
    assert saved >= 1 and f"stopped with {saved} iterations saved" in output[0]


@pytest.mark.slow
def test_torchrun_goes_on_from_the_checkpoint_when_a_process_was_killed(
    together, project, tmp_path
) -> None:
    """Of four iterations two are done."""
    workspace, work = project(tmp_path, small())
    command = [*TORCHRUN, "--max-restarts", "2", "--monitor-interval", "0.1", *MODULE]
    with started(command, workspace.root, processes=1) as [launcher]:
        assert launcher.stdout is not None
        progress = next(line for line in launcher.stdout if "2/4" in line)
        pgrep = ["pgrep", "-P", str(launcher.pid), "-f", MODULE[1]]
        children = subprocess.run(pgrep, capture_output=True, text=True, check=True)
        os.kill(sorted(map(int, children.stdout.split()))[0], signal.SIGKILL)
        [output] = outputs([launcher], timeout=300)
    assert launcher.returncode == 0, (progress, output)
    assert "train: resuming after iteration" in output
    resumed, undisturbed = (
        (path / "checkpoints" / "000004" / "state.safetensors").read_bytes()
        for path in (work, together[0])
    )
    assert resumed == undisturbed


@pytest.mark.parametrize(
    ("argument", "words"), [("--work=x", "--work"), ("-S=rng_seed=2", "-S"), (None, "params.yaml")]
)
def test_what_it_cannot_do_is_refused_without_a_traceback(
    argument, words, tmp_path, monkeypatch, capsys
) -> None:
    """Params are those of params.yaml, and the work directory follows from them: no run ends in another's directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["distributed", *([argument] if argument else [])])
    with pytest.raises(SystemExit) as stopped:
        distributed.main()
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
