"""The peer: PPO of Stable-Baselines3 or sb3-contrib, where it is installed, at the best of some settings."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from simic.agent.gym_adapter import MASK_METHOD
from simic.envs.gym_env import EVALUATION, LONGEST_EPISODE, PlayedEpisodes, episode_seed, make
from simic.errors import SimicError
from simic.params import GymParams, Params

PEER = "peer"
ENVS, ROWS = 8, 2048  # side by side; of a rollout, as it has them by itself
Told = Callable[[str, int, int], None]


def learn_peer(params: Params, told: Told) -> tuple[PlayedEpisodes | None, str]:
    """Let the peer learn for ``headroom.gym.peer_steps`` and play the evaluation's episodes greedily; say what it was.

    With masks it is MaskablePPO, else with ``peer_memory`` RecurrentPPO, else PPO. It learns once with each of
    ``peer_settings``; the best on these very episodes counts, which favours it.
    """
    steps, task = params.headroom.gym.peer_steps, params.prepare.gym
    if not steps:
        return None, "none: headroom.gym.peer_steps is 0"
    if importlib.util.find_spec("sb3_contrib") is None:
        return None, "none: sb3-contrib is not installed (pip install sb3-contrib)"
    if task.vector == "tensors":
        return None, "none: it has no vector environments on tensors"
    tried: list[tuple[PlayedEpisodes, str]] = []
    with torch.random.fork_rng(devices=[]):
        for settings in params.headroom.gym.peer_settings:
            name, model = _learned(params, task, steps, settings)
            how = ", ".join(f"{key} {value}" for key, value in settings.items()) or "its own settings"
            played = PlayedEpisodes([], [], [])
            for env_id in range(params.evaluate.eval_seeds):
                score, length = _episode(model, task, params.rng_seed, env_id)
                played.returns.append(score)
                played.lengths.append(length)
                told(f"episodes of {name}, {how}", env_id + 1, params.evaluate.eval_seeds)
            tried.append((played, f"{name}, {how}, {steps:,} environment steps, rng_seed {params.rng_seed}"))
    return max(tried, key=lambda each: sum(each[0].returns))


class _Flat(gymnasium.Wrapper):
    """Give masks as one array."""

    def action_masks(self) -> np.ndarray:
        masks = self.env.get_wrapper_attr(MASK_METHOD)()
        return np.concatenate([np.ravel(each) for each in masks.values()]) if isinstance(masks, Mapping) else masks


def _learned(params: Params, task: GymParams, steps: int, settings: Mapping[str, Any]) -> tuple[str, Any]:
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv

    one = make(task)
    masked = one.has_wrapper_attr(MASK_METHOD)
    one.close()
    envs = DummyVecEnv([lambda: _Flat(make(task)) if masked else make(task)] * ENVS)
    how = {"n_steps": ROWS // ENVS, "seed": params.rng_seed, "device": "cpu", "verbose": 0, **settings}
    try:
        if masked:
            model = MaskablePPO("MlpPolicy", envs, **how)
        elif params.headroom.gym.peer_memory:
            model = RecurrentPPO("MlpLstmPolicy", envs, **how)
        else:
            model = PPO("MlpPolicy", envs, **how)
    except (TypeError, ValueError) as error:
        raise SimicError(f"headroom.gym.peer_settings: {settings}: {' '.join(str(error).split())}") from None
    model.set_logger(Logger(None, []))  # its own leaves a folder in the system's temporary one
    model.learn(steps)
    envs.close()
    return type(model).__name__, model


def _episode(model: Any, task: GymParams, rng_seed: int, env_id: int) -> tuple[float, int]:
    env = make(task)
    masked, recurrent = env.has_wrapper_attr(MASK_METHOD), type(model).__name__ == "RecurrentPPO"
    env = _Flat(env) if masked else env
    seen, _ = env.reset(seed=episode_seed(rng_seed, EVALUATION, env_id, 0))
    memory, first, total = None, np.ones(1, dtype=bool), 0.0
    for length in range(1, LONGEST_EPISODE):
        more = {"action_masks": env.get_wrapper_attr(MASK_METHOD)()} if masked else {}
        more |= {"state": memory, "episode_start": first} if recurrent else {}
        action, memory = model.predict(seen, deterministic=True, **more)
        seen, reward, terminated, truncated, _ = env.step(action)
        total, first = total + float(reward), np.zeros(1, dtype=bool)
        if terminated or truncated:
            env.close()
            return total, length
    raise SimicError(f"an episode goes on for {LONGEST_EPISODE} steps: add gymnasium.wrappers:TimeLimit")
