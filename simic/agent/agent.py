"""The agent on any Gymnasium environment: train, save, load, continue, evaluate."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from simic import durable, params, rng
from simic.agent.gym_adapter import Make, vectorized
from simic.agent.learner import build_learner
from simic.agent.metrics import UpdateMetrics, numbers
from simic.agent.policy import RecurrentState, part_of, refuse_mismatch
from simic.agent.ppo import collect, with_advantages
from simic.agent.rollout import Position
from simic.errors import SimicError

LONGEST_EPISODE = 1_000_000  # steps, in evaluation
PLAY_ITERATION = 1 << 42  # a namespace of its own: other starts and other noise than in training
CARD = "simic.agent"  # what a saved file's metadata are under
FORMAT_VERSION = 2
RUNNING = "scales/reward.running"  # a tensor of it
LOG_FILE = "progress.csv"
LOG_BEGINS = "env_steps,episode_return,"
LOG_EPISODES = 100  # whose mean return is written


# For environments in general. The values of params.yaml are for short episodes with one score in points: neither
# discounted nor scaled, and learned from until the rate has fallen.
SIZES = {"core": "lstm", "encoder_units": 128, "core_units": 128, "critic": "own"}
SETTINGS = {
    "learning_rate": 1e-3,
    "learning_rate_schedule": "constant",
    "epochs": 4,
    "target_kl": 0.015,
    "entropy_coef": 0.01,
    "entropy_coef_final": 0.001,
    "gamma": 0.995,
    "normalize_rewards": True,
}


def sizes(**changes: Any) -> params.Policy:
    """Return the sizes of a policy for environments in general, with these changes."""
    return params.Policy(**SIZES | changes)


def settings(**changes: Any) -> params.PPOParams:
    """Return PPO's settings for environments in general, with these changes."""
    return params.PPOParams(**SETTINGS | changes)


@dataclass
class Returns:
    """Undiscounted returns of episodes that go on from rollout to rollout."""

    running: Tensor  # [E] float64
    finished: list[float] = field(default_factory=list)

    @classmethod
    def none(cls, envs: int) -> "Returns":
        return cls(torch.zeros(envs, dtype=torch.float64))

    def add(self, rewards: Tensor, ended: Tensor) -> list[float]:
        """Take in one step ``[E]``; return the returns of the episodes it ended."""
        self.running = self.running + rewards
        done = self.running[ended].tolist()
        self.running = self.running.masked_fill(ended, 0.0)
        self.finished += done
        return done


@dataclass(frozen=True)
class IterationReport:
    """The result of one iteration: environment steps so far, returns of the episodes that ended in it, the update."""

    iteration: int
    env_steps: int
    returns: list[float]
    metrics: UpdateMetrics


