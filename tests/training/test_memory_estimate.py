"""Sizes are held against the memory there is before any of it is allocated; what is counted is what a run takes."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simic import memory
from simic.errors import SimicError
from simic.memory import GIB
from simic.params import Governor
from simic.training import memory_estimate
from simic.training.session import open_session
from tests.standard import Host, Params, Policy
from tests.training.small_runs import small_params

CPU = torch.device("cpu")
TOO_LARGE = [
    (small_params(envs=1_000_000), "train.envs"),
    (small_params(envs=120, episode_steps=1_000_000), "train.episode_steps"),
    (small_params(envs=120, host=Host(widths=(4096, 4096, 4096))), "train.host"),
    (small_params(policy=Policy(encoder_units=8192, core_units=8192, critic="own")), "train.policy"),
    (small_params(envs=100_000, governor=Governor(window=1_000_000)), "train.governor.window"),
]


@pytest.fixture(autouse=True)
def machine_of_16_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "machine_bytes", lambda: 16 * GIB)


@pytest.mark.parametrize(("params", "key"), TOO_LARGE)
def test_a_run_that_does_not_fit_is_refused_before_anything_is_allocated(params, key, prepared, tmp_path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SimicError) as caught, open_session(params, tmp_path / "work", prepared):
        pass
    assert key in str(caught.value) and "and there are 16.0 GiB of memory" in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert not (tmp_path / "work").exists()


def test_processes_are_counted_with_the_hosts(prepared: Path) -> None:
    with pytest.raises(SimicError, match=r"256 processes: at least .* lower runtime\.processes"):
        memory_estimate.refuse_training(small_params(), prepared, 4, 256, CPU)
    memory_estimate.refuse_training(small_params(), prepared, 4, 2, CPU)


def test_an_evaluation_that_does_not_fit_is_refused(prepared: Path) -> None:
    memory_estimate.refuse_playing(small_params(), prepared, 120, CPU)
    with pytest.raises(SimicError, match=r"and there are 16\.0 GiB of memory"):
        memory_estimate.refuse_playing(small_params(), prepared, 2_000_000, CPU)


def test_the_least_of_machine_container_and_limit_is_what_there_is() -> None:
    program = "from simic.memory import machine_bytes; print(machine_bytes())"
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({3 * GIB}, {3 * GIB})); " + program
    found = subprocess.run([sys.executable, "-c", limit], capture_output=True, text=True, check=True).stdout
    assert int(found) <= 3 * GIB
    assert int(found) <= memory.machine_bytes()


def test_the_shipped_run_fits_a_machine_of_two_gib(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "machine_bytes", lambda: 2 * GIB)
    tree = Params()
    memory_estimate.refuse_training(tree, prepared, tree.train.envs, 2, CPU)
