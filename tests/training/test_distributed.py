"""Several processes with parts of the environments learn what one learns with all of them; the processes are real."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import distributed_worker
import numpy as np
import pytest
import torch
import yaml
from small_runs import episodes_of, events_of, findings_of, small_params, steps_of, updates_of

from simic import durable
from simic.errors import SimicError
from simic.params import Params, PPOParams
from simic.pipeline import distributed, mlflow_store, stages
from simic.pipeline.paths import Workspace
from simic.telemetry.recorder import NOTHING, Silent
from simic.telemetry.rows import FindingRow
from simic.training.checkpoint import read
from simic.training.ranks import ALONE, Ranks, joined, merged
from simic.training.session import LOCK_FILE, open_session
from simic.training.trainer import train
from tests.helpers import free_port

ROOT = Path(__file__).parents[2]
MODULE = ["-m", "simic.pipeline.distributed"]


def start(command: list[str], folder: Path | None = None, processes: int = 2) -> list[subprocess.Popen]:
    """As torchrun starts them, with the environment variables it sets."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
    shared |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]


def finish(processes: list[subprocess.Popen], timeout: float = 120) -> list[str]:
    """Their output; whoever still runs is ended."""
    try:
        return [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> list[dict]:
    """What each of two processes has after three updates of every case."""
    out = tmp_path_factory.mktemp("two") / "found"
    processes = start([distributed_worker.__file__, str(out)])
    said = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], said
    return [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", distributed_worker.CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_two_processes_with_half_the_environments_equal_one_with_all(case, dtype, tolerance, learned) -> None:
    expected = distributed_worker.learn(ALONE, case, dtype)
    for rank in learned:
        found = rank[f"{case} {str(dtype).removeprefix('torch.')}"]
        assert np.abs(np.array(found["weights"]) - np.array(expected["weights"])).max() <= tolerance
        for name, values in expected["scales"].items():
            assert np.allclose(found["scales"][name], values, rtol=tolerance, atol=tolerance), name
        assert found["learning_rate"] == expected["learning_rate"]
        for one, other in zip(expected["metrics"], found["metrics"], strict=True):
            assert other["first_ratio_ok"]
            for name in ("steps", "samples", "samples_by_head", "stopped_early", "epochs"):
                assert other[name] == one[name], name
            for name in ("policy_loss", "value_loss", "approx_kl", "exact_kl", "explained_variance", "grad_norm"):
                assert other[name] == pytest.approx(one[name], rel=100 * tolerance, abs=tolerance), name


def test_parameters_are_identical_on_every_rank(learned) -> None:
    for case, found in learned[0].items():
        assert learned[1][case]["weights"] == found["weights"], case
        assert learned[1][case]["scales"] == found["scales"], case
        assert np.std(found["weights"]) > 0.05, case


def test_early_stop_is_a_decision_of_all(learned) -> None:
    for rank in learned:
        assert any(metrics["stopped_early"] for metrics in rank["stops float64"]["metrics"])


def small(**changes: object) -> Params:
    return small_params({"progress": "plain", "device": "cpu"}, **changes)


def project(folder: Path, prepared: Path, tree: Params) -> tuple[Workspace, Path]:
    """A project's root, and its work directory."""
    found = Workspace(folder)
    found.params.write_text(yaml.safe_dump(tree.model_dump(mode="json")))
    shutil.copytree(prepared, found.prepared)
    return found, found.work(stages.fingerprint(tree, found))


@pytest.fixture(scope="module")
def together(prepared, tmp_path_factory) -> tuple[Path, str]:
    """The work directory of a whole training run of two processes, by the documented command; and what it said."""
    workspace, work = project(tmp_path_factory.mktemp("together"), prepared, small())
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *MODULE]
    [launcher] = start(command, workspace.root, processes=1)
    [said] = finish([launcher], timeout=150)
    assert launcher.returncode == 0, said
    assert not list(workspace.state.rglob("*lock")), "locks go with their holders"
    return work, said


def test_the_first_process_writes_the_rows_of_all_hosts(together, finished) -> None:
    work, _ = together
    for kind in (steps_of, updates_of):
        assert [row.iteration for row in kind(work)] == [row.iteration for row in kind(finished)]
    for split, iterations in (("train", [0, 1, 2, 3]), ("validation", [1, 3])):
        assert [iteration for iteration, _ in episodes_of(work, split)] == iterations
        assert all(episode["env_id"].tolist() == [0, 1, 2, 3] for _, episode in episodes_of(work, split))
    # Before the first update nothing but rounding can differ.
    pairs = zip(steps_of(work), steps_of(finished), strict=True)
    for own, theirs in [pair for pair in pairs if pair[0].iteration == 0]:
        assert (own.op, own.slot, own.blueprint) == (theirs.op, theirs.slot, theirs.blueprint)
        assert own.stage == theirs.stage
        assert own.reward == pytest.approx(theirs.reward, abs=1e-3)
        assert own.components.keys() == theirs.components.keys()
    events = [[row for row in events_of(path) if row.iteration == 0] for path in (work, finished)]
    assert events[0] == events[1]


def test_one_update_of_two_processes_is_that_of_one_up_to_rounding(together, finished) -> None:
    work, _ = together
    own, theirs = (updates_of(path)[0] for path in (work, finished))
    assert own.env_steps == theirs.env_steps
    for name in ("policy_loss", "value_loss", "approx_kl", "grad_norm", "return_mean", "explained_variance"):
        assert own.metrics[name] == pytest.approx(theirs.metrics[name], rel=2e-2, abs=1e-4), name


