"""Grow several hosts on a user's own data by a controller, and export the best by validation as a plain network."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from simic.data.bank import SPLITS
from simic.data.batches import Dataset, HeldOut, load_held_out
from simic.data.own import predict
from simic.data.own.contract import REFERENCE, as_parquet
from simic.data.own.own_data import OwnData
from simic.data.raw_inputs import RawInputs
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.evaluation.controllers import Controller, Rule
from simic.evaluation.export_best import Account, Grown, best_host, export_best
from simic.evaluation.floors import (
    GROWN,
    Contender,
    Floors,
    Samples,
    floors,
    network_chances,
    right_answers,
)
from simic.evaluation.policies import BASELINES, refuse_other_host
from simic.evaluation.scoring import Hosts, Turn, open_env, play_together
from simic.growth.grown_network import GrownNetwork, grown_network
from simic.params import Params
from simic.progress import Progress

PREDICT = "predict.py"
# Hosts that no training or evaluation episode has seen.
GROW_ITERATION = 1 << 42


@dataclass(frozen=True)
class GrowSetup:
    """Params of the hosts (with a controller those that it was trained with), and the prepared data they grow on."""

    params: Params
    prepared: Path
    device: torch.device
    # The user's own data, which were prepared.
    data: OwnData | None = None
    # What the exported network takes in place of standardised samples.
    inputs: RawInputs | None = None


@dataclass(frozen=True)
class GrownHosts:
    """Hold hosts at the end of the episode in which they grew, and the best by validation as a plain network."""

    env: GrowthEnv
    held_out: HeldOut
    turns: list[Turn]
    network: GrownNetwork
    seconds: float


@contextmanager
def grown_hosts(
    setup: GrowSetup,
    policy: Rule | Controller,
    hosts: int,
    progress: Progress = lambda what, done, total: None,
) -> Iterator[GrownHosts]:
    """Grow several networks side by side.

    Args:
        setup: how they grow, and on what data.
        policy: who decides.
        hosts: how many there are.
        progress: hears how many epochs are done.

    Raises:
        SimicError: the policy was trained for another family or number of slots.
    """
    start = time.perf_counter()
    held_out = load_held_out(setup.prepared, setup.device)
    params = setup.params
    splits = (held_out.train, held_out.val)
    env_ids = torch.arange(hosts)
    env = open_env(params.train, params.rng_seed, params.runtime, splits, env_ids, setup.device)
    # Who decides.
    if isinstance(policy, Controller):
        refuse_other_host(policy.learned, env.host)
        actor = policy.learned.actor(greedy=True)
    else:
        actor = BASELINES[policy.name](env)

    # Grow, and take the best network out.
    playing = Hosts(torch.zeros_like(env.env_ids), env.env_ids, GROW_ITERATION)
    epochs = partial(progress, "grown, epochs")
    turns = play_together(env, [actor], playing, progress=epochs)
    best = best_host(env, slice(0, hosts))
    network = grown_network(env.population, env.slots, best, committed=True, inputs=setup.inputs)
    if setup.data is not None and setup.data.contract is not None:
        network.contract = setup.data.contract.model_dump()
    yield GrownHosts(env, held_out, turns, network, time.perf_counter() - start)


def grow(
    setup: GrowSetup,
    policy: Rule | Controller,
    hosts: int,
    out: Path,
    progress: Progress,
) -> Grown:
    """Grow several networks, and export the one with the best committed validation accuracy beside floors that cost
    less.

    Args:
        setup: how they grow, and on what data.
        policy: who decides.
        hosts: how many networks grow.
        out: new folder of the exported network.
        progress: hears how far it is.

    Raises:
        SimicError: ``out`` exists, or the policy does not fit.
    """
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another folder or remove it")
    with grown_hosts(setup, policy, hosts, progress) as grown:
        compared, recommended = compare_with_floors(setup, grown, progress)
        account = Account(
            grown_by=str(policy) if isinstance(policy, Rule) else policy.name,
            floors=compared,
            recommended=recommended,
            notes=setup.data.notes if setup.data is not None else (),
            files=_files(setup),
        )
        return export_best(
            grown.env,
            slice(0, hosts),
            grown.turns,
            grown.held_out,
            setup.prepared,
            account,
            out,
            setup.inputs,
        )


def _files(setup: GrowSetup) -> dict[str, str | bytes]:
    """Write what stands beside a network that takes raw samples: the program that reads them, and of a table what the
    network learned from.
    """
    if setup.inputs is None:
        return {}
    files: dict[str, str | bytes] = {PREDICT: Path(predict.__file__).read_text(encoding="utf-8")}
    data = setup.data
    if data is not None and data.contract is not None:
        files[predict.CONTRACT] = data.contract.to_json()
        if data.reference is not None:
            files[REFERENCE] = as_parquet(data.reference)
    return files


def compare_with_floors(
    setup: GrowSetup, grown: GrownHosts, progress: Progress
) -> tuple[Floors, Contender | None]:
    """Score the best network, and those that cost less, on the test split; the one of these that is recommended.

    Args:
        setup: how the hosts grew.
        grown: the hosts.
        progress: hears how many floors are fitted.
    """
    held_out = grown.held_out
    test = held_out.test
    mean_pct = float(grown.env.committed(test)[0].mean())
    contender = Contender(
        GROWN,
        right_answers(grown.network, test),
        grown.network.structure.params,
        grown.seconds,
        mean_pct=mean_pct,
        chances=network_chances(grown.network, held_out),
        model=grown.network,
    )

    def samples(split: str) -> Samples:
        data: Dataset = getattr(held_out, split)
        x = data.x.flatten(1).cpu().numpy()
        raw = None
        if setup.data is not None:
            # In the precision in which a saved model takes them.
            dtype = np.float64 if setup.data.inputs.layout == "table" else np.float32
            raw = np.asarray(setup.data.raw.get(split, setup.data.raw["val"]), dtype)
        return Samples(x, raw, data.y.cpu().numpy())

    # The same samples for scikit-learn, which takes no tokens.
    is_tokens = len(test.shape) == 1
    return floors(
        params=setup.params,
        env=grown.env,
        held_out=held_out,
        samples=None if is_tokens else {split: samples(split) for split in SPLITS},
        inputs=setup.inputs,
        grown=contender,
        progress=progress,
    )
