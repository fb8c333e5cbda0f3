"""A controller let loose on a user's own data: several hosts grow, the best by validation leaves as a plain network."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from simic.data.batches import HeldOut, load_held_out
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, play
from simic.errors import SimicError
from simic.evaluation.compare import compare
from simic.evaluation.controllers import Controller, Rule
from simic.evaluation.grid import Hosts, Splits, grid
from simic.evaluation.history import Histories
from simic.evaluation.policies import BASELINES, refuse_other_host
from simic.evaluation.schedules import Schedule
from simic.evaluation.take_home import Grown, best_host, export_best
from simic.growth.batch.shards import recovered
from simic.growth.networks.own import own_host
from simic.params import Params
from simic.training import worker_layout

GROW_ITERATION = 1 << 42  # a namespace of its own: hosts that no training or evaluation episode has seen


@dataclass(frozen=True)
class GrowSetup:
    """Where networks grow: how hosts are trained (of a controller: as when it was trained), on which prepared data, on
    what.
    """

    params: Params
    prepared: Path
    device: torch.device
    own: tuple[str, nn.Module] | None = None  # a network of the user's own in place of the host, and its name


def grow(
    setup: GrowSetup,
    policy: Rule | Controller,
    hosts: int,
    out: Path,
    compared: bool = False,
    told: Callable[[str, int, int], None] = lambda what, done, count: None,
) -> Grown:
    """Grows ``hosts`` networks side by side and exports the one with the best committed validation accuracy,
    ``compared`` with what else one can do or not.

    ``policy`` is a trained one or a baseline. SimicError when ``out`` exists or the policy was trained for
    another family or number of slots.
    """
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another --out or remove it")
    held_out = load_held_out(setup.prepared, setup.device)
    env = _environment(setup, held_out, torch.arange(hosts))
    name, common = (str(policy), None) if isinstance(policy, Rule) else (policy.name, policy.common)
    everyone = slice(0, hosts)
    with closing(env):
        histories = recovered(env.population, lambda: _played(env, policy))
        best, found, bare = best_host(env, everyone), None, None
        if setup.own is None:
            bare = _bare(setup, held_out, best, env)
        if compared:
            found = compare(setup.params, env, held_out.test, best, name, common, partial(told, "comparison"))
        return export_best(env, everyone, histories, held_out, setup.prepared, name, out, found, bare)


def _bare(setup: GrowSetup, held_out: HeldOut, best: int, env: GrowthEnv) -> float:
    """Test accuracy in points of the host that is exported, trained as long without any seed."""
    hosts = Hosts(torch.zeros(1, dtype=torch.int64), torch.tensor([best]), GROW_ITERATION)
    splits = Splits(held_out.train, held_out.val, held_out.test)
    static = Schedule.named("static", (), env.host.slots)
    reached = grid(setup.params, splits, hosts, [static], setup.device).test_accuracy_pct
    assert reached is not None
    return float(reached[0, 0])


def _environment(setup: GrowSetup, held_out: HeldOut, env_ids: Tensor) -> GrowthEnv:
    """Of a user's own network in this process alone: others do not have its code."""
    params, data, host = setup.params, held_out.train, None
    runtime = params.runtime
    if setup.own is not None:
        name, network = setup.own
        host = own_host(network, data.shape, data.classes, name)
        runtime = runtime.model_copy(update={"processes": 1})
    make = worker_layout.population(runtime, worker_layout.layout(runtime, len(env_ids), setup.device))
    what = params.train, params.rng_seed, data, held_out.val, env_ids, setup.device, runtime.backend, make
    return GrowthEnv(*what, host=host)


def _played(env: GrowthEnv, policy: Rule | Controller) -> Histories:
    histories = Histories(env, env.num_envs)
    play(env, _actor(policy, env), GROW_ITERATION, histories.add)
    return histories


def _actor(policy: Rule | Controller, env: GrowthEnv) -> Actor:
    if isinstance(policy, Controller):
        refuse_other_host(policy.learned, env.host)
        return policy.learned.actor(greedy=True)
    return BASELINES[policy.name](env)
