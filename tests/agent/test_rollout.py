"""Collecting: what is stored is what was seen, done and got."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from simic import memory
from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.normalization import Normalizers
from simic.agent.rollout import collect
from simic.errors import SimicError

from .worlds import TensorWorld, episodes, learned_scales, make_policy

EARLY = 2
NO_SCALES = Normalizers()


def test_rows_that_are_over_are_not_valid_and_hold_nothing() -> None:
    class Broken(TensorWorld):
        def observation(self, shift: int = 0):
            observation = super().observation(shift)
            if self.time > 4:  # after env EARLY ended at step 4
                observation.features[EARLY] = torch.nan
                observation.masks["op"][EARLY] = False
            return observation

    world = Broken(list(range(4)), episodes(4, 8, EARLY).ends)
    rollout, _ = collect(world, make_policy(), NO_SCALES, 0, rng_seed=1, steps=8)
    assert rollout.valid[:, EARLY].tolist() == [True] * 5 + [False] * 3
    assert rollout.valid[:, [0, 1, 3]].all() and not rollout.features[5:, EARLY].any()
    assert not rollout.rewards[5:, EARLY].any() and not rollout.log_probs[5:, EARLY].any()
    assert rollout.terminated.nonzero().tolist() == [[4, EARLY]]
    assert rollout.truncated.nonzero().tolist() == [[7, 0], [7, 1], [7, 3]]
    assert rollout.starts[0].all() and not rollout.starts[1:].any()


def test_what_is_stored_is_what_the_policy_saw() -> None:
    policy = make_policy()
    scales = learned_scales()
    records = []
    world = TensorWorld([0, 1, 2], {})
    rollout, _ = collect(world, policy, scales, 0, rng_seed=1, steps=4, on_step=records.append)
    assert torch.equal(rollout.features, scales.observation.normalize(rollout.raw_features))
    assert not torch.equal(rollout.features, rollout.raw_features)
    for world.time, step in enumerate(records):
        assert step.step == world.time
        assert torch.equal(step.decision.actions, rollout.actions[step.step])
        assert torch.equal(step.reward, rollout.rewards[step.step])
        observation = world.observation()
        assert torch.equal(observation.features, rollout.raw_features[step.step])
        for name, mask in observation.masks.items():
            assert torch.equal(mask, rollout.masks[name][step.step])


def test_a_truncated_row_is_worth_its_last_observation_under_the_living_memory() -> None:
    policy = make_policy()
    world = episodes(3, 4, None)
    scales = learned_scales()
    rollout, position = collect(world, policy, scales, 0, rng_seed=1, steps=4)
    assert torch.equal(rollout.next_values[:-1], rollout.values[1:])
    expected = policy.value(scales.see(position.observation), position.state)
    assert not torch.allclose(expected, policy.value(position.observation, position.state))
    assert torch.equal(rollout.next_values[-1], expected)
    assert not torch.allclose(
        expected, policy.value(scales.see(position.observation), policy.initial_state(3))
    )


def test_after_an_autoreset_the_memory_is_empty_and_the_old_episode_keeps_its_end() -> None:
    ends = {0: {2: (False, True)}, 1: {2: (True, False), 3: (False, True)}}
    policy = make_policy()
    world = TensorWorld([0, 1, 2], ends, same_step=True)
    scales = learned_scales()
    states = []
    finals = []
    real_step = world.step

    def step(actions: torch.Tensor):
        result = real_step(actions)
        finals.append(result[-1].final)
        return result

    world.step = step
    rollout, position = collect(
        world,
        policy,
        scales,
        0,
        rng_seed=1,
        steps=6,
        on_step=lambda t: states.append(t.decision.state),
    )
    assert rollout.starts.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [3, 0], [3, 1], [4, 1]]
    assert rollout.starts_inside and rollout.valid.all()
    assert torch.equal(rollout.next_values[2, 0], policy.value(scales.see(finals[2]), states[2])[0])
    assert torch.equal(rollout.next_values[3, 1], policy.value(scales.see(finals[3]), states[3])[1])
    assert torch.equal(rollout.next_values[:5, 2], rollout.values[1:, 2])
    assert not torch.equal(rollout.next_values[2, 0], rollout.values[3, 0])
    rescored = policy.rescore(
        rollout.observation(), rollout.actions, rollout.state, rollout.valid, rollout.starts
    )
    assert torch.allclose(rescored.log_probs, rollout.log_probs, atol=1e-5)
    uncut = policy.rescore(
        rollout.observation(), rollout.actions, rollout.state, rollout.valid, None
    )
    assert not torch.allclose(uncut.log_probs[3:], rollout.log_probs[3:], atol=1e-3)
    assert not position.starts.any()


class Noise(gymnasium.Env):
    """Shows a picture of noise, as bytes or as floats; pays for its first pixel. Five steps, then cut off."""

    action_space = Discrete(2)

    def __init__(self, dtype: Any) -> None:
        self.observation_space = Box(0, 255, (8, 8), dtype)

    def _look(self) -> np.ndarray:
        self.picture = self.np_random.integers(256, size=(8, 8)).astype(
            self.observation_space.dtype
        )
        return self.picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        reward = float((self.picture[0, 0] > 99) == action)
        self.time += 1
        return self._look(), reward, False, self.time == 5, {}


def test_a_rollout_of_pictures_that_fits_as_bytes_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 steps of 4 environments: 100 bytes each, and 64 pixels."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 16 * 4 * (100 + 64))
    small = {"envs": 4, "rollout_steps": 16, "policy": sizes(core="none", encoder_units=8)}
    Agent(lambda: Noise(np.uint8), **small)
    with pytest.raises(SimicError, match="a rollout: at least"):
        Agent(lambda: Noise(np.float32), **small)


def test_pixels_of_bytes_are_held_as_bytes_and_learned_from_with_the_same_bits_as_floats() -> None:
    agents = []
    for dtype in (np.uint8, np.float32):
        policy = sizes(core="gru", encoder_units=16, core_units=16)
        learner = Agent(
            lambda dtype=dtype: Noise(dtype),
            envs=4,
            rollout_steps=16,
            policy=policy,
            ppo=settings(),
        )
        rollout, _ = collect(learner.env, learner.policy, learner.normalizers, 0, 1, 16)
        assert rollout.pixels.shape == (16, 4, 64) and rollout.pixels.unique().numel() > 200
        assert rollout.pixels.nbytes == 16 * 4 * 64 * np.dtype(dtype).itemsize
        assert rollout.features.shape[-1] == rollout.raw_features.shape[-1] == 0
        returns = learner.train(256)
        action, _ = learner.predict(np.full((8, 8), 200.0))
        agents.append((learner.tensors(), rollout.pixels.float(), returns, action))
    (tensors, *others), (expected, *expected_others) = agents
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())
    assert torch.equal(others[0], expected_others[0]) and others[1:] == expected_others[1:]
    assert learner.predict(np.full(64, 0.5))  # no bytes
    with pytest.raises(
        SimicError, match=r"observation is 0\.5, which its space's uint8 cannot hold"
    ):
        Agent(lambda: Noise(np.uint8), policy=policy).predict(np.full(64, 0.5))
