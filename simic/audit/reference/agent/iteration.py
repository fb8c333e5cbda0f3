"""One iteration of the learner, part by part, from the checkpoint before it and what the environments gave."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic import params
from simic.audit.reference.agent import acting, advantages, scales, update
from simic.audit.reference.agent.acting import Acted, Mode
from simic.audit.reference.agent.adam import Optimized
from simic.audit.reference.agent.batch import Lessons, Strand
from simic.audit.reference.agent.interface import Interface
from simic.audit.reference.agent.network import Network64
from simic.audit.reference.agent.scales import Tally64
from simic.audit.reference.agent.transcript import Transcript
from simic.audit.reference.agent.update import Course64, Learned64, Learner, Trail, Updating

POLICY, FIRST, SECOND = "ppo/policy.", "ppo/adam.exp_avg.", "ppo/adam.exp_avg_sq."


@dataclass(frozen=True)
class Givens:
    """All that does not change; ``clipped``: whether scaled rewards are."""

    interface: Interface
    train: params.Train
    rng_seed: int
    clipped: bool


@dataclass(frozen=True)
class AgentState:
    """Of a checkpoint what the learner goes on from, in float64; scales are None where nothing is scaled."""

    learner: Learner
    observation: Tally64 | None
    reward: Tally64 | None
    running: tuple[float, ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], train: params.Train) -> "AgentState":
        """By the names of a checkpoint's tensors."""
        weights, first, second = (_named(tensors, prefix) for prefix in (POLICY, FIRST, SECOND))
        optimized = Optimized(weights, first, second, int(tensors["ppo/adam.step"]))
        updates, skipped = (int(tensors[f"ppo/counter.{name}"]) for name in ("updates", "skipped_steps"))
        learner = Learner(optimized, updates, skipped, train.ppo.learning_rate)
        running = tensors.get("normalizers/reward.running", torch.zeros(train.envs)).tolist()
        return cls(learner, _tally(tensors, "observation"), _tally(tensors, "reward"), tuple(running))

    def network(self, known: Givens) -> Network64:
        """The policy as it is."""
        return Network64(self.learner.optimized.weights, known.interface, known.train.policy)


@dataclass(frozen=True)
class Rescaled:
    """The scales after an episode; its rewards, and those in the new scale: ``[T, E]``."""

    observation: Tally64 | None
    reward: Tally64 | None
    running: tuple[float, ...]
    rewards: Tensor
    scaled: Tensor

    def unit(self, transcript: Transcript) -> float:
        """The largest reward that was paid, in the new scale."""
        paid = float(transcript.rewards.abs().max())
        return paid if self.reward is None else paid / scales.reward_scale(self.reward)


@dataclass(frozen=True)
class Updated64:
    """``advantages`` and ``returns`` ``[T, E]`` that an update was made of, and what came of it."""

    advantages: Tensor
    returns: Tensor
    learned: Learned64


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x.double() for name, x in tensors.items() if name.startswith(prefix)}


def _tally(tensors: Mapping[str, Tensor], part: str) -> Tally64 | None:
    found = _named(tensors, f"normalizers/{part}.")
    return Tally64(float(found["count"]), found["mean"], found["m2"]) if found else None


def act(known: Givens, state: AgentState, transcript: Transcript, mode: Mode) -> Acted:
    """With the weights and the scales from before the episode."""
    return acting.act(transcript, state.network(known), state.observation, known.rng_seed, mode)


