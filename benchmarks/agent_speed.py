"""How fast the agent acts and learns beside sb3-contrib RecurrentPPO: ratios inside one run, A B A B, medians.

    python -m benchmarks.agent_speed [--repeats 5] [--envs 4 16 64] [--out benchmarks/results/agent_speed.json]

Steps per second: CartPole-v1, 8 environments × 128 steps, LSTM of 64, 4 minibatches, 4 epochs, training as a whole.
Update: observation 128, LSTM 512, heads (3, 13, 4, 3, 3, 4, 5, 6), T = 150, 4 epochs of 4 minibatches, the same number
of parameters to 5 %, with and without episodes that start inside a row. Actor and
critic have their own memory, the default of both.

Both sides have what is fastest for them here: one thread, and memory that is freed is kept for the next allocation.
Minibatches are each library's own: ours are whole rows; theirs are as many samples, cut out of the rows wherever that
number is reached, and a piece begins with the memory stored when acting. With 4 environments their pieces are therefore
shorter than a row (112 steps on average instead of 150) and run two at a time. `processor_ratio` compares processor
time, which other work on the machine disturbs less. Needs the extra `bench`.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import page
from simic import params
from simic.agent import Agent
from simic.agent.health import Health
from simic.agent.ppo import with_advantages
from simic.agent.rollout import collect
from simic.training.machine import keep_freed_memory

HEADS, FEATURES, STEPS, UNITS = (3, 13, 4, 3, 3, 4, 5, 6), 128, 150, 512
NEVER, MEAN_LENGTH, EPOCHS = 10**9, 40, 4


class Noise(gymnasium.Env):
    """Random observations and rewards of the reference shapes; episodes end after about ``length`` steps."""

    observation_space, action_space = Box(-1.0, 1.0, (FEATURES,)), MultiDiscrete(list(HEADS))

    def __init__(self, length: int) -> None:
        self.length = length

    def _look(self) -> np.ndarray:
        return self.np_random.standard_normal(FEATURES).astype(np.float32).clip(-1, 1)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        ended = bool(self.np_random.random() < 1 / self.length)
        return self._look(), float(self.np_random.random()), ended, False, {}


class Nothing(BaseCallback):
    """sb3 wants one."""

    def _on_step(self) -> bool:
        return True


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def our_update(envs: int, length: int, steps: int) -> tuple[Callable[[], object], int]:
    """One update of a fixed rollout, again and again; and how many parameters it moves."""
    sizes = params.Policy(encoder_units=FEATURES, core_units=UNITS, head_units=56)
    settings = params.PPOParams(epochs=EPOCHS, minibatches=4, target_kl=None, learning_rate=1e-9)
    agent = Agent(lambda: Noise(length), envs=envs, rollout_steps=steps, policy=sizes, ppo=settings)
    rollout, _ = collect(agent.env, agent.policy, agent.normalizers, 0, 1, steps)
    rollout = with_advantages(rollout, rollout.rewards, 0.99, 0.95)
    return lambda: agent.ppo.update(replace(rollout), 0, Health(agent.ppo)), parameters(agent.policy)


def their_update(envs: int, length: int, steps: int) -> tuple[Callable[[], object], int]:
    """The same of RecurrentPPO, with layers that bring it to our number of parameters."""
    env = make_vec_env(lambda: Noise(length), envs, seed=1)
    sizes = {
        "lstm_hidden_size": UNITS,
        "enable_critic_lstm": True,
        "net_arch": {"pi": [256], "vf": [256]},
    }
    model = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        learning_rate=1e-9,
        n_steps=steps,
        batch_size=envs * steps // 4,
        n_epochs=EPOCHS,
        seed=1,
        device="cpu",
        policy_kwargs=sizes,
    )
    _, callback = model._setup_learn(envs * steps, Nothing())
    # Twice: the first rollout begins with episode starts, which would keep it from the fast path that it has without.
    for _ in range(2):
        model.collect_rollouts(env, callback, model.rollout_buffer, steps)
    # train() flattens the buffer at its first call only and leaves it as it is.
    return model.train, parameters(model.policy)


def alternately(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median seconds of each and processor seconds, taken in turns after one turn that does not count."""
    taken: dict[str, list[float]] = {"ours": [], "theirs": [], "our_processor": [], "their_processor": []}
    for turn in range(repeats + 1):
        for work, wall, processor in ((ours, "ours", "our_processor"), (theirs, "theirs", "their_processor")):
            started, spent = time.perf_counter(), time.process_time()
            work()
            if turn:
                taken[wall].append(time.perf_counter() - started)
                taken[processor].append(time.process_time() - spent)
    return {name: median(times) for name, times in taken.items()}


def updates(repeats: int, sizes: list[int], steps: int) -> list[dict[str, Any]]:
    kinds = itertools.product(sizes, ((False, NEVER), (True, MEAN_LENGTH)))
    rows = []
    for envs, (inside, length) in kinds:
        ours, count = our_update(envs, length, steps)
        theirs, their_count = their_update(envs, length, steps)
        seconds = alternately(ours, theirs, 1 if inside else repeats)  # those with starts inside are factors apart
        rows.append(
            {
                "envs": envs,
                "starts_inside": inside,
                "parameters": count,
                "their_parameters": their_count,
                "samples_per_second": EPOCHS * envs * steps / seconds["ours"],
                "their_samples_per_second": EPOCHS * envs * steps / seconds["theirs"],
                "ratio": seconds["theirs"] / seconds["ours"],
                "processor_ratio": seconds["their_processor"] / seconds["our_processor"],
            }
        )
        print(rows[-1], flush=True)
    return rows


def cartpole(repeats: int, rollouts: int) -> dict[str, Any]:
    """Environment steps per second of training, everything included."""
    steps = 8 * 128 * rollouts
    sizes = params.Policy(encoder_units=64, core_units=64, head_units=64)
    settings = params.PPOParams(epochs=4, minibatches=4, target_kl=None, gamma=0.99)
    agent = Agent("CartPole-v1", envs=8, rollout_steps=128, policy=sizes, ppo=settings)
    recurrent = {"lstm_hidden_size": 64, "net_arch": [64]}
    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env("CartPole-v1", 8, seed=1),
        learning_rate=1e-3,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        seed=1,
        device="cpu",
        policy_kwargs=recurrent,
    )

    seconds = alternately(lambda: agent.train(steps), lambda: model.learn(steps, reset_num_timesteps=False), repeats)
    return {
        "steps_per_second": steps / seconds["ours"],
        "their_steps_per_second": steps / seconds["theirs"],
        "ratio": seconds["theirs"] / seconds["ours"],
        "processor_ratio": seconds["their_processor"] / seconds["our_processor"],
        "parameters": parameters(agent.policy),
        "their_parameters": parameters(model.policy),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/agent_speed.json"))
    parser.add_argument("--envs", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--smoke", action="store_true", help="small shapes, one turn: that it runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    repeats = 1 if given.smoke else given.repeats
    found = {"repeats": repeats, "cartpole": cartpole(repeats, 1 if given.smoke else 4)}
    print(found, flush=True)
    shapes = ([4], 20) if given.smoke else (given.envs, STEPS)
    page.write_result(given.out, found | {"updates": updates(repeats, *shapes)})
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
