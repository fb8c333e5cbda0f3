"""Behaviour cloning: from recorded episodes to the return of who played them, in any kind of environment."""

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
import torch

from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.errors import SimicError
from tests.agent.test_agent import equal
from tests.gym_toys import Maze, Signs

SMALL = {"encoder_units": 16, "core_units": 16, "head_units": 16}


def make(env: Callable[[], gymnasium.Env] = Maze, core: str = "gru") -> Agent:
    ppo = settings(learning_rate=1e-2, minibatches=2, gamma=0.9)
    return Agent(env, envs=4, rollout_steps=16, policy=sizes(core=core, **SMALL), ppo=ppo)


def through_the_maze(count: int) -> list[tuple]:
    """Remember the sign at the start, and turn as it says."""
    episodes = []
    for seed in range(count):
        env = Maze()
        env.length = 3 + seed % 3
        observation, _ = env.reset(seed=seed)
        sign = observation[0]
        steps = []
        is_over = False
        while not is_over:
            action = (1 + int(sign > 0)) if observation[1] else 0
            steps.append((observation, action, env.action_masks()))
            observation, reward, is_over, *_ = env.step(action)
        assert reward == 1.0
        episodes.append(tuple(zip(*steps, strict=True)))
    return episodes


def test_it_does_what_was_recorded_and_training_goes_on_from_there(tmp_path) -> None:
    """With memory, masks, and episodes of several lengths."""
    agent = make()
    assert np.mean(agent.evaluate(40)) < 0.8  # at random 0.5
    critic = {
        name: tensor
        for name, tensor in agent.tensors().items()
        if name.startswith(("ppo/policy.critic", "ppo/policy.value", "ppo/adam"))
    }
    log_probs = agent.imitate(through_the_maze(16))
    assert len(log_probs) == 50 and log_probs[0] < log_probs[-1] < 0 and log_probs[-1] > -0.01
    assert agent.evaluate(40) == [1.0] * 40
    tensors = agent.tensors()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in critic.items())
    # 16 episodes of 4, 5 and 6 steps.
    assert tensors["normalizers/observation.count"] == sum(4 + seed % 3 for seed in range(16))

    # Equal bits a second time, and after a save.
    again = make()
    again.imitate(iter(through_the_maze(16)))
    again.save(tmp_path / "agent")
    again = Agent.load(tmp_path / "agent", Maze)
    assert equal(again, agent)
    returns = agent.train(640)
    assert again.train(640) == returns
    assert (
        np.mean(returns) > 0.8 and np.mean(agent.evaluate(40)) > 0.9
    )  # from scratch 0.6 in these steps


def test_without_memory_steps_are_learned_one_by_one_from_dictionaries_too() -> None:
    env = Signs()
    episodes = []
    for seed in range(40):
        observations = [env.reset(seed=seed)[0]]
        actions = []
        for _ in range(8):
            actions.append((env.kind + env.lit) % 2)
            observations.append(env.step(actions[-1])[0])
        episodes.append((observations[:-1], actions))
    agent = make(Signs, core="none")
    agent.imitate(episodes, epochs=40)
    assert np.mean(agent.evaluate(24)) > 7.5  # of 8; at random 4


OBSERVATIONS = [[1.0, 0.0, 1.0]] * 2
MASKS = [[True, False, False]] * 2


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        (5, r"^episodes is int: must be a list of \(observations, actions\) or"),
        ([], "there are no episodes: must be at least one"),
        ([5], r"^episode 0 is 5: must be \(observations, actions\) or"),
        ((OBSERVATIONS * 2, [0] * 4), r"^episode 0 is \[\[1.0, .*: must be \(observations, a"),
        ([(OBSERVATIONS, [0, 0], 5)], r"^episode 0 is \(\[.* 5\): must be \(observations, a"),
        ([(OBSERVATIONS, [0, 0], [{}, {}])], "step 0: mask .*: must be of action_0, as training"),
        ([([], [], [])], "episode 0 has 0 observations, 0 actions, 0 masks: must have one of"),
        ([(OBSERVATIONS, [0], MASKS)], "has 2 observations, 1 actions, 2 masks: must have one of"),
        (
            [(OBSERVATIONS, [0, 3], MASKS)],
            r"episode 0, step 1: action is 3: its space is Discrete\(3\)",
        ),
        ([(OBSERVATIONS, [0, 0.5], MASKS)], "episode 0, step 1: action is 0.5: its space is"),
        ([([[1.0]], [0], MASKS[:1])], r"episode 0, step 0: observation \[1.0\]: must be \[3\]"),
        ([(OBSERVATIONS, [0, 0])], r"step 0: mask None: must be action_masks\(\)"),
        ([(OBSERVATIONS, [0, 0], [MASKS[0], [False] * 3])], "episode 0, step 1: the mask of head"),
        (
            [(OBSERVATIONS, [0, 0], MASKS), (OBSERVATIONS, [0, 2], MASKS)],
            "episode 1, step 1: the mask of head 'action_0' forbids what was done; must be legal",
        ),
    ],
)
def test_what_is_not_of_the_environment_is_refused_and_changes_nothing(
    episodes: list, message: str
) -> None:
    agent = make()
    with pytest.raises(SimicError, match=message):
        agent.imitate(episodes)
    assert equal(agent, make())