def rescale(known: Givens, state: AgentState, transcript: Transcript) -> Rescaled:
    """The scales move once, after the episode; its rewards are in the new one."""
    valid = transcript.valid()
    rewards = torch.where(valid, transcript.rewards, 0.0)
    observation = state.observation
    if observation is not None:
        rows = [transcript.features[t, env] for t, env in valid.nonzero().tolist()]
        observation = observation.with_rows(rows)
    if state.reward is None:
        return Rescaled(observation, None, state.running, rewards, rewards)
    starts = [t == 0 for t in range(transcript.steps)]
    sums = [
        scales.discounted(rewards[:, env].tolist(), starts, state.running[env], known.train.ppo.gamma)
        for env in range(transcript.envs)
    ]
    counted = [torch.tensor([sums[env][t]], dtype=torch.float64) for t, env in valid.nonzero().tolist()]
    reward = state.reward.with_rows(counted)
    scaled = scales.scaled_rewards(rewards, scales.reward_scale(reward), known.clipped)
    return Rescaled(observation, reward, tuple(each[-1] for each in sums), rewards, scaled)


def _over_rows(
    rewards: Tensor, values: Tensor, following: Tensor, transcript: Transcript, gamma: float, decay: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns ``[T, E]``, row by row."""
    terminated, truncated, valid = transcript.terminated, transcript.truncated, transcript.valid()
    found = [
        advantages.generalized(
            rewards[:, env].tolist(),
            values[:, env].tolist(),
            following[:, env].tolist(),
            terminated[:, env].tolist(),
            truncated[:, env].tolist(),
            valid[:, env].tolist(),
            gamma,
            decay,
        )
        for env in range(transcript.envs)
    ]
    both = torch.tensor(found, dtype=torch.float64)
    return both[:, 0].T, both[:, 1].T


def reinforce(
    known: Givens, state: AgentState, transcript: Transcript, acted: Acted, moved: Rescaled, trail: Trail
) -> Updated64:
    """An update of PPO."""
    ppo, valid = known.train.ppo, transcript.valid()
    gained, returns = _over_rows(moved.scaled, acted.values, acted.next_values, transcript, ppo.gamma, ppo.gae_lambda)
    weighed = advantages.standardized(gained, _decided(known, transcript))
    rows = _strands(transcript, acted, weighed, returns)
    total = known.train.horizon or known.train.iterations
    coefficient = update.entropy_coef(ppo, state.learner.updates, total)
    plan = update.reinforcing(ppo, coefficient, len(trail) or None)
    learner = replace(state.learner, rate=update.learning_rate(ppo, state.learner, total))
    learned = _run(known, learner, rows, transcript.iteration, plan, trail)
    told = advantages.summary(gained, returns, acted.values, valid)
    learned = replace(learned, metrics=learned.metrics | told)
    return Updated64(gained, returns, learned)


def _decided(known: Givens, transcript: Transcript) -> Tensor:
    """Bool ``[T, E]``: the steps in which more than one choice of some factor that mattered was legal."""
    found = torch.zeros(transcript.steps, transcript.envs, dtype=torch.bool)
    valid = transcript.valid()
    for env in range(transcript.envs):
        masks, actions = transcript.masks_of(env), transcript.actions[:, env].tolist()
        for t in valid[:, env].nonzero().flatten().tolist():
            found[t, env] = known.interface.decides(masks[t], actions[t])
    return found


def _strands(transcript: Transcript, acted: Acted, gained: Tensor, returns: Tensor) -> list[Strand]:
    """One for each environment."""
    valid, starts = transcript.valid(), [t == 0 for t in range(transcript.steps)]
    return [
        Strand(
            name,
            acted.features[:, env],
            transcript.categories[:-1, env],
            transcript.told[:-1, env],
            transcript.masks_of(env)[:-1],
            transcript.actions[:, env].tolist(),
            valid[:, env].tolist(),
            starts,
            acted.log_probs[:, env],
            gained[:, env].tolist(),
            returns[:, env].tolist(),
        )
        for env, name in enumerate(transcript.env_ids)
    ]


def _run(
    known: Givens, learner: Learner, rows: list[Strand], iteration: int, plan: Course64, trail: Trail
) -> Learned64:
    lessons = Lessons.of(rows, known.interface, known.train.policy.core != "none")
    return Updating(lessons, known.train, known.rng_seed, iteration, plan).run(learner, trail)
