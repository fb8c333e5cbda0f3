"""A controller let loose on a user's own data: several hosts grow, the best by validation leaves as a plain network."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from simic.data.batches import load_held_out
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, play
from simic.errors import SimicError
from simic.evaluation.history import Histories
from simic.evaluation.policies import BASELINES, refuse_other_task
from simic.evaluation.take_home import Grown, export_best
from simic.growth.batch.shards import recovered
from simic.params import Runtime, Train
from simic.training import sharing
from simic.training.learned import Learned

GROW_ITERATION = 1 << 42  # a namespace of its own: hosts that no training or evaluation episode has seen


@dataclass(frozen=True)
class GrowSetup:
    """Where networks grow: how hosts are trained, on which prepared data, on what."""

    train: Train
    rng_seed: int
    prepared: Path
    device: torch.device
    runtime: Runtime


def grow(setup: GrowSetup, policy: str | Learned, hosts: int, out: Path) -> Grown:
    """Grows ``hosts`` networks side by side and exports the one with the best committed validation accuracy.

    ``policy`` is a trained one or the name of a baseline. SimicError when ``out`` exists or the policy was trained for
    another family or number of slots.
    """
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another --out or remove it")
    held_out = load_held_out(setup.prepared, setup.device)
    env_ids = torch.arange(hosts)
    make = sharing.population(setup.runtime, sharing.layout(setup.runtime, hosts, setup.device))
    env = GrowthEnv(
        setup.train, setup.rng_seed, held_out.train, held_out.val, env_ids, setup.device, setup.runtime.backend, make
    )
    name = f"the policy {policy}" if isinstance(policy, str) else f"a policy trained for {policy.iteration} iterations"
    with closing(env):
        histories = recovered(env.population, lambda: _played(env, policy))
        return export_best(env, slice(0, hosts), histories, held_out, setup.prepared, name, out)


def _played(env: GrowthEnv, policy: str | Learned) -> Histories:
    histories = Histories(env, env.num_envs)
    play(env, _actor(policy, env), GROW_ITERATION, histories.add)
    return histories


def _actor(policy: str | Learned, env: GrowthEnv) -> Actor:
    if isinstance(policy, Learned):
        refuse_other_task(policy, env)
        return policy.actor(greedy=True)
    if policy not in BASELINES:
        raise SimicError(f"policy {policy!r}: must be learned, a policy's directory, or one of {', '.join(BASELINES)}")
    return BASELINES[policy](env)
