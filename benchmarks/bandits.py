"""Learn to play bandits: simic's recurrent PPO beside sb3-contrib RecurrentPPO and the classical strategies.

    python -m benchmarks.bandits [--tasks n10k5 n100k10] [--algorithms simic …] [--seeds 1 2 3] [--episodes N]

The multi-armed bandits of RL² (Duan et al. 2016, arXiv 1611.02779, section 3.1): k arms pay 1 with probabilities drawn
anew for every episode, uniformly in [0, 1], and an episode is n pulls. Whoever plays must find out by trying which arm
is good, so a policy without memory cannot learn it. Everyone plays the same test bandits, with the same luck: whether
an arm pays at a pull depends on bandit and pull alone. UCB1's constant is tuned on other bandits, as in the paper.

A run replaces that of the same task, algorithm and seed in benchmarks/results/bandits.json; the others stay. One
thread. RecurrentPPO needs the extra: pip install -e '.[bench]'.
"""

import itertools
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor

from benchmarks import page
from simic import rng
from simic.agent.agent import settings, sizes
from simic.agent.normalization import Normalizers, RewardNormalizer
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, collect, with_advantages
from simic.agent.spec import ActionSpec, Observation, ObservationSpec

RESULT = Path("benchmarks/results/bandits.json")
TEST_BANDITS, TEST_SEED = 20_000, 0  # trainings have other seeds
TEST, TUNING = 0, 1  # iterations of that seed
UCB1_CONSTANTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
UNITS, EPOCHS, MINIBATCHES, GAMMA, LAMBDA = 64, 6, 4, 0.99, 0.95
LEARNING_RATE, ENTROPY, VALUE, CLIP, GRADIENT_NORM = 1e-3, 0.01, 0.5, 0.2, 0.5
POINTS = 20  # of a learning curve
EXACT_PULLS = 10  # up to which the optimum is computed


@dataclass(frozen=True)
class Task:
    """Bandits with ``arms``, played for ``pulls``; ``published`` holds mean returns from the paper's table 1."""

    arms: int
    pulls: int
    envs: int  # episodes of one update
    episodes: int  # of a training
    published: dict[str, float]


TASKS = {
    "n10k5": Task(5, 10, 480, 120_000, {"UCB1": 6.7, "RL²": 6.7}),
    "n100k10": Task(10, 100, 120, 24_000, {"UCB1": 82.4, "RL²": 83.5}),
}


class Bandits:
    """``envs`` Bernoulli bandits side by side, as ``simic.agent.rollout.Environment`` wants them.

    An observation ``[arms + 3]`` is the last arm (one-hot), its reward, the share of pulls done, and 1 at the start.
    All episodes end after ``pulls`` steps, then ``reset`` draws other bandits, by the iteration it is given.
    """

    def __init__(self, arms: int, pulls: int, envs: int, rng_seed: int) -> None:
        self.arms, self.pulls, self.num_envs, self.rng_seed = arms, pulls, envs, rng_seed
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}
        self.env_ids = torch.arange(envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, None]:
        """Draw the bandits of ``options["iteration"]``: probabilities ``means [E, arms]`` and the luck of each pull."""
        where = self.rng_seed if seed is None else seed, rng.Purpose.INSTANCE, (options or {}).get("iteration", 0)
        self.means = rng.uniform(rng.key(*where, self.env_ids, 0), (self.arms,))
        self.luck = rng.uniform(rng.key(*where, self.env_ids, 1), (self.pulls,))
        self.done = 0
        start = torch.zeros(self.num_envs, self.arms + 3)
        start[:, -1] = 1.0
        return self._observation(start), None

    def step(self, actions: Tensor, /) -> tuple[Observation, Tensor, Tensor, Tensor, None]:
        """Pull the arms ``actions [E, 1]``."""
        reward = (self.luck[:, self.done] < self.means.gather(1, actions)[:, 0]).float()
        self.done += 1
        seen = torch.zeros(self.num_envs, self.arms + 3).scatter_(1, actions, 1.0)
        seen[:, self.arms], seen[:, self.arms + 1] = reward, self.done / self.pulls
        over = torch.full((self.num_envs,), self.done == self.pulls)
        return self._observation(seen), reward, over, torch.zeros_like(over), None

    def _observation(self, features: Tensor) -> Observation:
        return Observation(features, torch.zeros(self.num_envs, 0, dtype=torch.int64), {})


# A strategy chooses arms [E] from how often each arm [E, arms] paid and did not, and the number of pulls so far.
Strategy = Callable[[Tensor, Tensor, int], Tensor]


def play(env: Bandits, strategy: Strategy, iteration: int) -> Tensor:
    """Return the returns ``[E]`` of a strategy in the bandits of an iteration."""
    env.reset(options={"iteration": iteration})
    wins, losses = torch.zeros(2, env.num_envs, env.arms)
    for pull in range(env.pulls):
        arms = strategy(wins, losses, pull)[:, None]
        reward = env.step(arms)[1][:, None]
        wins.scatter_add_(1, arms, reward)
        losses.scatter_add_(1, arms, 1 - reward)
    return wins.sum(dim=1)


