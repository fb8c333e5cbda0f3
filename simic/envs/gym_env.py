"""Gymnasium environments whose episodes can be repeated, and vector environments on tensors, for the pipeline."""

import hashlib
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from pydantic import JsonValue
from torch import Tensor

from simic import durable
from simic.agent.action_space import ActionLayout, heads_of
from simic.agent.checked_env import MASK_NAMES
from simic.agent.gym_adapter import ACTION_SPEC, VECTORS, AdapterInfo, by_head
from simic.agent.repeatable import TRAINING, RepeatableAdapter, RepeatableEnv, episode_seed
from simic.agent.spaces import layout_of
from simic.agent.spec import Observation
from simic.data.batches import ENVIRONMENT_FILE, META_FILE, SCHEMA_VERSION, Meta
from simic.errors import SimicError
from simic.params import GymParams
from simic.registry import GYM

# Namespaces of episodes, beside TRAINING.
EVALUATION = 1 << 40
VALIDATION = 1 << 41
INNER = "own."  # of the names of what an environment saves itself


def make(task: GymParams) -> gymnasium.Env:
    """Make one environment, wrapped; SimicError naming what cannot be made."""
    try:
        env = gymnasium.make(task.id or "", **task.options)
        for wrapper in task.wrappers:
            env = _wrapper_class(wrapper.name)(env, **wrapper.options)
    except (gymnasium.error.Error, ImportError, AttributeError, TypeError, ValueError) as error:
        raise SimicError(f"prepare.gym.id = {task.id!r}: {' '.join(str(error).split())}") from None
    return env


def _wrapper_class(name: str) -> Callable[..., gymnasium.Env]:
    """Import the wrapper that ``module:Name`` names; SimicError for anything else."""
    # A wrapper is code of the user's: its module is imported, as an extension is.
    module, colon, attribute = name.partition(":")
    if not colon:
        raise SimicError(
            f"prepare.gym.wrappers: {name!r}: must be module:Name, as gymnasium.wrappers:TimeLimit"
        )
    wrapper = getattr(importlib.import_module(module), attribute)
    # Any callable would do: a file of params alone could then run a command.
    if not (isinstance(wrapper, type) and issubclass(wrapper, gymnasium.Wrapper)):
        raise SimicError(f"prepare.gym.wrappers: {name!r}: must be a subclass of gymnasium.Wrapper")
    return wrapper


class GymEnv(RepeatableAdapter):
    """E copies of an environment side by side. Their running episodes are saved as numbers and actions."""

    def __init__(
        self, task: GymParams, rng_seed: int, env_ids: Tensor, namespace: int = TRAINING
    ) -> None:
        # Each environment is made in its own process, if it has one, so what is sent there is how to make it.
        makers = [
            _maker(task, rng_seed, namespace, env_id, place)
            for place, env_id in enumerate(env_ids.tolist())
        ]
        vector = VECTORS[task.vector](makers, autoreset_mode=AutoresetMode.SAME_STEP)
        # One in this process is asked what all are like: those of AsyncVectorEnv are in processes of their own.
        single = make(task)
        spec = None
        if single.has_wrapper_attr(ACTION_SPEC):
            spec = single.get_wrapper_attr(ACTION_SPEC)
        single.close()
        super().__init__(vector, rng_seed, env_ids, spec)


def _maker(
    task: GymParams, rng_seed: int, namespace: int, env_id: int, place: int
) -> Callable[[], gymnasium.Env]:
    return lambda: RepeatableEnv(make(task), rng_seed, namespace, env_id, place)


