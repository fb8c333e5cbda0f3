"""What crosses the border between the agent and an environment is checked and copied, in both directions."""

import gymnasium
import numpy as np
import pytest
import torch

from simic.agent import Agent, export
from simic.agent.agent import settings, sizes
from simic.agent.gym_adapter import vectorized
from simic.errors import SimicError

PLAIN = sizes(core="none", encoder_units=16, core_units=16, head_units=16)


class Counter(gymnasium.Env):
    """Counts to 5 in one array that it fills again and again; ``says`` replaces parts of what it answers."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **says: object) -> None:
        self.says, self.state = says, np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.state[:] = 0
        return self.says.get("reset", (self.says.get("seen", self.state), self.info()))

    def step(self, action: int):
        self.state += 1
        ended = bool(self.state[0] >= 5)
        reward = self.says.get("reward", 1.0) if ended else 1.0
        return self.says.get("step", (self.says.get("seen", self.state), reward, False, ended, self.info()))

    def info(self) -> dict:
        number = int(self.np_random.integers(1, 4))
        kinds = {
            "none": None if number == 1 else 3,
            "text": number if number > 1 else "start",
            "shape": np.zeros(number),
        }
        return {name: kinds[name] for name in (self.says.get("info"),) if name}


def agent(make, **given) -> Agent:
    return Agent(make, envs=2, rollout_steps=8, policy=PLAIN, **given)


def test_an_array_that_is_filled_again_is_copied():
    env = vectorized(Counter, 2, 1)
    env.reset()
    for _ in range(5):
        *_, truncated, info = env.step(torch.zeros(2, 1, dtype=torch.int64))
    assert truncated.all() and info.final.features.flatten().tolist() == [5.0, 5.0]


@pytest.mark.parametrize("kind", ["none", "text", "shape"])
def test_infos_may_be_of_any_type(kind):
    agent(lambda: Counter(info=kind)).train(64)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"reward": float("nan")}, "environment 0 pays nan: a reward must be a finite number of float32"),
        ({"reward": None}, "environment 0 pays nan"),
        ({"reward": float("inf")}, "environment 0 pays inf"),
        ({"reward": 1e300}, r"environment 0 pays 1e\+300"),
        ({"reset": np.zeros(1, np.float32)}, r"reset\(\) returns one ndarray: must be \(observation, info\)"),
        ({"step": (np.zeros(1), 0.0, True, {})}, r"step\(\) returns 4 values: must be \(observation, reward, "),
        ({"seen": np.zeros(2, np.float32)}, r"observes float32 of shape \[2\]: its observation space is Box"),
        ({"seen": "five"}, r"observes <U4 of shape \[\]"),
        ({"seen": np.full(1, np.nan)}, "environment 0 observes a number that is not finite"),
    ],
)
def test_answers_that_cannot_be_learned_from_are_refused_by_name(says, words):
    with pytest.raises(SimicError, match=words):
        agent(lambda: Counter(**says)).train(64)


class Old(Counter):
    def reset(self):
        return np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Counter(), "must be a registered id, or a function without arguments that makes an environment"),
        (None, "environment None: must be a registered id"),
        (lambda needed: Counter(), "missing a required argument: 'needed'; must be a registered id"),
        (lambda: "CartPole-v1", "makes a str; must be a registered id"),
        (Old, r"reset\(\) takes no seed and options"),
    ],
)
def test_what_makes_no_environment_is_refused(make, words):
    with pytest.raises(SimicError, match=words):
        agent(make)


class FromOne(Counter):
    """Pays for its second action, which it calls 2."""

    action_space = gymnasium.spaces.Discrete(2, start=1)

    def step(self, action: int):
        observation, _, *rest = super().step(action)
        assert self.action_space.contains(action)
        return observation, float(action == 2), *rest


def test_the_exported_program_speaks_of_actions_as_the_environment_does(tmp_path):
    learner = agent(FromOne, ppo=settings(learning_rate=1e-2))
    learner.train(512)
    seen = learner.normalizers.observation
    description = export.export_policy(learner.policy, seen, tmp_path, learner.env.masked)
    program = torch.export.load(tmp_path / "policy.pt2").module()
    nothing = torch.zeros(1, 0)
    assert int(program(torch.zeros(1, 1), nothing.long(), (), nothing, nothing)[0]) == 2
    assert description["heads"] == [{"name": "action_0", "size": 2, "first": 1}]
    assert learner.evaluate(2) == [5.0, 5.0]


def test_a_saved_agent_goes_on_in_another_number_of_environments(tmp_path):
    learner = agent(Counter)
    learner.train(64)
    learner.save(tmp_path / "saved")
    more = Agent.load(tmp_path / "saved", Counter, envs=6)
    assert more.env.num_envs == 6 and more.env_steps > 0
    more.train(96)


@pytest.mark.parametrize("first", ["22.5", "1"])
def test_a_log_of_another_program_stays(first, tmp_path):
    file = tmp_path / "progress.csv"
    file.write_text(f"time/iterations,rollout/ep_len_mean\n{first},2\n")
    before = file.read_bytes()
    with pytest.raises(SimicError, match="is a file of another program; choose another folder for the log"):
        agent(Counter, log=tmp_path).train(64)
    assert file.read_bytes() == before
