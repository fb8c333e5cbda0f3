"""Vector environments on tensors, which the agent takes as they are."""

import runpy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.rollout import collect
from simic.errors import SimicError
from tests.gym_toys import Counting
from tests.helpers import ROOT

from .test_agent import equal

Boards = runpy.run_path(str(ROOT / "examples" / "tensors.py"))["Boards"]


def make(env: Any = Boards, core: str = "gru", **changes: Any) -> Agent:
    policy = sizes(core=core, encoder_units=16, core_units=16, head_units=16)
    agreed = {"envs": 4, "rollout_steps": 16, "policy": policy, "vector": "tensors"}
    return Agent(env, **{**agreed, "ppo": settings(), **changes})


def test_a_loaded_agent_goes_on_in_mid_episode_as_if_it_had_never_been_saved(
    tmp_path: Path,
) -> None:
    straight = make()
    before = straight.train(320)
    straight.save(tmp_path / "agent")
    assert straight.evaluate(8) == straight.evaluate(8)  # changes nothing
    again = Agent.load(tmp_path / "agent", Boards, vector="tensors")
    expected = straight.train(320)
    assert again.train(320) == expected and equal(again, straight)
    assert again.evaluate(8) == straight.evaluate(8)
    # Boards pay at the end, and nothing where time runs out.
    assert len(before) > 4 and min(before) == 0.0 and max(before + expected) > 0.5


def test_a_registered_id_learns_and_one_that_saves_nothing_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counting pays for the second choice, five steps long."""
    agent = make("Counting-v0", core="none")
    returns = agent.train(1280)
    assert len(returns) == 256 and np.mean(returns[:20]) < 3.5 < 4.5 < np.mean(returns[-20:])
    assert agent.evaluate(4) == [5.0] * 4
    assert agent.predict(np.zeros(1))[0] == 1
    actions, _ = agent.predict_batch(torch.zeros(2, 1))
    assert actions == [1, 1] and isinstance(actions[0], np.int64)

    class Forgetful(Counting):
        def __getattribute__(self, name):
            if name == "state_dict":
                raise AttributeError(name)
            return super().__getattribute__(name)

    agent = make(Forgetful)
    agent.train(64)
    agent.save(tmp_path / "agent")
    Agent.load(tmp_path / "agent", Forgetful, vector="tensors").train(64)
    [said] = [record.message for record in caplog.records]
    assert said.startswith("not continued bit for bit: the vector environment has no state_dict")


class Camera(Counting):
    """Shows a picture of bytes, and takes two numbers within bounds; pays the second."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_observation_space = Box(0, 255, (8, 8), np.uint8)
        self.single_action_space = Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))

    def _shown(self) -> torch.Tensor:
        return self.count.to(torch.uint8)[:, None, None].expand(-1, 8, 8)

    def reset(self, *, seed=None, options=None):
        super().reset()
        return self._shown(), {}

    def step(self, actions):
        assert actions.dtype == torch.float32 and actions.shape == (self.num_envs, 2)
        assert (actions.abs() <= torch.tensor([1.0, 4.0])).all() and (actions[:, 1] >= 0).all()
        before = self._shown()
        _, _, terminated, truncated, info = super().step(torch.zeros(self.num_envs))
        final = {"final_obs": before + 1} if info else {}
        return self._shown(), actions[:, 1], terminated, truncated, final


def test_pictures_and_numbers_go_over_as_they_are() -> None:
    agent = make(Camera, core="none")
    rollout, _ = collect(agent.env, agent.policy, agent.normalizers, 0, 1, 6)
    assert rollout.pixels.dtype == torch.uint8 and rollout.pixels.shape == (6, 4, 64)
    assert rollout.pixels[:, 0, 9].tolist() == [0, 1, 2, 3, 4, 0]
    # The second row is cut off in the fifth step, after which its picture would have shown a 5.
    last = agent.policy.value(
        agent.env.rows([np.full((8, 8), 5)] * 4, None), agent.policy.initial_state(4)
    )
    torch.testing.assert_close(rollout.next_values[4, 1], last[1])
    assert rollout.terminated[4].tolist() == [True, False, True, True]
    assert np.mean(agent.train(1280)[-10:]) > 5 * 2.5  # of 4 each; at random 2


class Numpy(Counting):
    def reset(self, *, seed=None, options=None):
        return super().reset()[0].numpy(), {}


class Nested(Counting):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_observation_space = Dict(count=Box(0, 9, (1,)))


class NestedActions(Counting):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = Dict(a=Discrete(2), b=Discrete(2))


class Spaceless(VectorEnv):
    num_envs = 4


class Late(Counting):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - gymnasium's own form


def same_again() -> Any:
    env = Counting(4)
    return lambda num_envs: env


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Nowhere-v0", r"environment 'Nowhere-v0': .*; must be a registered id with a vector_entry_point, or"),
        ("Maze-v0", r"environment 'Maze-v0': .*; must be a registered id with a vector_entry_point, or"),
        (lambda: Counting(4), r"too many positional arguments; must be a registered id .*, or a function of the num"),
        (Counting(4), r"Counting.* is not a callable object; must be a registered id"),
        (lambda n: gymnasium.make("CartPole-v1"), r"makes a TimeLimit of no environments, not 4; must be"),
        (lambda n: Counting(2), r"makes a Counting of 2 environments, not 4; must be"),
        (Numpy, r"reset\(\) observes a ndarray: must be a torch\.Tensor"),
        (Nested, r"observation space Dict.*: of a vector environment on tensors it must be a Box"),
        (NestedActions, r"action space Dict.*: of a vector environment on tensors it must not be nested"),
        (lambda n: Spaceless(), r"single_observation_space is NoneType, must be a gymnasium\.Space"),
        (lambda n: VectorEnv(), r"makes a VectorEnv of no environments, not 4"),
        (Late, r"autoreset_mode is AutoresetMode.NEXT_STEP; only SAME_STEP can be learned from"),
    ],
)  # fmt: skip
def test_what_is_no_environment_on_tensors_is_refused_in_a_line(env: Any, words: str) -> None:
    with pytest.raises(SimicError, match=words) as refused:
        make(env)
    assert "\n" not in str(refused.value)


def test_an_evaluation_in_the_environment_of_training_is_refused() -> None:
    with pytest.raises(SimicError, match="gives out the same one again: must make a new one"):
        make(same_again()).evaluate(4)
