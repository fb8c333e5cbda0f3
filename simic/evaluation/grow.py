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
from simic.envs.play import Actor
from simic.errors import SimicError
from simic.evaluation.compare import compare
from simic.evaluation.controllers import Controller, Rule
from simic.evaluation.export_best import Grown, best_host, export_best
from simic.evaluation.grid import Splits, grid
from simic.evaluation.policies import BASELINES, refuse_other_host
from simic.evaluation.schedules import Schedule
from simic.evaluation.scoring import Hosts, in_one_process, open_env, play_together
from simic.growth.batch.shards import recovered
from simic.growth.networks.own import own_host
from simic.params import Params

GROW_ITERATION = 1 << 42  # a namespace of its own: hosts that no training or evaluation episode has seen


@dataclass(frozen=True)
class GrowSetup:
    """Where networks grow: how hosts are trained (of a controller: as when it was trained), on which prepared data."""

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
    """Grow ``hosts`` networks side by side and export the one with the best committed validation accuracy, ``compared``
    with what else one can do or not. SimicError when ``out`` exists or the policy was trained for another family or
    number of slots.
    """
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another --out or remove it")
    held_out = load_held_out(setup.prepared, setup.device)
    env = _environment(setup, held_out, torch.arange(hosts))
    name, common = (str(policy), None) if isinstance(policy, Rule) else (policy.name, policy.common)
    everyone = slice(0, hosts)
    with closing(env):
        playing = Hosts(torch.zeros_like(env.env_ids), env.env_ids, GROW_ITERATION)
        turns = recovered(env.population, lambda: play_together(env, [_actor(policy, env)], playing))
        best, comparison = best_host(env, everyone), None
        bare = _bare(setup, held_out, best, env) if setup.own is None else None
        if compared:
            comparison = compare(setup.params, env, held_out.test, best, name, common, partial(told, "comparison"))
        return export_best(env, everyone, turns, held_out, setup.prepared, name, out, comparison, bare)


def _bare(setup: GrowSetup, held_out: HeldOut, best: int, env: GrowthEnv) -> float:
    """Return the test accuracy in points of the host that is exported, trained as long without any seed."""
    hosts = Hosts(torch.zeros(1, dtype=torch.int64), torch.tensor([best]), GROW_ITERATION)
    splits = Splits(held_out.train, held_out.val, held_out.test)
    static = Schedule.named("static", (), env.host.slots)
    reached = grid(setup.params, splits, hosts, [static], setup.device).test_accuracy_pct
    assert reached is not None
    return float(reached[0, 0])


def _environment(setup: GrowSetup, held_out: HeldOut, env_ids: Tensor) -> GrowthEnv:
    """Open the hosts; those of a user's own network in this process alone, since others do not have its code."""
    params, data, host = setup.params, held_out.train, None
    if setup.own is not None:
        name, network = setup.own
        host = own_host(network, data.shape, data.classes, name)
        params = in_one_process(params)
    splits = data, held_out.val
    return open_env(params.train, params.rng_seed, params.runtime, splits, env_ids, setup.device, host)


def _actor(policy: Rule | Controller, env: GrowthEnv) -> Actor:
    if isinstance(policy, Controller):
        refuse_other_host(policy.learned, env.host)
        return policy.learned.actor(greedy=True)
    return BASELINES[policy.name](env)
