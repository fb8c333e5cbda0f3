"""The agent on any Gymnasium environment: the loop of the trainer without hosts, checkpoints and telemetry."""

from collections.abc import Callable
from dataclasses import dataclass, field

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from simic import params, rng
from simic.agent.advantages import with_advantages
from simic.agent.gym_adapter import GymAdapter
from simic.agent.metrics import UpdateMetrics
from simic.agent.normalization import Normalizers, ObservationNormalizer, RewardNormalizer, ValueNormalizer
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO
from simic.agent.rollout import Position, Rollout, collect
from simic.errors import SimicError

LONGEST_EPISODE = 1_000_000  # steps, in evaluation
EVALUATION_ITERATION = 1 << 42  # a namespace of its own: other starts and other noise than in training


MASK_METHOD, ACTION_SPEC = "action_masks", "action_spec"


def vectorized(make: str | Callable[[], gymnasium.Env], envs: int, rng_seed: int) -> GymAdapter:
    """So many copies of an environment, by its registered name or by what makes one; in this process, one thread.

    An environment with a method ``action_masks()`` is masked, one with an ``action_spec`` has that (``GymAdapter`` says
    what they are).
    """
    try:
        maker = (lambda: gymnasium.make(make)) if isinstance(make, str) else make
        vector = SyncVectorEnv([maker] * envs, autoreset_mode=AutoresetMode.SAME_STEP)
    except (gymnasium.error.Error, ImportError) as error:
        raise SimicError(f"environment {make!r}: {' '.join(str(error).split())}") from None
    first = vector.envs[0]
    mask_method = MASK_METHOD if first.has_wrapper_attr(MASK_METHOD) else None
    spec = first.get_wrapper_attr(ACTION_SPEC) if first.has_wrapper_attr(ACTION_SPEC) else None
    try:
        return GymAdapter(vector, rng_seed, mask_method=mask_method, action_spec=spec)
    except SimicError as error:
        raise SimicError(f"environment {first.unwrapped.spec.id if first.unwrapped.spec else first}: {error}") from None


@dataclass
class Returns:
    """Undiscounted returns of episodes that go on from rollout to rollout."""

    running: Tensor  # [E] float64
    finished: list[float] = field(default_factory=list)

    @classmethod
    def none(cls, envs: int) -> "Returns":
        return cls(torch.zeros(envs, dtype=torch.float64))

    def add(self, rewards: Tensor, ended: Tensor) -> list[float]:
        """One step ``[E]``; the returns of the episodes it ended."""
        self.running = self.running + rewards
        done = self.running[ended].tolist()
        self.running = self.running.masked_fill(ended, 0.0)
        self.finished += done
        return done


@dataclass(frozen=True)
class IterationReport:
    """What one iteration came to: environment steps so far, returns of the episodes that ended in it, the update."""

    iteration: int
    env_steps: int
    returns: list[float]
    metrics: UpdateMetrics


class Learner:
    """Policy, scales and optimizer of one run; ``iterate`` is one rollout of ``steps`` steps and one update."""

    def __init__(
        self,
        env: GymAdapter,
        sizes: params.Policy,
        settings: params.PPOParams,
        rng_seed: int,
        iterations: int,
        steps: int,
    ) -> None:
        self.env, self.settings, self.rng_seed, self.steps = env, settings, rng_seed, steps
        self.policy = ActorCritic(env.action_spec, env.observation_spec, sizes, rng_seed)
        self.ppo = PPO(self.policy, settings, rng_seed, total_updates=iterations)
        momentum = settings.observation_momentum
        self.normalizers = Normalizers(
            ObservationNormalizer(env.observation_spec, momentum=momentum) if settings.normalize_observations else None,
            RewardNormalizer(env.num_envs, settings.gamma) if settings.normalize_rewards else None,
            ValueNormalizer() if settings.normalize_values else None,
        )
        self.position: Position | None = None
        self.returns = Returns.none(env.num_envs)
        self.iteration = 0

    def iterate(self) -> IterationReport:
        """SimicError when what is replayed is not what acted."""
        rollout, self.position = collect(
            self.env,
            self.policy,
            self.normalizers,
            self.iteration,
            self.rng_seed,
            self.steps,
            position=self.position,
        )
        ended = rollout.terminated | rollout.truncated
        before = len(self.returns.finished)
        for rewards, ends in zip(rollout.rewards, ended, strict=True):
            self.returns.add(rewards, ends)
        metrics = self.ppo.update(self._with_advantages(rollout), self.iteration)
        if not metrics.first_ratio_ok:
            raise SimicError(f"iteration {self.iteration}: the first ratio is off 1 by {metrics.first_ratio_deviation}")
        self.iteration += 1
        env_steps = self.iteration * self.steps * self.env.num_envs
        return IterationReport(self.iteration, env_steps, self.returns.finished[before:], metrics)

    def _with_advantages(self, rollout: Rollout) -> Rollout:
        settings, scales = self.settings, self.normalizers
        rewards = scales.update(rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid)
        return with_advantages(rollout, rewards, settings.gamma, settings.gae_lambda, scales.value)

    def evaluate(self, env: GymAdapter, episodes: int, greedy: bool = True) -> list[float]:
        """Returns of that many whole episodes, equally many of each environment (else short ones would count more).

        In the environments of training it ends the episodes that are under way.
        """
        if env is self.env:
            self.position, self.returns.running = None, torch.zeros_like(self.returns.running)
        each, rest = divmod(episodes, env.num_envs)
        if rest:
            raise SimicError(f"episodes = {episodes}: must be a multiple of the {env.num_envs} environments")
        observation, _ = env.reset(options={"iteration": EVALUATION_ITERATION})
        state, tally, step = self.policy.initial_state(env.num_envs), Returns.none(env.num_envs), 0
        found: list[list[float]] = [[] for _ in range(env.num_envs)]
        while min(map(len, found)) < each:
            key = rng.key(self.rng_seed, rng.Purpose.ACTION, EVALUATION_ITERATION, env.env_ids, step)
            noise = rng.uniform(key, (len(self.policy.heads),))
            decision = self.policy.act(self.normalizers.see(observation), state, noise, greedy=greedy)
            observation, reward, terminated, truncated, _ = env.step(decision.actions)
            ended = terminated | truncated
            for index, value in zip(ended.nonzero().flatten().tolist(), tally.add(reward, ended), strict=True):
                found[index].append(value)
            state, step = decision.state.zeroed(ended), step + 1
            if step > each * LONGEST_EPISODE:
                raise SimicError(f"an episode goes on for {LONGEST_EPISODE} steps: wrap the environment in a TimeLimit")
        return [value for values in found for value in values[:each]]
