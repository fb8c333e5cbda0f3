"""A rollout: what the policy saw, did and got, exactly as it was when acting."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from simic.agent.policy import ActorCritic, RecurrentState, Step
from simic.agent.spec import Observation

Info = TypeVar("Info", covariant=True)


class Environment(Protocol[Info]):
    """E environments side by side. ``step`` takes indices ``[E, heads]``; rewards and flags are ``[E]``.

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


@dataclass(frozen=True)
class Position:
    """Where a rollout ended and the next may go on: raw observation, memory, and rows that start anew, without any."""

    observation: Observation
    state: RecurrentState
    starts: Tensor

    @classmethod
    def first(cls, env: "Environment[Any]", policy: ActorCritic, observation: Observation) -> Self:
        """Return the position after a reset: nothing is remembered, and every row starts."""
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
    categories: Tensor  # [T, E, C] int64
    told: Tensor  # [T, E, n] int64, what the critic alone is told; n may be 0
    masks: dict[str, Tensor]  # [T, E, ...] bool
    actions: Tensor  # [T, E, heads] int64, as sampled
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
    def empty(cls, steps: int, env_ids: Tensor, seen: Observation, state: RecurrentState, heads: int) -> Self:
        """Allocate all memory at once, shaped and placed like the first observation seen."""
        rows = (steps, len(env_ids))
        like = seen.features

        def buffer(*shape: int, dtype: torch.dtype = like.dtype) -> Tensor:
            return torch.zeros(*rows, *shape, dtype=dtype, device=like.device)

        masks = {name: buffer(*mask.shape[1:], dtype=torch.bool) for name, mask in seen.masks.items()}
        value_type = torch.promote_types(state.h.dtype, torch.float32)
        scalars = ("values", "next_values", "rewards")
        flags = ("terminated", "truncated", "valid", "starts")
        return cls(
            env_ids=env_ids,
            state=state,
            features=buffer(like.shape[1]),
            raw_features=buffer(like.shape[1]),
            categories=buffer(seen.categories.shape[1], dtype=torch.int64),
            told=buffer(0 if seen.told is None else seen.told.shape[1], dtype=torch.int64),
            masks=masks,
            actions=buffer(heads, dtype=torch.int64),
            log_probs=buffer(heads, dtype=value_type),
            **{name: buffer(dtype=value_type) for name in scalars},
            **{name: buffer(dtype=torch.bool) for name in flags},
            starts_inside=False,
        )

    def record_seen(self, t: int, raw: Observation, seen: Observation, starts: Tensor, valid: Tensor) -> None:
        """Record the observations decided on. Rows that are over are 0: a NaN there would reach the weights through the
        core.
        """
        self.features[t] = torch.where(valid[:, None], seen.features, 0.0)
        self.raw_features[t] = raw.features
        self.categories[t] = torch.where(valid[:, None], seen.categories, -1)
        if seen.told is not None:
            self.told[t] = seen.told
        for name, mask in seen.masks.items():
            self.masks[name][t] = mask
        self.starts[t], self.valid[t] = starts, valid

    def record_done(self, t: int, step: Step, reward: Tensor, terminated: Tensor, truncated: Tensor) -> None:
        """Record the decisions and their results."""
        valid = self.valid[t]
        self.actions[t], self.log_probs[t], self.values[t] = step.actions, step.log_probs, step.value
        self.rewards[t] = torch.where(valid, reward, 0.0).to(self.rewards.dtype)
        self.terminated[t], self.truncated[t] = terminated & valid, truncated & valid

    def observation(self) -> Observation:
        """Return all steps as the policy saw them."""
        return Observation(self.features, self.categories, self.masks, self.told if self.told.shape[-1] else None)

    def select(self, rows: Tensor) -> "Rollout":
        """Return the environments at these positions, whole rows."""
        chosen = self._changed(lambda x: x.index_select(1, rows))
        return replace(chosen, env_ids=self.env_ids[rows], state=self.state.select(rows))

    def single_steps(self) -> "Rollout":
        """Return every step as a row of its own, ``[1, T·E]``, for a policy without memory."""
        steps, envs = self.valid.shape
        flat = self._changed(lambda x: x.flatten(0, 1)[None])
        state = RecurrentState(*(part.new_zeros(steps * envs, part.shape[1]) for part in self.state))
        return replace(flat, env_ids=single_step_ids(self.env_ids, steps), state=state, starts_inside=False)

    def by_step(self) -> dict[str, Tensor]:
        """Return all tensors that have an entry for each step, by name; those of masks are ``masks.…``."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "env_ids"}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        return tensors | {f"masks.{name}": mask for name, mask in self.masks.items()}

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Rollout":
        """Return the rollout with all tensors of ``by_step`` changed alike."""
        tensors = {name: change(x) for name, x in self.by_step().items()}
        masks = {name: tensors.pop(f"masks.{name}") for name in self.masks}
        return replace(self, masks=masks, **tensors)


@dataclass(frozen=True)
class StepRecord:
    """One step of all environments, for those who watch."""

    step: int
    decision: Step
    reward: Tensor
    info: Any


def single_step_ids(env_ids: Tensor, steps: int) -> Tensor:
    """Return a number for every step of every environment ``[T·E]``, in the order of ``Rollout.single_steps``."""
    return (env_ids * steps + torch.arange(steps, device=env_ids.device)[:, None]).flatten()