class Agent:
    """A policy, its optimizer and scales, and the environments it learns from.

    ``env`` is a registered id or a function that makes an environment; ``envs`` of them run side by side and
    ``rollout_steps`` steps of each make an update. ``policy`` and ``ppo`` are ``sizes()`` and ``settings()`` where not
    given. With ``log`` a line per update goes to ``progress.csv`` in that folder, which a new agent starts anew.
    """

    def __init__(
        self,
        env: Make,
        *,
        rng_seed: int = 1,
        envs: int = 8,
        rollout_steps: int = 128,
        policy: params.Policy | None = None,
        ppo: params.PPOParams | None = None,
        log: str | Path | None = None,
    ) -> None:
        for name, number in {"envs": envs, "rollout_steps": rollout_steps}.items():
            if not isinstance(number, int) or number < 1:
                raise SimicError(f"{name} = {number!r}: must be a whole number from 1")
        self.make, self.rng_seed, self.rollout_steps = env, rng_seed, rollout_steps
        self.sizes, self.settings = policy or sizes(), ppo or settings()
        if self.sizes.core != "none" and envs < self.settings.minibatches:
            least = self.settings.minibatches
            raise SimicError(f"envs = {envs}: must be at least ppo.minibatches ({least}) where the policy has memory")
        self.log = None if log is None else Path(log) / LOG_FILE
        self.env = vectorized(env, envs, rng_seed)
        learner = build_learner(
            self.env.action_spec,
            self.env.observation_spec,
            self.sizes,
            self.settings,
            rng_seed,
            envs,
            total_updates=1,
        )
        self.policy = learner.policy
        self.ppo = learner.ppo
        self.normalizers = learner.normalizers
        self.iteration = 0
        self._position: Position | None = None
        self._returns = Returns.none(envs)

    @property
    def env_steps(self) -> int:
        """Return how many steps were taken in training so far."""
        return self.iteration * self.rollout_steps * self.env.num_envs

    def train(self, steps: int, watch: Callable[[IterationReport], None] | None = None) -> list[float]:
        """Train for at least so many steps more, in whole updates; return the returns of the episodes that ended.

        Episodes begin anew with each call, so going on after ``load`` is going on without it, bit for bit. The entropy
        coefficient falls until the last update of the call. SimicError when what is replayed is not what acted.
        """
        updates = -(-steps // (self.rollout_steps * self.env.num_envs))
        self.ppo.anneal_over(updates)
        self._position, self._returns = None, Returns.none(self.env.num_envs)
        self._cut_log()
        for _ in range(updates):
            report = self._iterate()
            self._write_log(report)
            if watch is not None:
                watch(report)
        return self._returns.finished

    def _iterate(self) -> IterationReport:
        """Collect one rollout and learn from it."""
        rollout, self._position = collect(
            self.env,
            self.policy,
            self.normalizers,
            self.iteration,
            self.rng_seed,
            self.rollout_steps,
            position=self._position,
        )
        ended = rollout.terminated | rollout.truncated
        before = len(self._returns.finished)
        for rewards, ends in zip(rollout.rewards, ended, strict=True):
            self._returns.add(rewards, ends)
        seen = rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid
        rewards = self.normalizers.update(*seen)
        rollout = with_advantages(rollout, rewards, self.settings.gamma, self.settings.gae_lambda)
        metrics = self.ppo.update(rollout, self.iteration)
        if not metrics.first_ratio_ok:
            raise SimicError(f"iteration {self.iteration}: the first ratio is off 1 by {metrics.first_ratio_deviation}")
        self.iteration += 1
        return IterationReport(self.iteration, self.env_steps, self._returns.finished[before:], metrics)

    def evaluate(self, episodes: int = 24, greedy: bool = True) -> list[float]:
        """Play that many episodes in environments of their own and return their returns; equally many of each
        environment, else short episodes would count more.
        """
        env = vectorized(self.make, math.gcd(episodes, self.env.num_envs), self.rng_seed)
        each = episodes // env.num_envs
        observation, _ = env.reset(options={"iteration": PLAY_ITERATION})
        state, tally, step = self.policy.initial_state(env.num_envs), Returns.none(env.num_envs), 0
        returns: list[list[float]] = [[] for _ in range(env.num_envs)]
        while min(map(len, returns)) < each:
            key = rng.key(self.rng_seed, rng.Purpose.ACTION, PLAY_ITERATION, env.env_ids, step)
            noise = rng.uniform(key, (len(self.policy.heads),))
            decision = self.policy.act(self.normalizers.see(observation), state, noise, greedy=greedy)
            observation, reward, terminated, truncated, _ = env.step(decision.actions)
            ended = terminated | truncated
            for index, value in zip(ended.nonzero().flatten().tolist(), tally.add(reward, ended), strict=True):
                returns[index].append(value)
            state, step = decision.state.zeroed(ended), step + 1
            if step > each * LONGEST_EPISODE:
                raise SimicError(f"an episode goes on for {LONGEST_EPISODE} steps: wrap the environment in a TimeLimit")
        env.close()
        return [value for values in returns for value in values[:each]]

    def predict(
        self, observation: Any, state: RecurrentState | None = None, mask: Any = None
    ) -> tuple[Any, RecurrentState]:
        """Return the greedy action for one observation, as the environment takes it, and the memory for the next call.

        ``state`` is the memory of the call before, None at the start of an episode; ``mask`` is what the environment's
        ``action_masks()`` returns, None where it has none. SimicError where they are not of this environment.
        """
        seen = self.normalizers.see(self.env.alone(observation, mask))
        decision = self.policy.act(seen, self.policy.initial_state(1) if state is None else state, greedy=True)
        return self.env.as_taken(decision.actions), decision.state

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all: all tensors, and the settings as JSON in its metadata."""
        card = {
            "format_version": FORMAT_VERSION,
            "env": self.make if isinstance(self.make, str) else None,
            "rng_seed": self.rng_seed,
            "envs": self.env.num_envs,
            "rollout_steps": self.rollout_steps,
            "policy": self.sizes.model_dump(mode="json"),
            "ppo": self.settings.model_dump(mode="json"),
            "iteration": self.iteration,
        }
        durable.replace_file(Path(path), save(self.tensors(), {CARD: json.dumps(card)}))

    @classmethod
    def load(
        cls, path: str | Path, env: Make | None = None, log: str | Path | None = None, envs: int | None = None
    ) -> Self:
        """Load an agent that was saved, to go on exactly from there; ``env`` where it was not made by a registered id,
        ``envs`` for another number of environments side by side.

        SimicError when the file is not readable, is not a saved agent, or is one of another environment.
        """
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
                card = json.loads((file.metadata() or {})[CARD])
            if card["format_version"] != FORMAT_VERSION:
                raise SimicError(f"{path}: format version {card['format_version']}: must be {FORMAT_VERSION}")
            same = {name: card[name] for name in ("rng_seed", "envs", "rollout_steps")}
            same |= {"policy": params.Policy(**card["policy"]), "ppo": params.PPOParams(**card["ppo"])}
            made, iteration = env or card["env"], card["iteration"]
        except OSError as error:
            raise SimicError(f"{path}: not readable: {error.strerror or error}") from None
        except (SafetensorError, ValidationError, ValueError, KeyError, TypeError):
            raise SimicError(f"{path}: not an agent that Agent.save wrote") from None
        if made is None:
            raise SimicError(f"{path}: its environment has no registered id; pass what makes it: Agent.load(path, env)")
        before, same["envs"] = same["envs"], same["envs"] if envs is None else envs
        agent = cls(made, **same, log=log)
        if agent.env.num_envs != before and RUNNING in tensors:
            tensors[RUNNING] = torch.zeros(agent.env.num_envs, dtype=torch.float64)  # episodes begin anew
        refuse_mismatch(str(path), agent.tensors(), tensors)
        agent.ppo.load_state_dict(part_of(tensors, "ppo/"))
        agent.normalizers.load_state_dict(part_of(tensors, "scales/"))
        agent.iteration = iteration
        return agent

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all that learning has changed, by name."""
        parts = {"ppo": self.ppo.state_dict(), "scales": self.normalizers.state_dict()}
        return {f"{part}/{name}": tensor for part, own in parts.items() for name, tensor in own.items()}

    def close(self) -> None:
        """Close the environments of training."""
        self.env.close()

    def _cut_log(self) -> None:
        """Drop rows beyond this agent's steps: they are of a run that was never saved."""
        if self.log is None or not self.log.exists():
            return
        if not self.log.is_file():
            raise SimicError(f"{self.log}: must be a regular file; choose another folder for the log")
        header, *lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) or [""]
        if header and not header.startswith(LOG_BEGINS):
            raise SimicError(f"{self.log}: is a file of another program; choose another folder for the log")
        whole = [line.partition(",")[0] for line in lines if line.endswith("\n")]  # the last may have been cut off
        kept = [lines[k] for k, steps in enumerate(whole) if steps.isdecimal() and int(steps) <= self.env_steps]
        durable.replace_file(self.log, "".join([header, *kept] if kept else []).encode())

    def _write_log(self, report: IterationReport) -> None:
        if self.log is None:
            return
        last = self._returns.finished[-LOG_EPISODES:]
        row = {"env_steps": report.env_steps, "episode_return": math.fsum(last) / len(last) if last else math.nan}
        row |= {"episodes": len(report.returns)} | numbers(asdict(report.metrics))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(row)
