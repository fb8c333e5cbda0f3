"""Environments whose episodes can be repeated.

An episode is named by its number and its environment. Its seed is a hash of both, so seed and actions repeat it: that
is how training goes on in the middle of an episode without a copy of the environment, and how the audit plays it again.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from simic import rng
from simic.agent.checked_env import CheckedEnv
from simic.agent.gym_adapter import AdapterInfo, GymAdapter, Make, Vector, vectorized
from simic.agent.spec import Observation
from simic.errors import SimicError

TRAINING = 0  # the namespace of episodes that are learned from
SEEDS_AT_ONCE = 64  # a tensor of hashes costs hardly more than one
_SEED_BITS = 0x7FFFFFFF


@lru_cache(maxsize=1024)
def _seeds(rng_seed: int, namespace: int, env_id: int, block: int) -> list[int]:
    episodes = torch.arange(SEEDS_AT_ONCE) + block * SEEDS_AT_ONCE
    stream = rng.key(rng_seed, rng.Purpose.ENV_SEED, namespace, env_id, episodes)
    return (rng.bits(stream) & _SEED_BITS).tolist()


def episode_seed(rng_seed: int, namespace: int, env_id: int, episode: int) -> int:
    """Hash the name of an episode to the seed of its reset.

    Args:
        rng_seed: Of the run.
        namespace: ``TRAINING``, ``EVALUATION`` or ``VALIDATION``: none plays an episode of another.
        env_id: Number of the environment.
        episode: Number of the episode in it, from 0.
    """
    block, place = divmod(episode, SEEDS_AT_ONCE)
    return _seeds(rng_seed, namespace, env_id, block)[place]


class RepeatableEnv(CheckedEnv):
    """One environment that seeds every episode by its number; ``reset(seed=n)`` starts episode n."""

    def __init__(
        self, env: gymnasium.Env, rng_seed: int, namespace: int, env_id: int, place: int
    ) -> None:
        super().__init__(env)
        # The seed of an episode is a hash of these and its number: neither the order of episodes nor their length
        # enters.
        self._name = (rng_seed, namespace, env_id)
        self._place = place
        self._episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start the episode of that number, by default the next one."""
        self._episode = self._episode + 1 if seed is None else seed
        return super().reset(seed=episode_seed(*self._name, self._episode), options=options)

    def again(
        self, episodes: Sequence[int], actions: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, float]:
        """Play this environment's part of running episodes again; return its observation and its return."""
        # Rewards as float32, as they were added up the first time.
        observation, _ = self.reset(seed=episodes[self._place])
        total = 0.0
        for action in actions[self._place]:
            observation, reward, *_ = self.step(action)
            total += float(np.float32(reward))
        return observation, total


class RepeatableAdapter(GymAdapter):
    """E environments side by side, all ``RepeatableEnv``; running episodes are saved as numbers and actions."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Any]:
        """Start episode 0 everywhere."""
        # The adapter would seed by iteration. Here the number of the episode is passed, and the environment hashes it.
        first: list[int | None] = [0] * self.num_envs
        values, info = self.env.reset(seed=first)
        self.episodes, self.returns = torch.zeros(2, self.num_envs, dtype=torch.float64)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64)
        self._actions: list[Tensor] = []  # since the oldest running episode began
        self.seen = self._observation(values)
        return self.seen, info

    def step(self, actions: Tensor, /) -> tuple[Observation, Tensor, Tensor, Tensor, AdapterInfo]:
        """Take a step; keep what repeats it."""
        self.seen, rewards, terminated, truncated, info = super().step(actions)
        # A copy: these numbers are the only record of the episode.
        self._actions.append(actions.clone())
        # In place, since most steps end nothing and are short: new tensors would take longer than a small
        # environment.
        self.returns += rewards
        self._lengths += 1
        ended = terminated | truncated
        if bool(ended.any()):
            info = AdapterInfo(info.final, tuple(self.returns[ended].tolist()))
            self.returns.masked_fill_(ended, 0.0)
            self._lengths.masked_fill_(ended, 0)
            self.episodes += ended
            # Actions before the oldest running episode repeat nothing any more.
            longest = int(self._lengths.max())
            self._actions = self._actions[len(self._actions) - longest :]
        return self.seen, rewards, terminated, truncated, info

    def state_dict(self) -> dict[str, Tensor]:
        """Copy what repeats the running episodes: their numbers, lengths, actions (the newest last), and what must come
        out again: returns and observations.
        """
        spec = self.action_spec
        none = torch.zeros(0, self.num_envs, spec.width, dtype=spec.dtype)
        return {
            "episodes": self.episodes.long(),
            "running_steps": self._lengths.clone(),
            "actions": torch.stack(self._actions) if self._actions else none,
            "returns": self.returns.clone(),
            "features": self.seen.numbers.clone(),
            "categories": self.seen.categories.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Observation:
        """Play the running episodes again; SimicError where an environment does not repeat what it did."""
        # From a reset, so that buffers have their shapes and every environment is at an episode's start.
        self.reset()
        self.episodes = state["episodes"].double()
        self._lengths = state["running_steps"].clone()
        self._actions = list(state["actions"])
        self.returns = state["returns"].clone()

        # Each environment takes its own part of the actions again.
        steps = self.action_spec.to_env(state["actions"]).numpy()
        actions = [
            steps[len(steps) - length :, row] for row, length in enumerate(self._lengths.tolist())
        ]
        answers = self.env.call("again", state["episodes"].tolist(), actions)

        # What they observe and have earned must be what was saved.
        self.seen = self._observation(np.stack([observation for observation, _ in answers]))
        returns = torch.tensor([total for _, total in answers], dtype=torch.float64)
        strayed = (
            (self.seen.numbers != state["features"]).any(dim=1)
            | (self.seen.categories != state["categories"]).any(dim=1)
            | (returns != self.returns)
        )
        if bool(strayed.any()):
            rows = strayed.nonzero().flatten().tolist()
            raise SimicError(
                f"environments {rows} do not repeat their episode from its seed and actions"
            )
        return self.seen


def repeatable(make: Make, envs: int, rng_seed: int, vector: Vector) -> RepeatableAdapter:
    """Make copies of an environment side by side, to learn from; as ``vectorized``."""

    def wrapped(env: gymnasium.Env, row: int) -> CheckedEnv:
        return RepeatableEnv(env, rng_seed, TRAINING, row, row)

    return vectorized(
        make,
        envs,
        rng_seed,
        vector,
        wrapped,
        RepeatableAdapter,
    )
