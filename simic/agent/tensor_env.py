"""Vector environments on tensors of any device."""

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from simic.agent.checked_env import MASK_NAMES, refuse_no_space
from simic.agent.gym_adapter import ACTION_SPEC, AdapterInfo, GymAdapter, by_head
from simic.agent.repeatable import TRAINING, episode_seed
from simic.agent.spec import Observation
from simic.errors import SimicError

ENTRY_POINT = "vector_entry_point"
NEEDED = (
    f"must be a registered id with a {ENTRY_POINT}, or a function of the number of environments that makes a"
    " gymnasium.vector.VectorEnv"
)
INNER = "own."  # of the names of what an environment saves itself


class TensorEnv(GymAdapter):
    """Adapt a vector environment on tensors.

    Autoreset is SAME_STEP with ``info["final_obs"]``; observations are ``[E, …]``, masks what ``action_masks()``
    returns. With ``state_dict`` and ``load_state_dict`` of its own it goes on where it was.
    """

    def __init__(
        self, env: VectorEnv, rng_seed: int, env_ids: Tensor, namespace: int = TRAINING
    ) -> None:
        refuse_no_space(env, "single_observation_space", "single_action_space")
        super().__init__(env, rng_seed, env_ids, getattr(env, ACTION_SPEC, None))
        if not self.layout.is_box:
            raise SimicError(
                f"observation space {self.layout.space}: of a vector environment on tensors it must be a Box"
            )
        if len(self.action_layout.leaves) > 1:
            raise SimicError(
                f"action space {self.action_layout.space}: of a vector environment on tensors it must not be nested"
            )
        # All environments are seeded together, by the first one's name.
        self._seed = episode_seed(rng_seed, namespace, int(env_ids[0]), 0)
        self._legal = getattr(env, MASK_NAMES[0], None)
        self.mask_source = self._legal and f"{MASK_NAMES[0]}()"
        self.reset()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Any]:
        """Start every environment anew, always alike."""
        values, info = self.env.reset(seed=self._seed)
        if not isinstance(values, Tensor):
            raise SimicError(f"reset() observes a {type(values).__name__}: must be a torch.Tensor")
        self.env_ids = self.env_ids.to(values.device)
        self.returns = torch.zeros(self.num_envs, dtype=torch.float64, device=values.device)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=values.device)
        self.seen = self._observed(values)
        return self.seen, info

    def step(self, actions: Tensor, /) -> tuple[Observation, Tensor, Tensor, Tensor, AdapterInfo]:
        """Take a step with actions ``[E, width]``."""
        # A Discrete space wants a number, not a row, and each its own type.
        space = self.env.single_action_space
        kind = torch.from_numpy(np.zeros(0, space.dtype)).dtype
        actions = self.action_spec.to_env(actions).to(kind)
        actions = actions.view(self.num_envs, *(space.shape or ()))
        values, rewards, terminated, truncated, info = self.env.step(actions)
        rewards = rewards.float()  # as they are recorded, so that returns are their sums
        ended = terminated | truncated
        self.returns = self.returns + rewards
        self._lengths = torch.where(ended, 0, self._lengths + 1)
        self.seen = self._observed(values)
        # Asked once a step: on a GPU each question waits for all that was queued.
        events = AdapterInfo(None)
        if bool(ended.any()):
            # Only truncated episodes need their last observation: a terminal state is worth 0.
            final = info.get("final_obs") if bool((truncated & ~terminated).any()) else None
            last = None if final is None else self._split(final, {})
            events = AdapterInfo(last, tuple(self.returns[ended].tolist()))
            self.returns = torch.where(ended, 0.0, self.returns)
        return self.seen, rewards, terminated, truncated, events

    def rows(
        self, observations: Sequence[Any] | np.ndarray, masks: Sequence[Any] | np.ndarray | None
    ) -> Observation:
        """Make rows as ``GymAdapter``, on the device of the environments."""
        observation = super().rows(observations, masks)
        return observation.map(lambda x: x.to(self.env_ids.device))

    def _split(self, values: Tensor, masks: dict[str, Tensor]) -> Observation:
        """Make rows of observations: of pixels or of features, as the space is a Box."""
        spec = self.observation_spec
        rows = values.reshape(self.num_envs, -1)
        categories = torch.zeros(self.num_envs, 0, dtype=torch.int64, device=rows.device)
        features = rows[:, spec.pixels :].to(getattr(torch, spec.dtype))
        pixels = rows.to(getattr(torch, spec.pixel_dtype)) if spec.pixels else None
        return Observation(features, categories, masks, pixels=pixels)

    def _observed(self, values: Tensor) -> Observation:
        masks = {} if self._legal is None else self._legal()
        if isinstance(masks, Tensor):
            masks = by_head(self.action_spec, masks, MASK_NAMES[0])
        self.masked = tuple(masks)
        self.action_spec.check_masks(masks, self.num_envs)
        return self._split(values, masks)

    def state_dict(self) -> dict[str, Tensor]:
        """Copy what the environment itself saves, and its returns."""
        state = getattr(self.env, "state_dict", dict)()
        return {f"{INNER}{name}": tensor for name, tensor in state.items()} | {
            "returns": self.returns.clone(),
            "running_steps": self._lengths.clone(),
            "features": self.seen.numbers.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Observation:
        """Go on from there; SimicError where the environment cannot, or observes something else."""
        # The reset sets what the environment does not save, as the place of its tensors.
        self.reset()
        inner = {
            name.removeprefix(INNER): tensor
            for name, tensor in state.items()
            if name.startswith(INNER)
        }
        if not inner:
            raise SimicError(
                "the vector environment has no state_dict, so its episodes cannot go on"
            )
        self.seen = self._observed(self.env.load_state_dict(inner))
        self.returns = state["returns"].to(self.env_ids.device)
        self._lengths = state["running_steps"].to(self.env_ids.device)
        # An environment that saved too little would go on from another state without a word.
        if not torch.equal(self.seen.numbers.cpu(), state["features"].cpu()):
            raise SimicError("the vector environment observes something else after load_state_dict")
        return self.seen


def on_tensors(
    make: Any,
    rng_seed: int,
    env_ids: Tensor,
    namespace: int = TRAINING,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> TensorEnv:
    """Make a vector environment on tensors.

    Args:
        make: A registered id with a ``vector_entry_point``, or a function of the number of environments.
        rng_seed: Keys its seed.
        env_ids: Numbers of the environments, int64 ``[E]``.
        namespace: Of its episodes.
        options: Keyword arguments of what is registered.

    Raises:
        SimicError: It cannot be made, or not be learned from.
    """
    env = _made(make, len(env_ids), options)
    count = getattr(env, "num_envs", None)
    if not isinstance(env, VectorEnv) or count != len(env_ids):
        kind = f"{type(env).__name__} of {count or 'no'} environments"
        raise SimicError(f"environment {make!r}: makes a {kind}, not {len(env_ids)}; {NEEDED}")
    try:
        return TensorEnv(env, rng_seed, env_ids, namespace)
    except SimicError as error:
        raise SimicError(f"environment {make!r}: {error}") from None


def _made(make: Any, envs: int, options: Mapping[str, Any]) -> Any:
    """Make the environment; SimicError where ``make`` is no such id and no such function."""
    try:
        if isinstance(make, str):
            # Without wrappers: Gymnasium's are for arrays.
            return gymnasium.make_vec(make, envs, ENTRY_POINT, **options)
        inspect.signature(make).bind(envs)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SimicError(f"environment {make!r}: {reason}; {NEEDED}") from None
    return make(envs)
