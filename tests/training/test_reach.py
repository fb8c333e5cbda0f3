"""How many files a reader has to open: those in which a function runs, for one update and for one decision."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_runs import small_params

import simic
from simic.training.assemble import assemble
from simic.training.iteration import play, scale_and_estimate

PACKAGE = Path(simic.__file__).parent


def files_of(work: Callable[[], object]) -> set[str]:
    """Run the work; list the files of simic in which a function ran."""
    files: set[str] = set()

    def note(frame, event, argument):
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {str(Path(file).relative_to(PACKAGE)) for file in files if file.startswith(str(PACKAGE))}


@pytest.fixture(scope="module")
def state(prepared):
    return assemble(small_params(), prepared, torch.device("cpu"))


def test_one_update_runs_in_ten_files(state):
    rollout = scale_and_estimate(state, play(state, 0, 1))
    files = files_of(lambda: state.ppo.update(rollout, 0))
    assert len(files) <= 10, " ".join(sorted(files))


def test_one_decision_runs_in_twelve_files(state):
    """From an observation to an action; what the environment does with it is the hosts' own training."""
    observation, _ = state.task.env.reset(options={"iteration": 0})
    memory = state.ppo.policy.initial_state(state.task.env.num_envs)
    noise = torch.rand(state.task.env.num_envs, len(state.ppo.policy.heads))
    files = files_of(
        lambda: state.ppo.policy.act(state.normalizers.see(observation), memory, noise)
    )
    assert len(files) <= 12, sorted(files)
