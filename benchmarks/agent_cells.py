"""One training run of one algorithm on one task: ours by its own functions, the peers by theirs."""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import simic
from benchmarks.agent_tasks import ENVS, EPISODES, MINIBATCHES, ROLLOUT, SHARED, TASKS, UNITS, Task
from simic import params
from simic.agent import Agent
from simic.agent.agent import IterationReport

WINDOW = 20  # episodes whose mean return is looked at


@dataclass
class Cell:
    """What one run came to. ``curve``: environment steps, and the mean return of the last 20 episodes then."""

    task: str
    algorithm: str
    config: dict[str, Any]
    rng_seed: int
    steps: int
    returns: list[float] = field(default_factory=list)  # of greedy episodes after training
    curve: list[tuple[int, float]] = field(default_factory=list)
    steps_to_solve: int | None = None
    seconds: float = 0.0  # training alone
    load: float = 0.0  # of the machine when it began

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds

    def note(self, steps: int, returns: list[float]) -> None:
        """One rollout is done; ``returns`` of all episodes so far."""
        if len(returns) >= WINDOW:
            mean = float(np.mean(returns[-WINDOW:]))
            self.curve.append((steps, round(mean, 3)))
            if self.steps_to_solve is None and mean >= TASKS[self.task].solved:
                self.steps_to_solve = steps


@cache
def code(algorithm: str) -> str:
    """What a run is the result of: our agent's code and that of its tasks, or the versions of the peers."""
    if not algorithm.startswith("simic"):
        return " ".join(
            f"{name} {version(name)}" for name in ("stable-baselines3", "sb3-contrib", "gymnasium", "torch")
        )
    package, here = Path(simic.__file__).parent, Path(__file__).parent
    files = [*sorted((package / "agent").rglob("*.py")), here / "agent_cells.py", here / "agent_tasks.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def whole_steps(task: str, steps: int | None = None) -> int:
    """The task's steps, or those wished for, in whole rollouts."""
    return -(-(steps or TASKS[task].steps) // (ENVS * ROLLOUT)) * ENVS * ROLLOUT


def run(task: str, algorithm: str, config: dict[str, Any], rng_seed: int, steps: int | None = None) -> dict[str, Any]:
    """A finished cell as plain data. One thread."""
    torch.set_num_threads(1)
    cell = Cell(task, algorithm, config, rng_seed, whole_steps(task, steps), load=os.getloadavg()[0])
    play = ours if algorithm.startswith("simic") else peer
    play(cell, TASKS[task])
    return asdict(cell) | {"steps_per_second": cell.steps_per_second, "code": code(algorithm)}


def ours(cell: Cell, task: Task) -> None:
    """The agent; what the shared settings leave open (scales of observations and rewards, the divergence that ends an
    update) is as in its defaults, as it is with the peers.
    """
    core = "lstm" if "LSTM" in cell.algorithm else "none"
    sizes = params.Policy(encoder_units=UNITS, core=core, core_units=UNITS, head_units=UNITS)
    entropy = {"entropy_coef": 0.0, "entropy_coef_final": 0.0}
    shared = SHARED | {"value_coef": 2 * SHARED["value_coef"]}  # ours is of ½ (V − R)², theirs of (V − R)²
    settings = params.PPOParams(minibatches=MINIBATCHES, **shared, **entropy, **cell.config)
    agent = Agent(task.make, rng_seed=cell.rng_seed, envs=ENVS, rollout_steps=ROLLOUT, policy=sizes, ppo=settings)
    returns: list[float] = []

    def note(progress: IterationReport) -> None:
        returns.extend(progress.returns)
        cell.note(progress.env_steps, returns)

    started = time.perf_counter()
    agent.train(cell.steps, note)
    cell.seconds = time.perf_counter() - started
    cell.returns = agent.evaluate(EPISODES)


def peer(cell: Cell, task: Task) -> None:
    """Stable-Baselines3 and its contributions, with VecNormalize as its documentation advises."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    class Watch(BaseCallback):
        """Returns of finished episodes, looked at after each rollout."""

        def __init__(self) -> None:
            super().__init__()
            self.found: list[float] = []

        def _on_step(self) -> bool:
            self.found += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

        def _on_rollout_end(self) -> None:
            cell.note(self.num_timesteps, self.found)

    # Environment k of a run is seeded rng_seed + k: runs share starts of first episodes, not how these go on.
    env = VecNormalize(make_vec_env(task.make, ENVS, seed=cell.rng_seed), gamma=SHARED["gamma"])
    model, evaluate = build(cell, env)
    started = time.perf_counter()
    model.learn(cell.steps, callback=Watch())
    cell.seconds = time.perf_counter() - started
    fresh = VecNormalize(make_vec_env(task.make, ENVS, seed=cell.rng_seed + 10_000), training=False, norm_reward=False)
    fresh.obs_rms = env.obs_rms
    returns, _ = evaluate(model, fresh, EPISODES, deterministic=True, return_episode_rewards=True)
    cell.returns = [float(value) for value in returns]


def build(cell: Cell, env: Any) -> tuple[Any, Callable]:
    """The peer's model with the settings everybody has, and what evaluates it."""
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    layers = {"net_arch": [UNITS, UNITS]}
    recurrent = {"net_arch": [UNITS], "lstm_hidden_size": UNITS}
    kind, policy, sizes, evaluate = {
        "sb3 PPO": (PPO, "MlpPolicy", layers, evaluate_policy),
        "sb3-contrib RecurrentPPO": (RecurrentPPO, "MlpLstmPolicy", recurrent, evaluate_policy),
        "sb3-contrib MaskablePPO": (MaskablePPO, "MlpPolicy", layers, evaluate_masked),
    }[cell.algorithm]
    model = kind(
        policy,
        env,
        learning_rate=cell.config["learning_rate"],
        n_epochs=SHARED["epochs"],
        n_steps=ROLLOUT,
        batch_size=ENVS * ROLLOUT // MINIBATCHES,
        gamma=SHARED["gamma"],
        gae_lambda=SHARED["gae_lambda"],
        clip_range=SHARED["clip_range"],
        vf_coef=SHARED["value_coef"],
        max_grad_norm=SHARED["max_grad_norm"],
        ent_coef=0.0,
        seed=cell.rng_seed,
        device="cpu",
        policy_kwargs=sizes,
    )
    return model, evaluate
