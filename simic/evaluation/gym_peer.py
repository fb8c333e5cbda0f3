"""The peer: PPO of Stable-Baselines3 or sb3-contrib, where it is installed, at the better of two settings."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from simic.agent.gym_adapter import MASK_METHOD
from simic.envs.gym_env import EVALUATION, LONGEST_EPISODE, PlayedEpisodes, episode_seed, make
from simic.params import GymParams, Params, PPOParams

PEER = "peer"
Told = Callable[[str, int, int], None]


def learn_peer(params: Params, told: Told) -> tuple[PlayedEpisodes | None, str]:
    """Let the peer learn for ``headroom.gym.peer_steps`` and play the evaluation's episodes greedily; say what it was.

    With masks it is MaskablePPO, else with a memory RecurrentPPO, else PPO. It learns twice, with its own settings and
    with those of ``train.ppo``; the better of both on these very episodes counts, which favours it.
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
        for whose, settings in (("its own", {}), ("simic's", _translated(params.train.ppo))):
            name, model = _learned(params, task, steps, settings)
            played = PlayedEpisodes([], [], [])
            for env_id in range(params.evaluate.eval_seeds):
                score, length = _episode(model, task, params.rng_seed, env_id)
                played.returns.append(score)
                played.lengths.append(length)
                told(f"episodes of {name}, {whose} settings", env_id + 1, params.evaluate.eval_seeds)
            tried.append((played, f"{name}, {whose} settings, {steps:,} environment steps, rng_seed {params.rng_seed}"))
    return max(tried, key=lambda each: sum(each[0].returns))


def _translated(ppo: PPOParams) -> dict[str, Any]:
    """Return settings that mean the same in both libraries, by the peer's names."""
    names = {
        "learning_rate": "learning_rate", "n_epochs": "epochs", "gamma": "gamma", "gae_lambda": "gae_lambda",
        "clip_range": "clip_range", "ent_coef": "entropy_coef", "vf_coef": "value_coef",
        "max_grad_norm": "max_grad_norm", "target_kl": "target_kl",
    }  # fmt: skip
    return {theirs: getattr(ppo, ours) for theirs, ours in names.items()}


class _Flat(gymnasium.Wrapper):
    """Give masks as one array."""

    def action_masks(self) -> np.ndarray:
        masks = self.env.get_wrapper_attr(MASK_METHOD)()
        return np.concatenate([np.ravel(each) for each in masks.values()]) if isinstance(masks, Mapping) else masks


def _learned(params: Params, task: GymParams, steps: int, settings: Mapping[str, Any]) -> tuple[str, Any]:
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    one = make(task)
    masked = one.has_wrapper_attr(MASK_METHOD)
    one.close()
    envs = DummyVecEnv([lambda: _Flat(make(task)) if masked else make(task)] * params.train.envs)
    how = {"n_steps": params.train.longest_episode, "seed": params.rng_seed, "device": "cpu", "verbose": 0, **settings}
    how["batch_size"] = max(2, params.train.envs * params.train.longest_episode // params.train.ppo.minibatches)
    if masked:
        model = MaskablePPO("MlpPolicy", envs, **how)
    elif params.train.policy.core != "none":
        model = RecurrentPPO("MlpLstmPolicy", envs, **how)
    else:
        model = PPO("MlpPolicy", envs, **how)
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
    raise AssertionError("an episode does not end")
