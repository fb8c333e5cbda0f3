"""One iteration of the learner, part by part, from the checkpoint before it and what the environments gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic import params
from simic.audit.reference.agent import acting, advantages, imitation, scales, update
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
        rate = tensors.get("ppo/counter.learning_rate", torch.tensor(train.ppo.learning_rate, dtype=torch.float64))
        optimized = Optimized(weights, first, second, int(tensors["ppo/adam.step"]))
        learner = Learner(
            optimized, int(tensors["ppo/counter.updates"]), int(tensors["ppo/counter.skipped_steps"]), float(rate)
        )
        running = tensors.get("normalizers/reward.running", torch.zeros(train.envs)).tolist()
        return cls(learner, _tally(tensors, "observation"), _tally(tensors, "reward"), tuple(running))

    def network(self, known: Givens) -> Network64:
        """The policy as it is."""
        return Network64(self.learner.optimized.weights, known.interface, known.train.policy)


@dataclass(frozen=True)
class Rescaled:
    """The scales after an episode; what twins differ by, and that in the new scale: ``[T, E]``."""

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
class Taught64:
    """What an update was made of, and what came of it.

    ``log_probs [T, N, factors]``, ``values``, ``advantages`` and ``returns`` ``[T, N]`` of its rows, ``worth [N]`` of
    demonstrations.
    """

    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    worth: tuple[float, ...]
    learned: Learned64


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x.double() for name, x in tensors.items() if name.startswith(prefix)}


def _tally(tensors: Mapping[str, Tensor], part: str) -> Tally64 | None:
    found = _named(tensors, f"normalizers/{part}.")
    return Tally64(float(found["count"]), found["mean"], found["m2"]) if found else None


def act(known: Givens, state: AgentState, transcript: Transcript, mode: Mode) -> Acted:
    """With the weights and the scales from before the episode."""
    return acting.act(transcript, state.network(known), state.observation, known.rng_seed, mode)


def rescale(known: Givens, state: AgentState, transcript: Transcript, twins: int) -> Rescaled:
    """The scales move once, after the episode; its rewards are in the new one."""
    valid = transcript.valid()
    rewards = torch.where(valid, transcript.rewards, 0.0)
    rewards = advantages.above_twins(rewards, valid, twins) if twins > 1 else rewards
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
) -> Taught64:
    """An update of PPO."""
    ppo, valid = known.train.ppo, transcript.valid()
    gained, returns = _over_rows(moved.scaled, acted.values, acted.next_values, transcript, ppo.gamma, ppo.gae_lambda)
    weighed = advantages.standardized(gained, valid)
    rows = _strands(transcript, transcript.env_ids, acted.features, acted.log_probs, weighed, returns, None)
    coefficient = update.entropy_coef(ppo, state.learner.updates, known.train.horizon or known.train.iterations)
    plan = update.reinforcing(ppo, coefficient, len(trail) or None)
    learned = _run(known, state, rows, transcript.iteration, plan, trail)
    told = advantages.summary(gained, returns, acted.values, valid)
    learned = replace(learned, metrics=learned.metrics | told)
    return Taught64(acted.log_probs, acted.values, gained, returns, (), learned)


def imitate(
    known: Givens,
    state: AgentState,
    shown: Sequence[tuple[Transcript, Tensor]],
    moved: Rescaled,
    last: bool,
    trail: Trail = (),
) -> Taught64:
    """Clone all that was shown, each with its rewards over twins, as the present scales and weights see it."""
    worth = imitation.worth([float(total) for _, rewards in shown for total in rewards.sum(dim=0)])
    network, scale = state.network(known), 1.0 if moved.reward is None else scales.reward_scale(moved.reward)
    rows: list[Strand] = []
    parts: list[tuple[Tensor, ...]] = []
    for number, (transcript, rewards) in enumerate(shown):
        seen = acting.act(transcript, network, moved.observation, known.rng_seed, "taught")
        scaled = rewards if moved.reward is None else scales.scaled_rewards(rewards, scale, known.clipped)
        nothing = torch.zeros_like(scaled)
        _, returns = _over_rows(scaled, nothing, nothing, transcript, known.train.ppo.gamma, 1.0)
        gained = torch.where(transcript.valid(), returns - seen.values, 0.0)
        names = [number * known.train.envs + env_id for env_id in transcript.env_ids]
        own = worth[len(rows) : len(rows) + transcript.envs]
        rows += _strands(transcript, names, seen.features, seen.log_probs, gained, returns, own)
        parts.append((seen.log_probs, seen.values, gained, returns, transcript.valid()))
    log_probs, values, gained, returns, valid = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    learned = _run(known, state, rows, shown[-1][0].iteration, update.cloning(last), trail)
    learned = replace(learned, metrics=learned.metrics | advantages.summary(gained, returns, values, valid))
    return Taught64(log_probs, values, gained, returns, tuple(worth), learned)


def _strands(
    transcript: Transcript,
    names: Sequence[int],
    features: Tensor,
    log_probs: Tensor,
    gained: Tensor,
    returns: Tensor,
    worth: Sequence[float] | None,
) -> list[Strand]:
    """One for each environment."""
    valid, starts = transcript.valid(), [t == 0 for t in range(transcript.steps)]
    return [
        Strand(
            name,
            features[:, env],
            transcript.categories[:-1, env],
            transcript.masks_of(env)[:-1],
            transcript.actions[:, env].tolist(),
            valid[:, env].tolist(),
            starts,
            log_probs[:, env],
            gained[:, env].tolist(),
            returns[:, env].tolist(),
            None if worth is None else worth[env],
        )
        for env, name in enumerate(names)
    ]


def _run(
    known: Givens, state: AgentState, rows: list[Strand], iteration: int, plan: Course64, trail: Trail
) -> Learned64:
    lessons = Lessons.of(rows, known.interface, known.train.policy.core != "none")
    return Updating(lessons, known.train, known.rng_seed, iteration, plan).run(state.learner, trail)
