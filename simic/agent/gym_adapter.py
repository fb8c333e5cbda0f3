"""A Gymnasium vector environment as ``collect`` wants it."""

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate
from torch import Tensor

from simic import rng
from simic.agent.action_space import ActionLayout, heads_of
from simic.agent.checked_env import CheckedEnv
from simic.agent.spaces import declared, layout_of
from simic.agent.spec import ActionSpec, Observation
from simic.errors import SimicError
from simic.transfer import as_array

# A registered id; a function without arguments, or of how many environments it makes.
Make = str | Callable[..., Any]
Wrap = Callable[[gymnasium.Env, int], CheckedEnv]  # an environment, and its row

ACTION_SPEC = "action_spec"
LAYOUT = "layout"
Vector = Literal["one", "processes", "tensors"]


class CheckedRows(SyncVectorEnv):
    """Step each ``CheckedEnv`` in this process. Its infos are empty and its observations copies, so nothing is
    collected or copied again; whoever asks copies what it keeps.
    """

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        last: dict[int, np.ndarray] = {}  # observations of episodes that ended, by row
        rows = zip(self.envs, iterate(self.action_space, actions), strict=True)
        for row, (env, action) in enumerate(rows):
            observation, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                last[row] = observation
                observation, _ = env.reset()
            self._observations[row] = observation
            self._rewards[row] = reward
            self._terminations[row] = terminated
            self._truncations[row] = truncated
        return (
            self._observations,
            self._rewards,
            self._terminations,
            self._truncations,
            {"final_obs": last},
        )


VECTORS: dict[str, type[SyncVectorEnv | AsyncVectorEnv]] = {
    "one": CheckedRows,
    "processes": AsyncVectorEnv,
}


@dataclass(frozen=True)
class AdapterInfo:
    """``final``: the last observations of rows that were truncated (other rows as now), None when there are none.
    ``returns``: undiscounted, of the episodes that ended, where they are summed up.
    """

    final: Observation | None
    returns: tuple[float, ...] = ()


