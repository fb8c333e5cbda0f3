"""Training on a Gymnasium environment: the same bytes whenever it is stopped, and words where that cannot be."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from simic.agent import Agent
from simic.agent.play import PlayedEpisodes
from simic.envs import gym_env
from simic.errors import SimicError
from simic.params import GymParams, Params, Policy, PPOParams, Prepare, Runtime, Train
from simic.training.gym_task import hashed
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer
from simic.training.session import open_session
from simic.training.trainer import train
from tests.gym_toys import Wandering
from tests.training.small_runs import SIZES, assert_same_run


def small(name: str = "CartPole-v1", core: str = "lstm", **runtime: object) -> Params:
    ppo = PPOParams(minibatches=2, epochs=2, normalize_rewards=True, gamma=0.95)
    settings = {
        "envs": 4,
        "episode_steps": 8,
        "iterations": 3,
        "validate_every": 2,
        "horizon": None,
    }
    return Params(
        prepare=Prepare(task="gym", gym=GymParams(id=name)),
        train=Train(**settings, policy=Policy(**SIZES, core=core, critic="own"), ppo=ppo),
        runtime=Runtime(**{"threads": 1, "cores": 1, **runtime}),
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return described("CartPole-v1", tmp_path_factory.mktemp("cartpole"))


def described(name: str, folder: Path) -> Path:
    gym_env.prepare(GymParams(id=name), 1, folder / "prepared")
    return folder / "prepared"


class StopAt(Observer):
    def __init__(self, iteration: int, step: int) -> None:
        self.moment, self.event = (iteration, step), threading.Event()

    def on_step(self, iteration: int, step: int) -> None:
        if (iteration, step) == self.moment:
            self.event.set()


def run(params: Params, work: Path, prepared: Path, stop: StopAt | None = None) -> list[str]:
    """Train to the end, or to a stop; return the checks of the findings of opening the run."""
    with open_session(params, work, prepared) as session:
        checks = [finding.check for finding in session.findings]
        train(session, [stop] if stop else [], stop.event if stop else None)
    return checks


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("CartPole-v1", "none"),
        ("CartPole-v1", "gru"),
        ("CartPole-v1", "transformer"),
        ("Signs-v0", "gru"),
        ("Throw-v0", "gru"),
        ("Pendulum-v1", "none"),
    ],
)
def test_stopped_anywhere_it_ends_with_the_same_bytes(name: str, core: str, tmp_path: Path) -> None:
    params = small(name, core=core)
    prepared = described(name, tmp_path)
    run(params, tmp_path / "whole", prepared)
    for iteration, step in ((0, 2), (1, 8), (2, 4)):
        with pytest.raises(Interrupted):
            run(params, tmp_path / "stopped", prepared, StopAt(iteration, step))
    assert run(params, tmp_path / "stopped", prepared) == []
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "vector"), [("CartPole-v1", "one"), ("Counting-v0", "tensors"), ("Throw-v0", "one")]
)
def test_the_agent_on_its_own_learns_the_same(name: str, vector: Any, tmp_path: Path) -> None:
    params = small(name)
    task = params.prepare.gym.model_copy(update={"vector": vector})
    prepare = params.prepare.model_copy(update={"gym": task})
    params = params.model_copy(update={"prepare": prepare})
    gym_env.prepare(task, 1, tmp_path / "prepared")
    run(params, tmp_path / "work", tmp_path / "prepared")
    [*_, last] = sorted((tmp_path / "work" / "checkpoints").glob("*/state.safetensors"))
    tensors = load_file(last)
    agent = Agent(
        name,
        rng_seed=params.rng_seed,
        envs=4,
        rollout_steps=8,
        policy=params.train.policy,
        ppo=params.train.ppo,
        vector=vector,
    )
    agent.train(3 * 4 * 8)
    learned = {f"ppo/{name}": tensor for name, tensor in agent.ppo.state_dict().items()}
    assert learned.keys() <= tensors.keys()
    assert [name for name in learned if not torch.equal(learned[name], tensors[name])] == []


def test_an_environment_that_does_not_repeat_itself_begins_anew_and_says_so(tmp_path: Path) -> None:
    params = small("Wandering-v0")
    params = params.model_copy(
        update={"train": params.train.model_copy(update={"validate_every": 100})}
    )
    gym_env.prepare(params.prepare.gym, 1, tmp_path / "prepared")
    monkey = pytest.MonkeyPatch()
    monkey.setattr(
        "simic.training.gym_task.play",
        lambda env, decide, on_step: PlayedEpisodes(
            [0.0] * env.num_envs,
            [1] * env.num_envs,
            [np.zeros((1, 1), dtype=np.int64)] * env.num_envs,
        ),
    )  # fmt: skip - its episodes never end
    with monkey.context(), pytest.raises(Interrupted):
        run(params, tmp_path / "work", tmp_path / "prepared", StopAt(1, 8))
    assert run(params, tmp_path / "work", tmp_path / "prepared") == ["inexact_resume"]
    monkey.undo()
    assert Wandering.episodes > 0


def test_every_byte_of_a_picture_changes_its_hash() -> None:
    pictures = torch.arange(10, dtype=torch.uint8).repeat(11, 1)
    pictures[range(10), range(10)] += 1
    assert len(hashed(pictures).unique()) == 11


def test_what_cannot_train_is_refused_in_a_line(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(SimicError, match="environments are on the CPU"):
        run(small(device="cuda"), tmp_path, prepared)
    limited = GymParams(id="CartPole-v1", options={"sutton_barto_reward": True})
    changed = small().model_copy(update={"prepare": Prepare(task="gym", gym=limited)})
    with pytest.raises(
        SimicError, match="the environment has changed since; run simic prepare again"
    ):
        run(changed, tmp_path, prepared)
    with pytest.raises(ValueError, match="must be one number for task gym"):
        Params(prepare=small().prepare, train=Train(episode_steps=(3, 4), envs=4))
