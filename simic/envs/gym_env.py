"""Gymnasium environments, whose episodes can be repeated or which are on tensors, for the pipeline."""

import hashlib
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pydantic import JsonValue
from torch import Tensor

from simic import durable
from simic.agent.gym_adapter import ACTION_SPEC, VECTORS
from simic.agent.repeatable import TRAINING, RepeatableAdapter, RepeatableEnv
from simic.agent.spaces import layout_of
from simic.agent.tensor_env import TensorEnv, on_tensors
from simic.data.batches import ENVIRONMENT_FILE, META_FILE, SCHEMA_VERSION, Meta
from simic.errors import SimicError
from simic.params import GymParams
from simic.registry import GYM

# Namespaces of episodes, beside TRAINING.
EVALUATION = 1 << 40
VALIDATION = 1 << 41


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
    if task.vector == "tensors":
        return on_tensors(task.id or "", rng_seed, env_ids, namespace, task.options)
    return GymEnv(task, rng_seed, env_ids, namespace)


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
