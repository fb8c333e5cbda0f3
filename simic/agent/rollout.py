"""Rollouts: observations, decisions and rewards exactly as they were when acting, and how they are collected."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from simic import rng
from simic.agent.core import RecurrentState
from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, Decision
from simic.agent.spec import ActionSpec, Observation

Info = TypeVar("Info", covariant=True)


class Environment(Protocol[Info]):
    """E environments side by side. ``step`` takes actions ``[E, width]``; rewards and flags are ``[E]``.

    With autoreset SAME_STEP the observation of an ended row already belongs to the next episode, and ``info.final``
    holds the true last observations (None when none was truncated). With DISABLED an ended row
    stays over until ``reset``.
    """

    metadata: dict[str, Any]
    num_envs: int
    env_ids: Tensor

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, object]: ...

    def step(self, actions: Tensor, /) -> tuple[Observation, Tensor, Tensor, Tensor, Info]: ...


class Position(NamedTuple):
    """Where a rollout ended and the next may go on: raw observation, memory, and rows that start anew, without any."""

    observation: Observation
    state: RecurrentState
    starts: Tensor

    @classmethod
    def first(cls, env: "Environment[Any]", policy: ActorCritic, observation: Observation) -> Self:
        """Begin after a reset: nothing is remembered, and every row starts.

        Args:
            env: E environments.
            policy: Knows what an empty memory looks like.
            observation: The first one, raw ``[E, ·]``.
        """
        starts = torch.ones(env.num_envs, dtype=torch.bool, device=observation.features.device)
        return cls(observation, policy.initial_state(env.num_envs), starts)


@dataclass(frozen=True)
class Rollout:
    """T steps of E environments. Rows where ``valid`` is False lie behind the end of their episode and mean nothing.

    ``next_values`` is V of the state each step led to, before any reset, under the memory of that moment.
    """

    env_ids: Tensor  # [E] int64, global
    state: RecurrentState  # at step 0
    features: Tensor  # [T, E, D] normalised, as seen; 0 where not valid
    raw_features: Tensor  # [T, E, D]
    pixels: Tensor  # [T, E, P], as observed; P may be 0
    categories: Tensor  # [T, E, C] int64
    privileged: Tensor  # [T, E, n] int64, what the critic alone sees; n may be 0
    masks: dict[str, Tensor]  # [T, E, ...] bool
    actions: Tensor  # [T, E, width], as sampled
    log_probs: Tensor  # [T, E, heads] when acting
    values: Tensor  # [T, E]
    next_values: Tensor  # [T, E]
    rewards: Tensor  # [T, E] as paid
    terminated: Tensor  # [T, E] bool
    truncated: Tensor  # [T, E] bool
    valid: Tensor  # [T, E] bool
    starts: Tensor  # [T, E] bool: first step of an episode
    starts_inside: bool  # any start after the first step
    advantages: Tensor | None = None  # [T, E]
    returns: Tensor | None = None  # [T, E]

    @classmethod
    def empty(
        cls,
        steps: int,
        env_ids: Tensor,
        observation: Observation,
        state: RecurrentState,
        spec: ActionSpec,
        raw: Tensor,
    ) -> Self:
        """Allocate all memory at once.

        Args:
            steps: T.
            env_ids: Global numbers of the environments, int64 ``[E]``.
            observation: The first one ``[E, ·]``, normalised, which tells shapes and device.
            state: The memory at its first step, ``[E, H]``.
            spec: Of the actions.
            raw: Features before normalisation, ``[E, D]``.
        """
        like = observation.features
        # Each step is written into its place: nothing is stacked at the end, which would hold all of it twice.

        def buffer(*shape: int, dtype: torch.dtype = like.dtype) -> Tensor:
            return torch.zeros(steps, len(env_ids), *shape, dtype=dtype, device=like.device)

        # Which heads are masked does not change within a run.
        masks = {
            name: buffer(*mask.shape[1:], dtype=torch.bool)
            for name, mask in observation.masks.items()
        }
        privileged = 0 if observation.privileged is None else observation.privileged.shape[1]
        pixels = like[:, :0] if observation.pixels is None else observation.pixels
        # Float32 at least: with fewer digits returns would lose what distinguishes actions.
        value_type = torch.promote_types(state.h.dtype, torch.float32)
        scalars = ("values", "next_values", "rewards")
        flags = ("terminated", "truncated", "starts")
        return cls(
            env_ids=env_ids,
            state=state,
            features=buffer(like.shape[1]),
            raw_features=buffer(raw.shape[1], dtype=raw.dtype),
            pixels=buffer(pixels.shape[1], dtype=pixels.dtype),
            categories=buffer(observation.categories.shape[1], dtype=torch.int64),
            privileged=buffer(privileged, dtype=torch.int64),
            masks=masks,
            actions=buffer(spec.width, dtype=spec.dtype),
            log_probs=buffer(len(spec.heads), dtype=value_type),
            **{name: buffer(dtype=value_type) for name in scalars},
            **{name: buffer(dtype=torch.bool) for name in flags},
            valid=buffer(dtype=torch.bool).fill_(True),
            starts_inside=False,
        )

    def record_observation(
        self,
        t: int,
        raw: Observation,
        normalized: Observation,
        starts: Tensor,
        valid: Tensor | None,
    ) -> None:
        """Record the observation of a step.

        Args:
            t: Number of the step.
            raw: Before normalisation, ``[E, ·]``.
            normalized: As the policy reads it.
            starts: First steps of episodes, bool ``[E]``.
            valid: Rows that are not over, bool ``[E]``; the others become 0, as a NaN there would reach the weights
                through the core. None: none is over.
        """
        self.features[t] = normalized.features
        self.raw_features[t] = raw.features
        if self.categories.shape[-1]:
            self.categories[t] = normalized.categories
        if normalized.pixels is not None:
            self.pixels[t] = normalized.pixels
        if normalized.privileged is not None:
            self.privileged[t] = normalized.privileged
        for name, mask in normalized.masks.items():
            self.masks[name][t] = mask
        self.starts[t] = starts
        if valid is not None:
            self.valid[t] = valid
            self.features[t].masked_fill_(~valid[:, None], 0.0)
            self.categories[t].masked_fill_(~valid[:, None], -1)
            self.pixels[t].masked_fill_(~valid[:, None], 0)

    def record_decision(
        self,
        t: int,
        decision: Decision,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        valid: Tensor | None,
    ) -> None:
        """Record the decisions of a step and their results.

        Args:
            t: Number of the step.
            decision: What the policy chose.
            reward: As paid, ``[E]``.
            terminated: Bool ``[E]``, like ``truncated``.
            truncated: Rows whose episode was cut off.
            valid: As ``record_observation``.
        """
        self.actions[t] = decision.actions
        self.log_probs[t] = decision.log_probs
        self.values[t] = decision.value
        self.rewards[t] = reward
        self.terminated[t] = terminated
        self.truncated[t] = truncated
        # A row that is over pays and ends nothing, whatever the environment still answers for it.
        if valid is not None:
            for answer in (self.rewards, self.terminated, self.truncated):
                answer[t].masked_fill_(~valid, 0)

    def observation(self) -> Observation:
        """Put together all steps as the policy saw them."""
        privileged = self.privileged if self.privileged.shape[-1] else None
        pixels = self.pixels if self.pixels.shape[-1] else None
        return Observation(self.features, self.categories, self.masks, privileged, pixels)

    def select(self, rows: Tensor) -> "Rollout":
        """Select the environments at these positions, whole rows."""
        selection = self._map_steps(lambda x: x.index_select(1, rows))
        return replace(selection, env_ids=self.env_ids[rows], state=self.state.select(rows))

    def single_steps(self) -> "Rollout":
        """Make every step a row of its own, ``[1, T·E]``, for a policy without memory."""
        steps, envs = self.valid.shape
        # Without a core there is no state, but its tensors of width 0 need as many rows.
        flat = self._map_steps(lambda x: x.flatten(0, 1)[None])
        state = RecurrentState(
            *(part.new_zeros(steps * envs, part.shape[1]) for part in self.state)
        )
        return replace(
            flat, env_ids=single_step_ids(self.env_ids, steps), state=state, starts_inside=False
        )

    def _map_steps(self, function: Callable[[Tensor], Tensor]) -> "Rollout":
        """Change all tensors that have an entry for each step, alike."""
        tensors = {
            name: function(x)
            for name, x in vars(self).items()
            if isinstance(x, Tensor) and name != "env_ids"
        }
        masks = {name: function(mask) for name, mask in self.masks.items()}
        return replace(self, masks=masks, **tensors)


@dataclass(frozen=True)
class StepRecord:
    """One step of all environments, for those who watch."""

    step: int
    decision: Decision
    reward: Tensor
    info: Any


def single_step_ids(env_ids: Tensor, steps: int) -> Tensor:
    """Number every step of every environment ``[T·E]``, in the order of ``Rollout.single_steps``."""
    return (env_ids * steps + torch.arange(steps, device=env_ids.device)[:, None]).flatten()


def collect(
    env: Environment,
    policy: ActorCritic,
    normalizers: Normalizers,
    iteration: int,
    rng_seed: int,
    steps: int,
    on_step: Callable[[StepRecord], None] | None = None,
    position: Position | None = None,
) -> tuple[Rollout, Position]:
    """Act for some steps with frozen normalisers.

    Args:
        env: E environments.
        policy: Samples the actions.
        normalizers: Scales of the observations.
        iteration: Keys the noise of each draw, together with ``rng_seed``, the global environment and the step; so
            grouping and history do not matter.
        rng_seed: See ``iteration``.
        steps: T.
        on_step: Is called after each step.
        position: Where the episodes go on; None: the environments are reset and nothing is remembered.

    Returns:
        The rollout, and where it ended.
    """
    # Begin where the last rollout ended, or anew.
    if position is None:
        position = Position.first(env, policy, env.reset(options={"iteration": iteration})[0])
    observation, state, starts = position
    # Once is enough: the buffers take their shapes from the first observation.
    policy.action_spec.check_masks(observation.masks, env.num_envs)
    rollout = Rollout.empty(
        steps,
        env.env_ids,
        normalizers.see(observation),
        state,
        policy.action_spec,
        observation.features,
    )
    # Rows that start anew at once are never over.
    autoreset = env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    valid = None if autoreset else torch.ones_like(starts)

    # Noise of all steps at once, [T, E, width]: drawing it step by step costs a launch each, for the same numbers.
    time = torch.arange(steps, device=env.env_ids.device)[:, None]
    stream = rng.key(rng_seed, rng.Purpose.ACTION, iteration, env.env_ids, time, device=time.device)
    noise = rng.uniform(stream, (policy.action_spec.width,))

    for t in range(steps):
        # Decide and act.
        normalized = normalizers.see(observation)
        rollout.record_observation(t, observation, normalized, starts, valid)
        decision = policy.act(normalized, state, noise[t], valid=valid)
        observation, reward, terminated, truncated, info = env.step(decision.actions)
        rollout.record_decision(t, decision, reward, terminated, truncated, valid)

        # Rows that ended start anew at once, or are over until the next reset.
        state = decision.state
        ended = terminated | truncated
        if autoreset:
            # What a truncated episode would still have earned: its last observation, under the memory of that moment.
            if info.final is not None:
                rollout.next_values[t] = policy.value(normalizers.see(info.final), state)
            starts = ended
            if policy.has_memory:
                state = state.zeroed(starts)
        if valid is not None:
            starts = torch.zeros_like(starts)
            valid = valid & ~ended
        if on_step is not None:
            on_step(StepRecord(t, decision, reward, info))

    # V(s') is that of the next step, except where an autoreset put another episode's state there.
    value_after = policy.value(normalizers.see(observation), state)
    following = torch.cat((rollout.values[1:], value_after[None]))
    replaced = (rollout.terminated | rollout.truncated) & autoreset
    rollout.next_values.copy_(torch.where(replaced, rollout.next_values, following))
    rollout = replace(rollout, starts_inside=autoreset and bool(rollout.starts[1:].any()))
    return rollout, Position(observation, state, starts)
