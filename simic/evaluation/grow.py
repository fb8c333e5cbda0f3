"""A controller let loose on a user's own data: several hosts grow, the best by validation leaves as a plain network."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from simic.data.batches import HeldOut, load_held_out
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, play
from simic.errors import SimicError
from simic.evaluation.history import Histories
from simic.evaluation.policies import BASELINES, refuse_other_task
from simic.evaluation.take_home import Grown, export_best
from simic.growth.batch.shards import recovered
from simic.growth.networks.own import own_host
from simic.params import Runtime, Train
from simic.training import sharing
from simic.training.learned import Learned, LearnedActor

GROW_ITERATION = 1 << 42  # a namespace of its own: hosts that no training or evaluation episode has seen


@dataclass(frozen=True)
class GrowSetup:
    """Where networks grow: how hosts are trained, on which prepared data, on what."""

    train: Train
    rng_seed: int
    prepared: Path
    device: torch.device
    runtime: Runtime
    own: tuple[str, nn.Module] | None = None  # a network of the user's own in place of the host, and its name


def grow(setup: GrowSetup, policy: str | Learned, hosts: int, out: Path) -> Grown:
    """Grows ``hosts`` networks side by side and exports the one with the best committed validation accuracy.

    ``policy`` is a trained one or the name of a baseline. SimicError when ``out`` exists or the policy was trained for
    another family or number of slots.
    """
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another --out or remove it")
    held_out = load_held_out(setup.prepared, setup.device)
    env = _environment(setup, held_out, torch.arange(hosts))
    name = f"the policy {policy}" if isinstance(policy, str) else f"a policy trained for {policy.iteration} iterations"
    with closing(env):
        histories = recovered(env.population, lambda: _played(env, policy))
        return export_best(env, histories, held_out, setup.prepared, name, out)


def _environment(setup: GrowSetup, held_out: HeldOut, env_ids: Tensor) -> GrowthEnv:
    """Of a user's own network in this process alone: others do not have its code."""
    runtime, data, host = setup.runtime, held_out.train, None
    if setup.own is not None:
        name, network = setup.own
        host = own_host(network, data.shape, data.classes, name)
        runtime = runtime.model_copy(update={"processes": 1})
    make = sharing.population(runtime, sharing.layout(runtime, len(env_ids), setup.device))
    what = setup.train, setup.rng_seed, data, held_out.val, env_ids, setup.device, runtime.backend, make
    return GrowthEnv(*what, host=host)


def _played(env: GrowthEnv, policy: str | Learned) -> Histories:
    histories = Histories(env)
    play(env, _actor(policy, env), GROW_ITERATION, histories.add)
    return histories


def _actor(policy: str | Learned, env: GrowthEnv) -> Actor:
    if isinstance(policy, Learned):
        refuse_other_task(policy, env)
        return LearnedActor(policy.policy, policy.normalizers, greedy=True)
    if policy not in BASELINES:
        raise SimicError(f"policy {policy!r}: must be learned, a policy's directory, or one of {', '.join(BASELINES)}")
    return BASELINES[policy](env)
