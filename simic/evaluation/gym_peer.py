"""Let a peer learn and play in the pipeline's environments: PPO of Stable-Baselines3 or sb3-contrib."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from simic.agent.play import Decide
from simic.agent.spec import ActionSpec, Observation
from simic.envs.gym_env import AnyGym, open_gym
from simic.errors import SimicError
from simic.params import Params

# Environments side by side.
ENVS = 8
# Rows of a rollout, as by the library's default.
ROWS = 2048


class PeerEnv(VecEnv):
    """Show environments to Stable-Baselines3: flat observations, choices counted from 0 or bounded numbers between ±1,
    masks of all heads.
    """

    # Stable-Baselines3 warns without it.
    render_mode = None

    def __init__(self, env: AnyGym) -> None:
        self.env = env
        actions = peer_space(env.action_spec)
        spec = env.observation_spec
        width = spec.pixels + spec.features + spec.cardinality
        super().__init__(env.num_envs, Box(-np.inf, np.inf, (width,)), actions)

    def reset(self) -> np.ndarray:
        self.observation, _ = self.env.reset()
        return flat(self.observation, self.env)

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = as_columns(actions, self.observation)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        self.observation, rewards, terminated, truncated, info = self.env.step(self.actions)
        # The value of a state behind a time limit is bootstrapped (Pardo et al. 2018, arXiv 1712.00378).
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if info.final is not None:
            for row in (truncated & ~terminated).nonzero().flatten().tolist():
                last = flat(info.final, self.env)[row]
                infos[row] = {"TimeLimit.truncated": True, "terminal_observation": last}
        ended = (terminated | truncated).cpu().numpy()
        return flat(self.observation, self.env), rewards.cpu().numpy(), ended, infos

    def action_masks(self) -> list[np.ndarray]:
        return [*legal(self.env, self.observation)]

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        return getattr(self, method_name)(*args, **kwargs)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def close(self) -> None:
        self.env.close()


def flat(observation: Observation, env: AnyGym) -> np.ndarray:
    """Put features and categories side by side, a category as a column for each of its values."""
    flags = torch.zeros(len(observation.categories), env.observation_spec.cardinality)
    flags.scatter_(1, observation.categories.cpu(), 1.0)
    return torch.cat((observation.numbers.cpu(), flags), dim=1).numpy()


def peer_space(spec: ActionSpec) -> Space:
    """Describe actions as Stable-Baselines3 knows them; SimicError where it does not."""
    sizes = [head.size for head in spec.discrete_heads]
    if not sizes:
        # Its own clipping is at the bounds of the space; here that is at ±1.
        is_free = [None in ends for head in spec.heads for ends in head.bounds]
        limit = np.where(is_free, np.inf, 1.0).astype(np.float32)
        return Box(-limit, limit)
    if len(sizes) < len(spec.heads):
        raise SimicError(
            "headroom.gym.peer_steps: must be 0, as choices and numbers in one action are unknown to sb3"
        )
    return Discrete(sizes[0]) if len(sizes) == 1 else MultiDiscrete(sizes)


def as_columns(actions: np.ndarray, observation: Observation) -> Tensor:
    """Convert actions of Stable-Baselines3 to ``[E, width]``, on the device of the environments."""
    features = observation.features
    return torch.from_numpy(actions).reshape(len(features), -1).to(features.device)


def legal(env: AnyGym, observation: Observation) -> np.ndarray:
    """Join the masks, ``[E, choices of all heads]``; SimicError where one depends on another head."""
    rows = len(observation.features)
    masks = [
        observation.masks.get(head.name, torch.ones(rows, head.size, dtype=torch.bool)).cpu()
        for head in env.action_spec.discrete_heads
    ]
    if any(mask.dim() > 2 for mask in masks):
        raise SimicError(
            "headroom.gym.peer_steps: must be 0, as masks that depend on another head are unknown to sb3"
        )
    return torch.cat(masks, dim=1).numpy()


def learned(params: Params, settings: Mapping[str, Any]) -> tuple[str, Callable[[AnyGym], Decide]]:
    """Let the peer learn for ``headroom.gym.peer_steps``.

    With masks it is MaskablePPO, else with ``peer_memory`` RecurrentPPO, else PPO.

    Args:
        params: those of the run.
        settings: keyword arguments of the peer, in place of the usual ones.

    Returns:
        Its name, and a function that makes a greedy player for an environment.

    Raises:
        SimicError: the peer does not know such settings.
    """
    # A rollout of as many rows as the library's, however many environments there are.
    task = params.prepare.gym
    envs = params.train.envs if task.vector == "tensors" else ENVS
    defaults = {
        "n_steps": max(1, ROWS // envs),
        "seed": params.rng_seed,
        "device": "cpu",
        "verbose": 0,
    }
    with closing(PeerEnv(open_gym(task, params.rng_seed, torch.arange(envs)))) as env:
        # Which algorithm: only MaskablePPO knows masks, only RecurrentPPO remembers.
        env.reset()
        policy = "MlpPolicy"
        if env.observation.masks:
            kind = MaskablePPO
        elif params.headroom.gym.peer_memory:
            kind = RecurrentPPO
            policy = "MlpLstmPolicy"
        else:
            kind = PPO
        # Settings are the user's: what the library refuses is a message.
        try:
            model: Any = kind(policy, env, **{**defaults, **settings})
        except (TypeError, ValueError) as error:
            raise SimicError(
                f"headroom.gym.peer_settings: {settings}: {' '.join(str(error).split())}"
            ) from None
        # Its own logger leaves a folder in the system's temporary one.
        model.set_logger(Logger(None, []))
        model.learn(params.headroom.gym.peer_steps)

    # The player keeps the peer's memory; the library clears it where an episode starts.
    def player(env: AnyGym) -> Decide:
        state = None

        def decide(observation: Observation, starts: Tensor, step: int) -> Tensor:
            nonlocal state
            masks = {"action_masks": legal(env, observation)} if kind is MaskablePPO else {}
            features = flat(observation, env)
            actions, state = model.predict(
                features, state, starts.cpu().numpy(), deterministic=True, **masks
            )
            return as_columns(actions, observation)

        return decide

    return kind.__name__, player