class TensorEnv:
    """A vector environment on tensors of any device, as its id's ``vector_entry_point`` makes it.

    Autoreset is SAME_STEP with ``info["final_obs"]``; observations are ``[E, …]``, masks what ``action_masks()``
    returns. With ``state_dict`` and ``load_state_dict`` of its own it goes on where it was.
    """

    def __init__(
        self, task: GymParams, rng_seed: int, env_ids: Tensor, namespace: int = TRAINING
    ) -> None:
        # Gymnasium makes it without wrappers: those are for single environments on numpy.
        try:
            self.env: VectorEnv = gymnasium.make_vec(
                task.id or "", len(env_ids), "vector_entry_point", **task.options
            )
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            raise SimicError(
                f"prepare.gym.id = {task.id!r}: {' '.join(str(error).split())}"
            ) from None
        self.layout = layout_of(self.env.single_observation_space)
        if not self.layout.is_box:
            raise SimicError(
                f"prepare.gym.id = {task.id!r}: observation space {self.layout.space}: of a vector environment on"
                " tensors it must be a Box"
            )
        self.observation_spec = self.layout.spec
        self.action_layout = ActionLayout(self.env.single_action_space)
        self.action_spec = heads_of(self.action_layout, getattr(self.env, ACTION_SPEC, None))
        if len(self.action_layout.leaves) > 1:
            raise SimicError(
                f"prepare.gym.id = {task.id!r}: action space {self.env.single_action_space}: of a vector environment on"
                " tensors it must not be nested"
            )
        self.num_envs = self.env.num_envs
        self.metadata = dict(self.env.metadata)
        if self.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            raise SimicError(f"prepare.gym.id = {task.id!r}: autoreset_mode must be SAME_STEP")
        # All environments are seeded together, by the first one's name.
        self._seed = episode_seed(rng_seed, namespace, int(env_ids[0]), 0)
        self._masks = getattr(self.env, MASK_NAMES[0], None)
        self.env_ids = env_ids
        self.masked = None
        self.reset()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Any]:
        values, info = self.env.reset(seed=self._seed)
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
        shape = space.shape or ()
        actions = self.action_spec.to_env(actions).to(kind)
        actions = actions.view(self.num_envs, *shape)
        values, rewards, terminated, truncated, info = self.env.step(actions)
        rewards = rewards.float()  # as they are recorded, so that returns are their sums
        ended = terminated | truncated
        self.returns = torch.where(ended, 0.0, self.returns + rewards)
        self._lengths = torch.where(ended, 0, self._lengths + 1)
        self.seen = self._observed(values)
        # Only truncated episodes need their last observation: a terminal state is worth 0.
        final = info.get("final_obs") if bool((truncated & ~terminated).any()) else None
        last = None if final is None else Observation(self._flat(final), self.seen.categories, {})
        return self.seen, rewards, terminated, truncated, AdapterInfo(last)

    def _flat(self, values: Tensor) -> Tensor:
        kind = getattr(torch, self.observation_spec.dtype)
        return values.reshape(self.num_envs, -1).to(kind)

    def _observed(self, values: Tensor) -> Observation:
        masks = {} if self._masks is None else self._masks()
        if isinstance(masks, Tensor):
            masks = by_head(self.action_spec, masks, MASK_NAMES[0])
        self.masked = tuple(masks)
        self.action_spec.check_masks(masks, self.num_envs)
        features = self._flat(values)
        return Observation(
            features,
            torch.zeros(self.num_envs, 0, dtype=torch.int64, device=features.device),
            masks,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Copy what the environment itself saves, and its returns."""
        state = getattr(self.env, "state_dict", dict)()
        return {f"{INNER}{name}": tensor for name, tensor in state.items()} | {
            "returns": self.returns.clone(),
            "running_steps": self._lengths.clone(),
            "features": self.seen.features.clone(),
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
        self.seen = self._observed(self.env.load_state_dict(inner))  # pyright: ignore[reportAttributeAccessIssue]
        self.returns = state["returns"].to(self.env_ids.device)
        self._lengths = state["running_steps"].to(self.env_ids.device)
        # An environment that saved too little would go on from another state without a word.
        if not torch.equal(self.seen.features.cpu(), state["features"].cpu()):
            raise SimicError("the vector environment observes something else after load_state_dict")
        return self.seen

    def close(self) -> None:
        self.env.close()


AnyGym = GymEnv | TensorEnv


def open_gym(task: GymParams, rng_seed: int, env_ids: Tensor, namespace: int = TRAINING) -> AnyGym:
    """Open the environments of a task.

    Args:
        task: Section ``prepare.gym``.
        rng_seed: Of the run.
        env_ids: Numbers of the environments, int64 ``[E]``.
        namespace: Of their episodes.

    Raises:
        SimicError: They cannot be made, or not be learned from.
    """
    return (TensorEnv if task.vector == "tensors" else GymEnv)(task, rng_seed, env_ids, namespace)


# --- description ---


def describe(task: GymParams) -> dict[str, JsonValue]:
    """Describe an environment: spaces, heads, versions, and the hashes of the files that define it."""
    # Asked of one environment in this process.
    single = task.model_copy(update={"vector": "one"}) if task.vector == "processes" else task
    env = open_gym(single, 0, torch.arange(1))
    try:
        env.reset()
        inner = env.env
        observations = str(layout_of(inner.single_observation_space).space)
        actions = str(env.action_layout.space)
        heads: list[JsonValue] = [str(head) for head in env.action_spec.heads]
        masked: list[JsonValue] = list(env.masked or ())
        # The classes around it and their files decide what it does.
        layers = _layers(inner.envs[0]) if isinstance(inner, SyncVectorEnv) else _layers(inner)
    finally:
        env.close()
    return {
        **task.model_dump(mode="json"),
        "observations": observations,
        "actions": actions,
        "heads": heads,
        "masked": masked,
        "layers": [f"{kind.__module__}:{kind.__qualname__}" for kind in layers],
        "versions": dict(sorted(_versions(layers).items())),
        "files": dict(sorted(_files(layers).items())),
    }


def _layers(env: Any) -> list[type]:
    """List the classes of an environment and its wrappers, simic's own left out, the outermost first."""
    if isinstance(env, gymnasium.Wrapper):
        return [kind for kind in (type(env),) if kind is not RepeatableEnv] + _layers(env.env)
    return [type(env)]


def _versions(layers: Sequence[type]) -> dict[str, JsonValue]:
    owners = importlib.metadata.packages_distributions()
    modules = {"gymnasium", "numpy", *(kind.__module__.partition(".")[0] for kind in layers)}
    names = {owner for module in modules for owner in owners.get(module, ())[:1]} - {"simic-grow"}
    return {name: importlib.metadata.version(name) for name in names}


def _files(layers: Sequence[type]) -> dict[str, JsonValue]:
    """Hash the files with the classes, by module; Gymnasium's own are known by its version."""
    kinds = [kind for kind in layers if kind.__module__.partition(".")[0] != "gymnasium"]
    files = {kind.__module__: inspect.getsourcefile(kind) for kind in kinds}
    return {
        name: hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for name, file in files.items()
        if file
    }


def prepare(task: GymParams, rng_seed: int, out_dir: Path) -> None:
    """Write ``out_dir`` anew: environment.json, and meta.json with its hash.

    Args:
        task: Section ``prepare.gym``.
        rng_seed: Of the run, to record.
        out_dir: Folder to write.

    Raises:
        SimicError: The environment cannot be made.
    """
    # The hash is over the file's bytes: what later stages read is what was described.
    content = durable.with_checksum(describe(task))
    digest = durable.sha256_of(content)
    with durable.new_directory(out_dir) as folder:
        durable.write_synced(folder / ENVIRONMENT_FILE, content)
        meta = Meta(
            schema_version=SCHEMA_VERSION,
            task=GYM,
            source=task.id or "",
            source_sha256=digest,
            licence="the environment's own",
            classes=0,
            shape=(),
            samples={},
            duplicates_dropped=0,
            split_fractions={},
            split_rng_seed=rng_seed,
            tasks=[],
            sha256={ENVIRONMENT_FILE: digest},
        )
        durable.write_synced(folder / META_FILE, meta.to_json())
