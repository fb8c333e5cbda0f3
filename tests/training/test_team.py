"""``runtime.processes``: the processes are real, and so are the signals."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from small_runs import small_params

from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import distributed, stages
from simic.pipeline.paths import Workspace
from simic.telemetry.rows import EpisodeRow, UpdateRow
from simic.training import team
from simic.training.checkpoint import read
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer
from simic.training.ranks import ALONE

ROOT = Path(__file__).parents[2]


def small(processes: int = 2, **changes: object) -> Params:
    return small_params({"progress": "none", "device": "cpu", "processes": processes}, **changes)


def followers_of(process: int) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-P", str(process), "-f", "simic.training.team"], capture_output=True, text=True, check=False
    )
    return [int(line) for line in found.stdout.split()]


class AfterFirst(Observer):
    """Does something when the first iteration is whole."""

    def __init__(self, act) -> None:
        self.act = act

    def on_iteration(self, update: UpdateRow, episode: EpisodeRow) -> None:
        if update.iteration == 0:
            self.act()


@pytest.fixture
def workspace(prepared, tmp_path) -> Workspace:
    found = Workspace(tmp_path)
    shutil.copytree(prepared, found.prepared)
    return found


def test_alone_nobody_is_started(tmp_path) -> None:
    with team.gathered(small(1), tmp_path, tmp_path, tmp_path) as ranks:
        assert ranks == ALONE
        assert followers_of(os.getpid()) == []


def test_the_stage_trains_with_all_processes_and_publishes_once(workspace) -> None:
    threads, seen = torch.get_num_threads(), []
    observer = AfterFirst(lambda: seen.extend(followers_of(os.getpid())))
    stages.train(small(), workspace, (observer,))
    assert len(seen) == 1
    assert followers_of(os.getpid()) == []
    assert read(workspace.checkpoints / "latest").manifest.machine.processes == 2
    episodes = pq.read_table(workspace.telemetry / "episodes.parquet")
    assert set(episodes["env_id"].to_pylist()) == {0, 1, 2, 3}
    assert torch.get_num_threads() == threads
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_what_the_module_trained_is_published_without_training_again(workspace, monkeypatch) -> None:
    tree = small(1)
    (workspace.root / "params.yaml").write_text(yaml.safe_dump(tree.model_dump(mode="json")))
    work = workspace.work(stages.fingerprint(tree, workspace))
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(sys, "argv", ["distributed"])
    distributed.main()
    saved = (work / "checkpoints" / "000004" / "state.safetensors").read_bytes()
    stages.train(tree, workspace, (AfterFirst(lambda: pytest.fail("it trained")),))
    assert (workspace.checkpoints / "latest" / "state.safetensors").read_bytes() == saved
    assert not work.exists()


def test_a_killed_follower_is_named_and_the_run_goes_on_from_its_checkpoint(workspace) -> None:
    def kill() -> None:
        os.kill(followers_of(os.getpid())[-1], signal.SIGKILL)  # the other one will lose its partner

    tree = small(3, envs=12)
    with pytest.raises(SimicError, match=r"training process 2 was ended by signal 9 .*to resume: simic train"):
        stages.train(tree, workspace, (AfterFirst(kill),))
    stages.train(small(1, envs=12), workspace)
    assert read(workspace.checkpoints / "latest").manifest.iteration == 4


def test_what_a_users_file_prints_is_no_answer_to_the_leader(workspace) -> None:
    (workspace.root / "extensions").mkdir()
    (workspace.root / "extensions" / "loud.py").write_text("print('loaded' * 20_000)\n")
    tree = small(iterations=1).model_copy(update={"extensions": ("loud",)})
    stages.train(tree, workspace)
    assert read(workspace.checkpoints / "latest").manifest.machine.processes == 2


def test_a_stop_request_reaches_every_process(workspace) -> None:
    stop = threading.Event()
    with pytest.raises(Interrupted, match="stopped with 1 iterations saved; to resume"):
        stages.train(small(), workspace, (AfterFirst(stop.set),), stop)
    assert followers_of(os.getpid()) == []


def test_a_follower_that_cannot_begin_is_an_error_at_once(workspace, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(SimicError, match=r"training process 1 ended with exit code 1"):
        stages.train(small(), workspace)


def test_an_error_of_the_leader_is_told_as_it_is(workspace) -> None:
    def fail() -> None:
        raise RuntimeError("of the leader's own")

    with pytest.raises(RuntimeError, match="of the leader's own"):
        stages.train(small(), workspace, (AfterFirst(fail),))
    assert followers_of(os.getpid()) == []


def test_followers_do_not_outlive_a_killed_leader(workspace) -> None:
    tree = small(iterations=1000, validate_every=1000)
    (workspace.root / "params.yaml").write_text(yaml.safe_dump(tree.model_dump(mode="json")))
    code = "from pathlib import Path; from simic import params; from simic.pipeline import stages; "
    code += "from simic.pipeline.paths import Workspace; "
    code += "stages.train(params.load(Path('params.yaml')), Workspace(Path.cwd()))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    leader = subprocess.Popen([sys.executable, "-c", code], cwd=workspace.root, env=environment)
    try:
        give_up = time.monotonic() + 60
        while not list(workspace.root.glob(".simic/work/*/checkpoints/*")) and time.monotonic() < give_up:
            time.sleep(0.1)
        (follower,) = followers_of(leader.pid)
    finally:
        leader.kill()
        leader.wait()
    while Path(f"/proc/{follower}").exists() and time.monotonic() < give_up + 60:
        time.sleep(0.1)
    assert not Path(f"/proc/{follower}").exists()