class GymAdapter:
    """Adapt a vector environment of ``CheckedEnv``. Autoreset must be SAME_STEP: no step is a reset in disguise.
    ``env_ids`` are global (default 0 … E−1); the environments' own generators are seeded from the hash of ``rng_seed``.

    What a row says is legal is bool ``[n]``, of a MultiDiscrete space the dimensions' masks one after the other (as for
    sb3-contrib), or a mapping from the names of heads to masks, shaped as ``Observation`` says. ``action_spec``
    replaces the trivial one of the space, for heads that matter after some ops only; its sizes must be the space's.
    """

    def __init__(
        self,
        env: VectorEnv,
        rng_seed: int,
        env_ids: Tensor | None = None,
        action_spec: ActionSpec | None = None,
    ) -> None:
        # In other modes the step after an end is a reset that takes no action: learned from, it would be noise.
        self.env: Any = env
        self.rng_seed = rng_seed
        self.metadata = dict(env.metadata)
        mode = self.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise SimicError(
                f"vector environment: autoreset_mode is {mode}; only SAME_STEP can be learned from"
            )
        refuse_shared(self)
        self.num_envs = env.num_envs
        self.env_ids = torch.arange(self.num_envs) if env_ids is None else env_ids
        self.layout = layout_of(env.single_observation_space)
        self.observation_spec = self.layout.spec
        # The rows of CheckedEnv carry it.
        space = env.single_action_space
        self.action_layout: ActionLayout = getattr(space, LAYOUT, None) or ActionLayout(space)
        self.action_spec = heads_of(self.action_layout, action_spec)
        # Heads that are masked, and where that is said; known once something was observed.
        self.masked: tuple[str, ...] | None = None
        self.mask_source: str | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Any]:
        """Start every environment anew; ``options["iteration"]`` makes another start of each."""
        # Each environment's own generator is seeded by a hash; gymnasium takes 31 bits.
        iteration = (options or {}).get("iteration", 0)
        stream = rng.key(
            self.rng_seed if seed is None else seed, rng.Purpose.ENV_SEED, iteration, self.env_ids
        )
        seeds = (rng.bits(stream) & 0x7FFFFFFF).tolist()
        observation, info = self.env.reset(seed=seeds)
        return self._observation(observation), info

    def step(self, actions: Tensor, /) -> tuple[Observation, Tensor, Tensor, Tensor, AdapterInfo]:
        """Take a step with actions ``[E, width]``; return rewards float32 and flags ``[E]``."""
        # Gymnasium fills the same arrays again in the next step, so all that is given out is a copy.
        values, reward, terminated, truncated, info = self.env.step(
            self.action_spec.to_env(actions).numpy()
        )
        final = self._final(values, truncated & ~terminated, info)
        observation = self._observation(values)
        # One NaN would reach every weight through the advantages.
        with np.errstate(over="ignore"):
            rewards = torch.from_numpy(reward.astype(np.float32))
        if not np.isfinite(rewards.numpy()).all():
            row = int((~rewards.isfinite()).nonzero()[0])
            raise SimicError(
                f"environment {row} pays {reward[row]}: a reward must be a finite number of float32"
            )
        is_terminated = torch.from_numpy(terminated.copy())
        is_truncated = torch.from_numpy(truncated.copy())
        return observation, rewards, is_terminated, is_truncated, AdapterInfo(final)

    def _observation(self, values: np.ndarray) -> Observation:
        # By numpy, here and below, which takes a third of torch's time for a few numbers.
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = _infinite_row(values)
            raise SimicError(f"environment {row} observes a number that is not finite")
        # All are alike, so the first one says where its mask is.
        if self.masked is None:
            self.mask_source = self.env.get_attr("mask_source")[0]
        masks = {} if self.mask_source is None else self._masks(self.env.call("legal"))
        # Heads that are masked now and then would leave gaps in the rollout's arrays.
        if self.masked is None:
            self.masked = tuple(masks)
        if tuple(masks) != self.masked:
            raise SimicError(
                f"{self.mask_source} masks {', '.join(masks)}: before it was {', '.join(self.masked)}"
            )
        self.action_spec.check_masks(masks, self.num_envs)
        return self._columns(values, masks)

    def _columns(self, values: np.ndarray, masks: dict[str, Tensor]) -> Observation:
        """Split rows of observations into pixels, features, of the type that holds the space's numbers, and
        categories.
        """
        spec = self.observation_spec
        rows = values.reshape(len(values), -1)
        pixels = None
        if spec.pixels:
            pixels = torch.from_numpy(rows[:, : spec.pixels].astype(spec.pixel_dtype))
            rows = rows[:, spec.pixels :]
        numbers = torch.from_numpy(rows.astype(spec.dtype))
        categories = torch.zeros(len(rows), 0, dtype=torch.int64)
        if spec.categories:
            numbers, categories = numbers[:, : spec.features], numbers[:, spec.features :].long()
        return Observation(numbers, categories, masks, pixels=pixels)

    def rows(
        self,
        observations: Sequence[Any] | np.ndarray,
        masks: Sequence[Any] | np.ndarray | None,
    ) -> Observation:
        """Make rows of observations and of what the environments say is legal with them; SimicError where they are not
        of these environments.
        """
        # An agent that was loaded to decide has seen no environment yet.
        if self.masked is None:
            self.reset()
        # A mapping of arrays could be one row as well as many.
        named = {"observations": observations} | ({} if masks is None else {"masks": masks})
        for name, rows in named.items():
            if not (isinstance(rows, Sequence) or np.ndim(rows)) or not len(rows):
                raise SimicError(
                    f"{name} {reprlib.repr(rows)}: must be a list or array with one of each environment"
                )
        values = np.stack([*map(self._single, observations)])
        if not np.isfinite(values).all():
            observation = observations[_infinite_row(values)]
            raise SimicError(
                f"observation {reprlib.repr(observation)}: every number must be finite"
            )
        if (masks is None) is not (self.mask_source is None):
            raise SimicError(
                f"mask {reprlib.repr(masks)}: must be {self.mask_source}, as training had it"
            )
        legal = {} if masks is None else self._masks(list(masks))
        self.action_spec.check_masks(legal, len(values))
        if set(legal) != set(self.masked or ()):
            heads = ", ".join(self.masked or ())
            raise SimicError(f"mask {reprlib.repr(masks)}: must be of {heads}, as training had it")
        return self._columns(values, legal)

    def _single(self, observation: Any) -> np.ndarray:
        """Make a row of one observation; that of a Box may also be flat, or a batch of one."""
        if not self.layout.is_box:
            return self.layout.row(observation)
        spec = self.observation_spec
        try:
            values = as_array(observation).astype(spec.dtype)
        except (TypeError, ValueError, SimicError):
            values = np.empty(0)
        # As many numbers in another order of axes would be read without a word.
        shape = self.layout.space.shape or ()
        if values.shape not in (shape, (1, *shape), (spec.width,)):
            raise SimicError(
                f"observation {reprlib.repr(observation)}: must be {list(shape)} finite numbers"
            )
        row = values.reshape(-1)
        # A picture of bytes would lose fractions without a word.
        if spec.pixel_dtype == "uint8":
            return declared(row.reshape(self.layout.space.shape), self.layout.space, "observation")
        return row

    def to_env(self, action: Tensor) -> Any:
        """Turn the action ``[width]`` of one environment into what it takes."""
        return self.action_layout.to_env(self.action_spec.to_env(action).numpy(force=True))

    def _masks(self, answers: Sequence[Any]) -> dict[str, Tensor]:
        """Collect what each environment answered, by head."""
        # By name a free head may be left out, and a mask may depend on the op; one flat array can say neither.
        if isinstance(answers[0], Mapping):
            return {
                name: self._stacked([answer[name] for answer in answers]) for name in answers[0]
            }
        return by_head(self.action_spec, self._stacked(answers), str(self.mask_source))

    def _stacked(self, masks: Sequence[Any]) -> Tensor:
        """Stack masks as bool; SimicError for anything but True, False, 1, 0, which may have meant the opposite."""
        try:
            stacked = np.stack([as_array(mask) for mask in masks])
        except ValueError:
            raise SimicError(f"{self.mask_source} returns masks of different shapes") from None
        if stacked.dtype != np.bool_:
            is_flag = np.isin(stacked, (0, 1))
            if not is_flag.all():
                value = stacked[~is_flag].flat[0]
                raise SimicError(
                    f"{self.mask_source} returns {value}: must be True where legal, else False"
                )
        return torch.from_numpy(stacked.astype(np.bool_, copy=False))

    def _final(
        self, observation: np.ndarray, rows: np.ndarray, info: dict[str, Any]
    ) -> Observation | None:
        """Find the last observations of truncated rows, without masks: the value of a state does not read them."""
        if not rows.any():
            return None
        # All rows get an observation, since the policy values all at once; only ended episodes read the result.
        values = observation.copy()
        for row in rows.nonzero()[0]:
            values[row] = info["final_obs"][row]
        return self._columns(values, {})

    @property
    def description(self) -> list[str]:
        """Describe in a line each what is observed, what is taken, and the heads."""
        leaves = (*self.layout.leaves, *self.action_layout.leaves)
        return [leaf.description for leaf in leaves] + self.action_spec.description

    def __str__(self) -> str:
        masks = f"masked by {self.mask_source}" if self.mask_source else "nothing masked"
        return "\n".join([*self.description, masks])

    def close(self) -> None:
        self.env.close()


