"""How hosts are shared out to cores, and that a training run does not depend on it; processes and signals are real."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_runs import findings_of, small_params

from simic import threads
from simic.errors import SimicError
from simic.params import GymParams, Params, Prepare, Runtime, Train
from simic.training import worker_layout
from simic.training.assemble import hosts_together
from simic.training.checkpoint import read
from simic.training.machine import configure
from simic.training.session import open_session
from simic.training.trainer import train
from tests.helpers import ROOT

CPU = torch.device("cpu")
HOSTS = 8  # two groups of four


def shared(cores: int) -> Params:
    return small_params({"cores": cores}, envs=HOSTS, iterations=2)


@pytest.mark.parametrize(
    ("settings", "hosts", "group", "expected"),
    [
        ({"cores": 2}, 64, None, 32),
        ({"cores": 32}, 64, None, 4),  # no groups of fewer than four
        ({"cores": 8}, 64, 16, 16),  # the groups of a checkpoint stay
        ({}, 64, None, 16),  # of all cores
        ({"threads": 3}, 64, None, 16),
    ],
)
def test_a_group_for_each_core_and_operations_of_one_thread_unless_they_are_given(
    settings, hosts, group, expected, monkeypatch
) -> None:
    threads_set: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads_set.append)
    monkeypatch.setattr(worker_layout, "cores", lambda: 4)
    assert worker_layout.hosts_together(Runtime(**settings), hosts, CPU, group) == expected
    assert threads_set == ([] if "threads" in settings else [1])
    assert threads.count() == settings.get("cores", 4)


def test_with_cuda_all_hosts_are_together() -> None:
    cuda = torch.device("cuda")
    assert worker_layout.hosts_together(Runtime(), 64, cuda) == 64
    with pytest.raises(
        SimicError, match=r"runtime.cores = 2: must be auto or 1 with CUDA; torchrun"
    ):
        worker_layout.hosts_together(Runtime(cores=2), 64, cuda)


def test_environments_of_gymnasium_are_on_one_core() -> None:
    """And what is recorded says so, whatever ran in this process before."""
    threads.set_count(3)
    gym = Params(
        prepare=Prepare(task="gym", gym=GymParams(id="CartPole-v1")),
        train=Train(envs=4, episode_steps=8),
    )
    assert hosts_together(gym, CPU) == 4
    assert threads.count() == 1


def test_any_number_of_cores_goes_on_bit_for_bit(prepared, tmp_path) -> None:
    """The groups are those of the checkpoint, so a run may move to a machine with other cores."""
    with open_session(shared(2), tmp_path, prepared) as session:
        train(session)
    last = tmp_path / "checkpoints" / "000002"
    machine, content = read(last).manifest.machine, (last / "state.safetensors").read_bytes()
    assert (machine.group, machine.cores, machine.ranks) == (4, 2, 1)
    shutil.rmtree(last)
    with open_session(shared(1), tmp_path, prepared) as session:
        assert (session.identity.machine.group, session.identity.machine.cores) == (4, 1)
        assert session.state.counters.iteration == 1
        train(session)
    assert (last / "state.safetensors").read_bytes() == content
    assert findings_of(tmp_path) == []


INTERRUPTED = """
import signal, sys, time
from functools import partial
from pathlib import Path
import torch
from simic.params import Runtime
from simic.training.worker_layout import pool

def slow_work(folder, number):
    (folder / f"begun-{number}").touch()
    time.sleep(60)
    (folder / f"ended-{number}").touch()

if __name__ == "__main__":
    # Whoever starts the tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pool(2, Runtime(threads=1)) as workers:
        list(workers.map(partial(slow_work, Path(sys.argv[1])), range(2)))
"""


def test_an_interrupt_ends_the_processes_in_the_midst_of_their_work(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while len(list(tmp_path.glob("begun-*"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=50)
    assert process.returncode != 0 and "KeyboardInterrupt" in errors
    assert not list(tmp_path.glob("ended-*"))


# --- what is set for the whole process ---


def test_an_operation_with_other_results_each_time_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    configure(Runtime(device="cpu", threads=1))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("", 8)]
)
def test_a_container_has_the_cores_of_its_quota(quota, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    (tmp_path / "cpu.max").write_text(quota)
    assert worker_layout.cores(tmp_path / "cpu.max") == cores
