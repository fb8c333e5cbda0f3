"""Decide whether a challenger becomes champion: both play the same fresh hosts, scored on validation splits.

The hosts are drawn for this pair of policies, so neither was chosen on them. Held-out data stay closed.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from simic import durable
from simic.data.batches import data_hash, held_out_closed, load_split, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor
from simic.envs.rewards import score
from simic.errors import SimicError
from simic.evaluation import gym
from simic.evaluation.endpoints import SETTINGS
from simic.evaluation.policies import BASELINES, refuse_other_host
from simic.evaluation.result import Frozen
from simic.evaluation.scoring import Hosts, at_once, committed, open_env, play_in_groups
from simic.evaluation.statistics import PairedComparison, Values, compare_with_all, rows_by_task
from simic.params import Params
from simic.training import machine
from simic.training.learned import CARD_FILE, Learned

CHAMPION, CHALLENGER = "champion", "challenger"
FLOORS = ("random_legal", "static")  # opponents where there is no champion
# A namespace of its own: evaluation is at 1 << 40, validation at 1 << 41. What is added to it has 40 bits.
PROMOTION_ITERATION = 1 << 42
_HEX_DIGITS = 10


@dataclass(frozen=True)
class Entrant:
    """A policy of the registry: what it is called in a message, and the data it was trained on."""

    name: str
    learned: Learned
    sha256: str
    data_sha256: str

    @classmethod
    def load(cls, name: str, folder: Path, data_sha256: str) -> "Entrant":
        """Load a folder with a policy; SimicError where it is missing or damaged."""
        return cls(name, Learned.load(folder), durable.sha256(folder / CARD_FILE), data_sha256)


class Contest(Frozen):
    """Hosts and tasks that were played, and the comparison with each opponent, in points of score over tasks, or over
    hosts where there is one task.
    """

    data_sha256: str
    hosts: int
    tasks: int
    iteration: int  # keys the draws of the hosts
    compared: tuple[PairedComparison, ...]


def contest(params: Params, prepared: Path, challenger: Entrant, champion: Entrant | None) -> Contest:
    """Play the challenger against the champion, or against ``FLOORS`` where there is none. SimicError where they are
    not of one task and one space of observations and actions.
    """
    entrants = [challenger, *([champion] if champion else [])]
    for entrant in entrants:
        _refuse_other_data(entrant, prepared)
    drawn = durable.sha256_of("".join(entrant.sha256 for entrant in entrants).encode())
    iteration = PROMOTION_ITERATION + int(drawn[:_HEX_DIGITS], 16)
    if params.prepare.is_gym:
        opponent = CHAMPION if champion else gym.RANDOM
        machine.configure(params.runtime)
        first, second = gym.contest(params, iteration, challenger.learned, champion.learned if champion else None)
        scores = {CHALLENGER: np.array(first.returns), opponent: np.array(second.returns)}
        hosts, tasks = len(first.returns), 1
    else:
        with held_out_closed("who is champion is decided on validation splits"):
            hosts, tasks, scores = _on_fresh_hosts(params, prepared, challenger, champion, iteration)
    return Contest(
        data_sha256=challenger.data_sha256,
        hosts=hosts,
        tasks=tasks,
        iteration=iteration,
        compared=compare_with_all(CHALLENGER, scores, params.rng_seed),
    )


def _on_fresh_hosts(
    params: Params, prepared: Path, challenger: Entrant, champion: Entrant | None, iteration: int
) -> tuple[int, int, dict[str, Values]]:
    """Play on at least ``evaluate.eval_seeds`` hosts of that iteration, of every validation task as many; return how
    many hosts and tasks, and everyone's score on each task, or on each host where there is one task.
    """
    for entrant in (challenger, champion):
        if entrant is not None:
            _refuse_other_rules(entrant, params)
    device = machine.configure(params.runtime)
    choosing = torch.tensor(read_meta(prepared).of_group("val"))
    tasks = choosing.repeat(-(-params.evaluate.eval_seeds // len(choosing)))
    hosts = Hosts(tasks, torch.arange(len(tasks)), iteration)
    rows = torch.arange(len(tasks) * at_once(len(tasks), policies=2 if champion else 1 + len(FLOORS)))
    splits = load_split(prepared, "train", device), load_split(prepared, "val", device)
    with closing(open_env(params.train, params.rng_seed, params.runtime, splits, rows, device)) as env:
        players = {CHALLENGER: _player(challenger, env)}
        players |= {CHAMPION: _player(champion, env)} if champion else {name: BASELINES[name](env) for name in FLOORS}
        return len(tasks), len(choosing), _scores(env, players, hosts)


def _refuse_other_data(entrant: Entrant, prepared: Path) -> None:
    """Refuse other data: they may hold, as training samples, what is validated on here."""
    here = data_hash(prepared)
    if entrant.data_sha256 != here:
        raise SimicError(
            f"{entrant.name}: was trained on data {entrant.data_sha256[:12]}, {prepared} is {here[:12]} "
            f"({read_meta(prepared).source}): both must be of the same task; prepare its data again, or take its alias "
            "away in MLflow"
        )


def _refuse_other_rules(entrant: Entrant, params: Params) -> None:
    theirs, ours = (train.model_dump(mode="json") for train in (entrant.learned.train, params.train))
    for name in SETTINGS:
        if theirs[name] != ours[name]:
            raise SimicError(
                f"{entrant.name}: was trained with train.{name} = {theirs[name]}, params.yaml has {ours[name]}: hosts "
                "must grow under the same rules; set the old value again, or take its alias away in MLflow"
            )


def _player(entrant: Entrant, env: GrowthEnv) -> Actor:
    try:
        refuse_other_host(entrant.learned, env.host)
    except SimicError as error:
        raise SimicError(f"{entrant.name}: {error}") from None
    return entrant.learned.actor(greedy=True)


def _scores(env: GrowthEnv, players: Mapping[str, Actor], hosts: Hosts) -> dict[str, Values]:
    scores, units = dict[str, Values](), rows_by_task(dict(enumerate(hosts.tasks.tolist())))
    for playing in play_in_groups(env, players, hosts):
        accuracy, _, size, _ = committed(env, None).numpy()
        points = score(accuracy, size - env.host.params, env.host.params, env.train.price)
        scores |= {name: np.array([points[rows][unit].mean() for unit in units]) for name, (rows, _) in playing.items()}
    return scores
