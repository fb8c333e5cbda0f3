"""Grow several hosts on a user's own data by a controller, and export the best by validation as a plain network."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from simic.data.bank import SPLITS
from simic.data.batches import Dataset, HeldOut, load_held_out
from simic.data.own import predict
from simic.data.own.own_data import OwnData
from simic.data.raw_inputs import RawInputs
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.evaluation.controllers import Controller, Rule
from simic.evaluation.export_best import Account, Grown, best_host, export_best
from simic.evaluation.floors import GROWN, Contender, Floors, Samples, floors
from simic.evaluation.policies import BASELINES, refuse_other_host
from simic.evaluation.scoring import Hosts, Turn, open_env, play_together
from simic.growth.batch.shards import recovered
from simic.growth.grown_network import GrownNetwork, grown_network
from simic.params import Params
from simic.progress import Progress

PREDICT = "predict.py"
ROWS_AT_ONCE = 1024
GROW_ITERATION = 1 << 42  # a namespace of its own: hosts that no training or evaluation episode has seen


@dataclass(frozen=True)
class GrowSetup:
    """Params of the hosts (with a controller those that it was trained with), and the prepared data they grow on."""

    params: Params
    prepared: Path
    device: torch.device
    data: OwnData | None = None  # the user's own data, which were prepared
    inputs: RawInputs | None = None  # what the exported network takes in place of standardised samples


@dataclass(frozen=True)
class Played:
    """Hosts at the end of the episode in which they grew, and the best by validation as a plain network."""

    env: GrowthEnv
    held_out: HeldOut
    turns: list[Turn]
    best: int
    network: GrownNetwork
    seconds: float


@contextmanager
def played(
    setup: GrowSetup, policy: Rule | Controller, hosts: int, told: Progress = lambda what, done, count: None
) -> Iterator[Played]:
    """Grow ``hosts`` networks side by side; ``told`` hears how far it is. SimicError when the policy was trained for
    another family or number of slots.
    """
    began, held_out = time.perf_counter(), load_held_out(setup.prepared, setup.device)
    params, splits = setup.params, (held_out.train, held_out.val)
    ids = torch.arange(hosts)
    with closing(open_env(params.train, params.rng_seed, params.runtime, splits, ids, setup.device)) as env:
        if isinstance(policy, Controller):
            refuse_other_host(policy.learned, env.host)
            actor = policy.learned.actor(greedy=True)
        else:
            actor = BASELINES[policy.name](env)
        playing, heard = (
            Hosts(torch.zeros_like(env.env_ids), env.env_ids, GROW_ITERATION),
            partial(told, "grown, epochs"),
        )
        turns = recovered(env.population, lambda: play_together(env, [actor], playing, told=heard))
        best = best_host(env, slice(0, hosts))
        network = grown_network(env.population, env.slots, best, committed=True, inputs=setup.inputs)
        yield Played(env, held_out, turns, best, network, time.perf_counter() - began)


def grow(
    setup: GrowSetup,
    policy: Rule | Controller,
    hosts: int,
    out: Path,
    told: Progress,
) -> Grown:
    """Grow ``hosts`` networks and export the one with the best committed validation accuracy, beside floors that cost
    less. SimicError when ``out`` exists.
    """
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another folder or remove it")
    name = str(policy) if isinstance(policy, Rule) else policy.name
    with played(setup, policy, hosts, told) as done:
        beside = beside_floors(setup, done, told)
        notes = setup.data.notes if setup.data is not None else ()
        script = {PREDICT: Path(predict.__file__).read_text(encoding="utf-8")} if setup.inputs is not None else {}
        account = Account(name, beside, notes, script)
        rows = slice(0, hosts)
        return export_best(done.env, rows, done.turns, done.held_out, setup.prepared, account, out, setup.inputs)


def beside_floors(setup: GrowSetup, done: Played, told: Progress) -> Floors:
    """Score the network that is kept beside those that cost less."""
    held, network = done.held_out, done.network
    with torch.no_grad():
        logits = [network.body(x) for x in held.test.x.cpu().split(ROWS_AT_ONCE)]
    right = (torch.cat(logits).argmax(-1) == held.test.y.cpu()).flatten().numpy()
    mean = float(done.env.committed(held.test)[0].mean())
    grown = Contender(GROWN, right, network.structure.params, done.seconds, mean_pct=mean)

    def samples(split: str, data: Dataset) -> Samples:
        x, y = data.x.flatten(1).cpu().numpy(), data.y.cpu().numpy()
        return Samples(x, x if setup.data is None else setup.data.raw.get(split, setup.data.raw["val"]), y)

    tokens = len(held.test.shape) == 1
    own = None if tokens else {split: samples(split, getattr(held, split)) for split in SPLITS}
    columns = setup.inputs.columns if setup.inputs is not None else ()
    codes = tuple(place for place, column in enumerate(columns) if column.levels is not None)
    return floors(setup.params, done.env, held, own, codes, grown, told)