Adapter = TypeVar("Adapter", bound=GymAdapter)


def _checked(env: gymnasium.Env, row: int) -> CheckedEnv:
    return CheckedEnv(env)


def _maker(make: Make, wrap: Wrap, row: int) -> Callable[[], CheckedEnv]:
    """Check what makes environments, and the environments; SimicError where ``make`` is no id and no such function."""
    if isinstance(make, str):
        return lambda: wrap(gymnasium.make(make), row)
    needed = "must be a registered id, or a function without arguments that makes an environment"
    # One environment that exists already cannot stand side by side with itself.
    if isinstance(make, gymnasium.Env) or not callable(make):
        raise SimicError(f"environment {make!r}: {needed}")
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:
        raise SimicError(f"environment {make!r}: {error}; {needed}") from None

    def checked() -> CheckedEnv:
        env = make()
        if not isinstance(env, gymnasium.Env):
            raise SimicError(f"environment {make!r}: makes a {type(env).__name__}; {needed}")
        # Before the first reset, so that the message names what is missing and not a line inside Gymnasium.
        try:
            inspect.signature(env.reset).bind(seed=0, options={})
        except TypeError:
            raise SimicError(
                f"environment {env}: reset() takes no seed and options; it must, as in Gymnasium"
            ) from None
        return wrap(env, row)

    return checked