def uniform(rng_seed: int) -> Strategy:
    generator = torch.Generator().manual_seed(rng_seed)
    return lambda wins, losses, pull: torch.randint(wins.shape[1], wins.shape[:1], generator=generator)


def ucb1(constant: float) -> Strategy:
    """Return UCB1 (Auer et al. 2002) with a constant for its bonus; 0 is the greedy strategy.

    Knows, as in the paper, that probabilities are uniform: every arm begins with one success and one failure.
    """

    def choose(wins: Tensor, losses: Tensor, pull: int) -> Tensor:
        pulls = wins + losses + 2
        return ((wins + 1) / pulls + constant * (2 * math.log(pull + 1) / pulls).sqrt()).argmax(dim=1)

    return choose


def thompson(rng_seed: int) -> Strategy:
    generator = np.random.default_rng(rng_seed)
    return lambda wins, losses, pull: torch.from_numpy(generator.beta(wins + 1, losses + 1)).argmax(dim=1)


def optimum(arms: int, pulls: int) -> float:
    """Return the highest expected return that any strategy can have, by dynamic programming over what is known.

    A state holds how often each arm paid and did not, sorted, since arms are alike: 3,519 states for 10 pulls of 5.
    """

    @cache
    def best(known: tuple[tuple[int, int], ...], left: int) -> float:
        return max((value(known, arm, left) for arm in set(known)), default=0.0) if left else 0.0

    def value(known: tuple[tuple[int, int], ...], arm: tuple[int, int], left: int) -> float:
        others = list(known)
        others.remove(arm)
        wins, losses = arm
        paid, failed = (tuple(sorted((*others, after))) for after in ((wins + 1, losses), (wins, losses + 1)))
        chance = (wins + 1) / (wins + losses + 2)
        return chance * (1 + best(paid, left - 1)) + (1 - chance) * best(failed, left - 1)

    return best(((0, 0),) * arms, pulls)


def test_bandits(task: Task) -> Bandits:
    """Return the environments for testing and tuning, which their iteration tells apart."""
    return Bandits(task.arms, task.pulls, TEST_BANDITS, TEST_SEED)


def baselines(task: Task) -> tuple[float, dict[str, Tensor]]:
    """Return UCB1's tuned constant, and the returns of the strategies without learning on the test bandits."""
    env = test_bandits(task)
    tuned = max(UCB1_CONSTANTS, key=lambda constant: float(play(env, ucb1(constant), TUNING).mean()))
    strategies = {"random": uniform(1), "Thompson sampling": thompson(1), "greedy": ucb1(0.0), "UCB1": ucb1(tuned)}
    return tuned, {name: play(env, strategy, TEST) for name, strategy in strategies.items()}


def row(returns: Tensor, reference: Tensor) -> dict[str, Any]:
    """Return mean return and mean difference to UCB1's in the same bandits, each with its standard error."""
    found = {"return": returns, "minus_ucb1": returns - reference}
    return {name: (round(float(x.mean()), 4), round(float(x.std() / len(x) ** 0.5), 4)) for name, x in found.items()}


def train_simic(task: Task, rng_seed: int, updates: int, curve: Callable[[Tensor], None]) -> Callable[[], Tensor]:
    """Train simic's agent; return what plays the test bandits with it, greedily."""
    network = sizes(encoder_units=UNITS, core="lstm", core_units=UNITS, head_units=UNITS)
    value = 2 * VALUE  # of ½ (V − R)²; sb3's is of (V − R)²
    learning = settings(
        learning_rate=LEARNING_RATE, epochs=EPOCHS, minibatches=MINIBATCHES, clip_range=CLIP, target_kl=None,
        entropy_coef=ENTROPY, entropy_coef_final=ENTROPY, value_coef=value, max_grad_norm=GRADIENT_NORM,
    )  # fmt: skip
    env = Bandits(task.arms, task.pulls, task.envs, rng_seed)
    policy = ActorCritic(ActionSpec.discrete(task.arms), ObservationSpec(task.arms + 3), network, rng_seed)
    ppo = PPO(policy, learning, rng_seed, total_updates=updates)
    normalizers = Normalizers(reward=RewardNormalizer(task.envs, GAMMA))
    for iteration in range(updates):
        rollout, _ = collect(env, policy, normalizers, iteration, rng_seed, task.pulls)
        scaled = normalizers.update(rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid)
        ppo.update(with_advantages(rollout, scaled, GAMMA, LAMBDA), iteration)
        curve(rollout.rewards.sum(dim=0))

    def test() -> Tensor:
        env = test_bandits(task)
        observation, _ = env.reset(options={"iteration": TEST})
        state, returns = policy.initial_state(TEST_BANDITS), torch.zeros(TEST_BANDITS)
        for _ in range(task.pulls):
            step = policy.act(observation, state, greedy=True)
            observation, reward, *_ = env.step(step.actions)
            state, returns = step.state, returns + reward
        return returns

    return test


