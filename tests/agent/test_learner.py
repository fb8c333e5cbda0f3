"""The agent on Gymnasium's environments by the trainer's own functions."""

import json
import sys
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from simic import params
from simic.agent import learner as learner_module
from simic.agent.gym_training import GymRun, train_gym
from simic.agent.learner import Learner, Returns, vectorized
from simic.errors import SimicError
from simic.params import Params, Policy, Runtime, Train

SIZES = Policy(encoder_units=16, core="gru", core_units=16, head_units=16)
SETTINGS = params.PPOParams(learning_rate=1e-2, minibatches=2, epochs=4, target_kl=None, gamma=0.9)


class Sign(gymnasium.Env):
    """Pays 1 for the sign of what is seen; ``length`` steps, then cut off. The observation is never normalised away."""

    observation_space, action_space = Box(-1.0, 1.0, (1,)), Discrete(2)

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def _look(self) -> np.ndarray:
        self.seen = self.np_random.choice([-1.0, 1.0])
        return np.array([self.seen], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        reward = float((self.seen > 0) == (action == 1))
        self.time += 1
        return self._look(), reward, False, self.time == self.length, {}


MASKED = """
import gymnasium, numpy as np
from gymnasium.spaces import Box, MultiDiscrete
class Masked(gymnasium.Env):
    observation_space, action_space = Box(-1.0, 1.0, (1,)), MultiDiscrete([2, 3])
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}
    def step(self, action):
        assert tuple(action) == (1, 2)
        return np.zeros(1, dtype=np.float32), 1.0, True, False, {}
    def action_masks(self):
        return np.array([0, 1, 0, 0, 1])
gymnasium.register("Masked-v0", Masked)
"""


def learner(iterations: int = 15, make: Callable = Sign) -> Learner:
    return Learner(vectorized(make, 4, 1), SIZES, SETTINGS, 1, iterations, 16)


def test_it_learns_and_its_episodes_are_counted() -> None:
    agent = learner()
    seen = [agent.iterate() for _ in range(15)]
    assert [progress.env_steps for progress in seen] == [64 * n for n in range(1, 16)]
    assert all(len(progress.returns) == 16 for progress in seen)  # 64 steps of episodes of 4
    assert np.mean(seen[-1].returns) > 3.5 > np.mean(seen[0].returns)
    for greedy in (True, False):
        returns = agent.evaluate(vectorized(Sign, 4, 1), 8, greedy)
        assert len(returns) == 8
        assert np.mean(returns) > 3.5


def test_returns_go_on_from_rollout_to_rollout() -> None:
    tally = Returns.none(2)
    assert tally.add(torch.tensor([1.0, 5.0]), torch.tensor([False, True])) == [5.0]
    assert tally.add(torch.tensor([2.0, 1.0]), torch.tensor([True, False])) == [3.0]
    assert tally.finished == [5.0, 3.0]
    assert tally.running.tolist() == [0.0, 1.0]


def test_every_environment_plays_equally_many_episodes() -> None:
    lengths = iter([1, 2, 4, 8])
    agent = learner(1, lambda: Sign(next(lengths, 3)))
    lengths = iter([1, 2, 4, 8])
    returns = agent.evaluate(vectorized(lambda: Sign(next(lengths)), 4, 1), 8)
    assert len(returns) == 8
    assert all(value <= length for value, length in zip(returns, [1, 1, 2, 2, 4, 4, 8, 8], strict=True))
    with pytest.raises(SimicError, match="episodes = 6: must be a multiple of the 4 environments"):
        agent.evaluate(vectorized(Sign, 4, 1), 6)


def test_training_goes_on_afresh_after_an_evaluation_in_its_own_environments() -> None:
    agent = learner()
    agent.iterate()
    agent.evaluate(agent.env, 4)
    assert agent.position is None
    assert agent.returns.running.tolist() == [0.0] * 4
    assert len(agent.iterate().returns) == 16


def test_an_episode_without_end_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(learner_module, "LONGEST_EPISODE", 20)
    agent = learner(1, lambda: Sign(10**9))
    agent.iterate()
    with pytest.raises(SimicError, match="an episode goes on for 20 steps: wrap the environment in a TimeLimit"):
        agent.evaluate(agent.env, 4)


def test_an_exported_policy_takes_every_mask_of_the_environment(tmp_path, monkeypatch) -> None:
    (tmp_path / "masked_here.py").write_text(MASKED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    asked = GymRun("masked_here:Masked-v0", steps=64, envs=2, rollout=16, episodes=2, out=tmp_path / "policy")
    train_gym(small(), asked, lambda line: None)
    inputs = json.loads((tmp_path / "policy" / "policy.json").read_text())["inputs"]
    assert [name for name in inputs if name.startswith("mask")] == ["mask_action_0", "mask_action_1"]
    with pytest.raises(SimicError, match="environment 'nowhere:X-v0': No module named 'nowhere'"):
        vectorized("nowhere:X-v0", 2, 1)


def test_the_same_run_twice_is_the_same() -> None:
    one, other = learner(3), learner(3)
    for _ in range(3):
        assert one.iterate() == other.iterate()


def test_a_name_that_is_not_registered_is_refused() -> None:
    with pytest.raises(SimicError, match=r"environment 'Nothing-v0': Environment `Nothing` doesn't exist"):
        vectorized("Nothing-v0", 2, 1)


def test_spaces_that_cannot_be_learned_are_refused_by_the_environments_name() -> None:
    with pytest.raises(SimicError, match=r"environment Pendulum-v1: action space .* must be Discrete"):
        vectorized("Pendulum-v1", 2, 1)


def small(**changes) -> Params:
    train = Train(policy=SIZES, ppo=params.PPOParams(minibatches=2))
    return Params(train=train, runtime=Runtime(threads=1, **changes))


def test_a_run_reports_evaluates_and_leaves_its_policy(tmp_path) -> None:
    said: list[str] = []
    asked = GymRun("CartPole-v1", steps=64, envs=2, rollout=16, episodes=3, out=tmp_path / "policy")
    returns = train_gym(small(), asked, said.append)
    assert len(returns) == 4  # three, rounded up to whole environments
    assert said[-1] == f"greedy return {sum(returns) / 4:.1f} (mean of 4 episodes)"
    assert said[0] == "4 observed numbers; action heads action_0 2; nothing masked"
    assert [line.split()[0] for line in said[1:3]] == ["32", "64"]
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["policy.json", "policy.pt2"]


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(SimicError, match=r"envs = 1: must be at least ppo.minibatches \(2\)"):
        train_gym(small(), GymRun("CartPole-v1", envs=1))
    with pytest.raises(SimicError, match=r"runtime.device = 'cuda': Gymnasium's environments are on the CPU"):
        train_gym(small(device="cuda"), GymRun("CartPole-v1"))