def _infinite_row(values: np.ndarray) -> int:
    """Find the first row with a number that is not finite."""
    return int((~np.isfinite(values)).reshape(len(values), -1).any(axis=1).argmax())


def refuse_shared(*adapters: GymAdapter) -> None:
    """Refuse rows that are one environment: each would act on the state that another row made.

    Args:
        adapters: Whose rows must all differ; those in processes of their own do.
    """
    rows = [
        row.unwrapped for adapter in adapters for row in getattr(adapter.env, "envs", [adapter.env])
    ]
    if len(set(map(id, rows))) < len(rows):
        raise SimicError(
            "what makes environments gives out the same one again: must make a new one at each call"
        )


def by_head(spec: ActionSpec, masks: Tensor, source: str) -> dict[str, Tensor]:
    """Split the masks of all heads.

    Args:
        spec: The heads.
        masks: Those of all discrete heads one after the other, bool ``[E, n]``.
        source: Where they came from, for the message.

    Raises:
        SimicError: They are not as many as these heads have choices.
    """
    sizes = [head.size for head in spec.discrete_heads]
    if masks.shape[1:] != (sum(sizes),):
        raise SimicError(
            f"{source} returns an array of shape {list(masks.shape[1:])}: must be [{sum(sizes)}]"
        )
    parts = masks.split(sizes, dim=1)
    return {head.name: mask for head, mask in zip(spec.discrete_heads, parts, strict=True)}


def vectorized(
    make: Make,
    envs: int,
    rng_seed: int,
    vector: Vector = "one",
    wrap: Wrap = _checked,
    adapter: type[Adapter] = GymAdapter,
) -> Adapter:
    """Make copies of an environment side by side.

    An environment that says what is legal (``checked_env.MASK_NAMES``) is masked, one with an ``action_spec`` has that
    (``GymAdapter`` says what they are).

    Args:
        make: A registered id, or a function that makes an environment.
        envs: How many copies.
        rng_seed: Keys their own generators.
        vector: ``one``: in this process. ``processes``: each in its own; a small environment takes less time for a step
            than its way there.
        wrap: What checks each of them.
        adapter: What adapts all of them.

    Raises:
        SimicError: It cannot be made, or not be learned from.
    """
    if vector not in [*VECTORS]:
        raise SimicError(f"vector = {vector!r}: must be one of {', '.join(get_args(Vector))}")
    try:
        makers = [_maker(make, wrap, row) for row in range(envs)]
        rows = VECTORS[vector](makers, autoreset_mode=AutoresetMode.SAME_STEP)
        # All are alike, so the first one is asked, or another where that is in another process.
        first = rows.envs[0] if isinstance(rows, SyncVectorEnv) else makers[0]()
    except (gymnasium.error.Error, ImportError) as error:
        raise SimicError(f"environment {make!r}: {' '.join(str(error).split())}") from None
    spec = first.get_wrapper_attr(ACTION_SPEC) if first.has_wrapper_attr(ACTION_SPEC) else None
    try:
        return adapter(rows, rng_seed, action_spec=spec)
    except SimicError as error:
        raise SimicError(
            f"environment {first.unwrapped.spec.id if first.unwrapped.spec else first}: {error}"
        ) from None