class VectorBandits(VecEnv):
    """Bandits for Stable-Baselines3, which go on with others at the end of an episode."""

    render_mode = None  # sb3 warns without it

    def __init__(self, bandits: Bandits) -> None:
        self.bandits, self.iteration = bandits, 0
        super().__init__(bandits.num_envs, Box(0.0, 1.0, (bandits.arms + 3,)), Discrete(bandits.arms))

    def reset(self) -> np.ndarray:
        observation, _ = self.bandits.reset(options={"iteration": self.iteration})
        self.iteration, self.returns = self.iteration + 1, torch.zeros(self.num_envs)
        return observation.features.numpy()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = torch.from_numpy(actions)[:, None]

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observation, reward, over, _, _ = self.bandits.step(self.actions)
        self.returns += reward
        features = observation.features.numpy()
        if over.all():
            self.finished = self.returns
            features = self.reset()
        return features, reward.numpy(), over.numpy(), [{} for _ in range(self.num_envs)]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    close = set_attr = env_method = _unused


class Watch(BaseCallback):
    """Hand on the returns of each rollout, which is one episode of every environment."""

    def __init__(self, vector: VectorBandits, curve: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.vector, self.curve = vector, curve

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.curve(self.vector.finished)


def train_sb3(task: Task, rng_seed: int, updates: int, curve: Callable[[Tensor], None]) -> Callable[[], Tensor]:
    """Train sb3-contrib's RecurrentPPO in the same bandits; return what plays the test bandits with it, greedily."""
    vector = VectorBandits(Bandits(task.arms, task.pulls, task.envs, rng_seed))
    entropy = ENTROPY / math.log(task.arms)  # simic's entropy is a share of the highest one
    model = RecurrentPPO(
        "MlpLstmPolicy", VecNormalize(vector, norm_obs=False, gamma=GAMMA), learning_rate=LEARNING_RATE,
        n_steps=task.pulls, batch_size=task.envs * task.pulls // MINIBATCHES, n_epochs=EPOCHS, gamma=GAMMA,
        gae_lambda=LAMBDA, clip_range=CLIP, ent_coef=entropy, vf_coef=VALUE, max_grad_norm=GRADIENT_NORM,
        seed=rng_seed, device="cpu", policy_kwargs={"net_arch": [UNITS], "lstm_hidden_size": UNITS},
    )  # fmt: skip
    model.learn(updates * task.envs * task.pulls, callback=Watch(vector, curve))

    def test() -> Tensor:
        tested = VectorBandits(test_bandits(task))
        observation, state, start = tested.reset(), None, np.ones(TEST_BANDITS, dtype=bool)
        for _ in range(task.pulls):
            actions, state = model.predict(observation, state, start, deterministic=True)
            tested.step_async(actions)
            observation, _, start, _ = tested.step_wait()
        return tested.finished

    return test


ALGORITHMS = {"simic": train_simic, "sb3-contrib": train_sb3}


def run(task: Task, algorithm: str, rng_seed: int, episodes: int, reference: Tensor) -> dict[str, Any]:
    """Train once and play the test bandits, where UCB1's returns are ``reference [E]``.

    ``curve`` holds episodes so far and the mean return of those since the point before.
    """
    updates = -(-episodes // task.envs)
    returns: list[float] = []
    load, started = os.getloadavg()[0], time.process_time()
    test = ALGORITHMS[algorithm](task, rng_seed, updates, lambda found: returns.append(float(found.mean())))
    seconds = time.process_time() - started  # of the processor: other work on the machine disturbs it less
    ends = np.unique(np.linspace(0, updates, POINTS + 1).astype(int)).tolist()
    curve = [(end * task.envs, round(float(np.mean(returns[start:end])), 3)) for start, end in itertools.pairwise(ends)]
    result = {"episodes": updates * task.envs, **row(test(), reference), "curve": curve}
    return result | {"seconds": round(seconds, 1), "load": round(load, 2), "revision": page.provenance()["revision"]}


def main() -> None:
    parser = page.parser(__doc__, RESULT)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, help="of a training; default: the task's")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tasks = json.loads(given.out.read_bytes())["tasks"] if given.out.exists() else {}
    for name in given.tasks:
        task = TASKS[name]
        constant, strategies = baselines(task)
        rows = {each: row(returns, strategies["UCB1"]) for each, returns in strategies.items()}
        runs = tasks.get(name, {}).get("runs", {})
        learned = {"gamma": GAMMA, "gae_lambda": LAMBDA}
        tasks[name] = asdict(task) | learned | {"ucb1_constant": constant, "baselines": rows, "runs": runs}
        if task.pulls <= EXACT_PULLS:
            tasks[name]["optimum"] = optimum(task.arms, task.pulls)
        for seed, algorithm in itertools.product(given.seeds, given.algorithms):
            found = run(task, algorithm, seed, given.episodes or task.episodes, strategies["UCB1"])
            runs.setdefault(algorithm, {})[str(seed)] = found
            page.write_result(given.out, {"test_bandits": TEST_BANDITS, "tasks": tasks})
            print(f"{name} {algorithm} {seed}: {found['return'][0]:.3f}, {found['seconds']:.0f} s", flush=True)
    if given.out == RESULT:
        page.main()


if __name__ == "__main__":
    main()