def test_progress_and_mlflow_are_told_once(together) -> None:
    work, said = together
    assert sum("4/4" in line for line in said.splitlines()) == 1
    workspace = Workspace(work.parents[2])
    client, experiment = mlflow_store.connect(workspace)
    [run] = client.search_runs([experiment])
    assert run.data.tags["simic.fingerprint"] == work.name
    steps = [point.step for point in client.get_metric_history(run.info.run_id, mlflow_store.MARKER)]
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


def test_a_signal_to_one_process_stops_all_and_saves(prepared, tmp_path) -> None:
    _, work = project(tmp_path, prepared, small(iterations=1000, validate_every=1000))
    processes = start(MODULE, tmp_path)
    assert processes[0].stdout is not None
    first = next(line for line in processes[0].stdout if "1/1000" in line)
    processes[1].send_signal(signal.SIGTERM)
    said = finish(processes)
    assert [process.returncode for process in processes] == [3, 3], (first, said)
    saved = read(sorted((work / "checkpoints").iterdir())[-1]).manifest.iteration
    assert saved >= 1 and f"stopped with {saved} iterations saved" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_goes_on_from_the_checkpoint_when_a_process_was_killed(rank, together, prepared, tmp_path) -> None:
    unharmed, _ = together
    workspace, work = project(tmp_path, prepared, small())
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    command = [*launcher, "--monitor-interval", "0.1", *MODULE]
    [first] = start(command, workspace.root, processes=1)
    assert first.stdout is not None
    seen = next(line for line in first.stdout if "2/4" in line)
    found = subprocess.run(["pgrep", "-P", str(first.pid), "-f", MODULE[1]], capture_output=True, text=True, check=True)
    os.kill(sorted(map(int, found.stdout.split()))[rank], signal.SIGKILL)
    [said] = finish([first], timeout=400)
    assert first.returncode == 0, (seen, said)
    assert "train: resuming after iteration" in said
    own, theirs = ((path / "checkpoints" / "000004" / "state.safetensors").read_bytes() for path in (work, unharmed))
    assert own == theirs


def test_an_error_of_the_first_process_is_everyones(prepared, tmp_path) -> None:
    _, work = project(tmp_path, prepared, small())
    with durable.locked(work / LOCK_FILE, "trains"):
        processes = start(MODULE, tmp_path)
        said = finish(processes)
    assert [process.returncode for process in processes] == [2, 2], said
    for text in said:
        assert f"process {os.getpid()} on" in text and "in use by" in text


def test_a_finding_of_the_live_audit_stops_all(prepared, tmp_path) -> None:
    reckless = PPOParams(learning_rate=0.5, target_kl=None)
    _, work = project(tmp_path, prepared, small(stop_on="high", ppo=reckless))
    processes = start(MODULE, tmp_path)
    said = finish(processes)
    assert [process.returncode for process in processes] == [2, 2], said
    assert all("simic: stopped by finding R2 in iteration 0" in text for text in said)
    assert [row.check for row in findings_of(work)] == ["R2"]


SICK_SECOND = """
import torch
from simic.pipeline import distributed
from simic.training import trainer
train = trainer.train
def spoiled(session, *rest):
    if not session.ranks.leads:
        with torch.no_grad():
            session.state.ppo.policy.heads[0].out.weight.fill_(torch.nan)
    train(session, *rest)
trainer.train = spoiled
distributed.main()
"""


def test_a_fault_of_the_second_process_is_found_by_all(prepared, tmp_path) -> None:
    _, work = project(tmp_path, prepared, small())
    processes = start(["-c", SICK_SECOND], tmp_path)
    said = finish(processes)
    assert [process.returncode for process in processes] == [2, 2], said
    assert all("stopped by finding decision_fault in iteration 0: head 'op'" in text for text in said)
    assert [row.check for row in findings_of(work)] == ["decision_fault"]


@pytest.mark.parametrize(
    ("argument", "words"), [("--work=x", "--work"), ("-S=rng_seed=2", "-S"), (None, "params.yaml")]
)
def test_what_it_cannot_do_is_refused_without_a_traceback(argument, words, tmp_path, monkeypatch, capsys) -> None:
    """Params are those of params.yaml, and the work directory follows from them: no run ends in another's directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["distributed", *([argument] if argument else [])])
    with pytest.raises(SystemExit) as stopped:
        distributed.main()
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


# --- without other processes ---


def test_environments_are_shared_out_evenly_or_not_at_all() -> None:
    assert [Ranks(rank, 3).env_ids(6).tolist() for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(SimicError, match=r"train.envs = 7: must be a multiple of the 3 processes"):
        Ranks(0, 3).env_ids(7)


def test_alone_nothing_is_exchanged() -> None:
    with joined(Params().runtime, {}) as ranks:
        assert ranks == ALONE
    assert ALONE.reduce is None
    assert ALONE.gather(3) == [3]
    assert ALONE.from_first(lambda: 4) == 4
    assert ALONE.any(True) and not ALONE.any(False)
    x = torch.ones(2)
    assert ALONE.whole(x) is x


def test_columns_are_merged_along_the_axis_of_the_hosts() -> None:
    steps = [{"reward": np.array([[1.0], [2.0]]), "alpha": np.zeros((2, 1, 3))}, {"reward": np.array([[3.0], [4.0]])}]
    steps[1]["alpha"] = np.ones((2, 1, 3))
    found = merged(steps, axis=1)
    assert found["reward"].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert found["alpha"].shape == (2, 2, 3) and found["alpha"][:, 1].all()
    assert merged([{"env_id": np.array([0, 1])}, {"env_id": np.array([2])}], axis=0)["env_id"].tolist() == [0, 1, 2]


def test_a_silent_log_keeps_nothing() -> None:
    with Silent() as log:
        log.find(FindingRow(iteration=0, check="x", severity="low", message="y"))
        log.write(None)
        assert (log.flush(), log.dropped) == (NOTHING, 0)
