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
from simic.envs.rewards.transition import score
from simic.errors import SimicError
from simic.evaluation import gym
from simic.evaluation.endpoints import SETTINGS
from simic.evaluation.policies import BASELINES, refuse_other_host
from simic.evaluation.result import Frozen
from simic.evaluation.scoring import Hosts, at_once, committed, open_env, play_in_groups
from simic.evaluation.statistics import Interval, Values, compare
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


class Compared(Frozen):
    """The challenger less one opponent, in points of score, over the same tasks."""

    opponent: str
    difference: Interval
    p_value: float
    probability_of_improvement: float
    pairs: int  # tasks; hosts where there is one task

    @property
    def won(self) -> bool:
        """Return whether the whole interval is above 0."""
        return self.difference.low > 0


class Contest(Frozen):
    """Hosts and tasks that were played, and the comparison with each opponent."""

    data_sha256: str
    hosts: int
    tasks: int
    iteration: int  # keys the draws of the hosts
    compared: tuple[Compared, ...]


def contest(params: Params, prepared: Path, challenger: Entrant, champion: Entrant | None) -> Contest:
    """Play the challenger against the champion, or against ``FLOORS`` where there is none. SimicError where they are
    not of one task and one space of observations and actions.
    """
    if params.prepare.is_gym:
        return _gym_contest(params, prepared, challenger, champion)
    with held_out_closed("who is champion is decided on validation splits"):
        entrants = [challenger, *([champion] if champion else [])]
        for entrant in entrants:
            _refuse_other_task(entrant, params, prepared)
        opponents = [CHAMPION] if champion else list(FLOORS)
        env, hosts = _arena(params, prepared, entrants, policies=1 + len(opponents))
        with closing(env):
            for entrant in entrants:
                _refuse_other_space(entrant, env)
            players: dict[str, Actor] = {CHALLENGER: challenger.learned.actor(greedy=True)}
            players |= {name: BASELINES[name](env) for name in opponents if name in BASELINES}
            if champion:
                players[CHAMPION] = champion.learned.actor(greedy=True)
            scores = _scores(env, players, hosts)
    return Contest(
        data_sha256=challenger.data_sha256,
        hosts=len(hosts.tasks),
        tasks=len(set(hosts.tasks.tolist())),
        iteration=hosts.iteration,
        compared=tuple(_compared(name, scores, params.rng_seed) for name in opponents),
    )


def _gym_contest(params: Params, prepared: Path, challenger: Entrant, champion: Entrant | None) -> Contest:
    """Play fresh episodes of a Gymnasium environment, against random actions where there is no champion."""
    machine.configure(params.runtime)
    entrants = [challenger, *([champion] if champion else [])]
    for entrant in entrants:
        _refuse_other_data(entrant, prepared)
    iteration, opponent = _drawn(entrants), CHAMPION if champion else gym.RANDOM
    first, second = gym.contest(params, iteration, challenger.learned, champion.learned if champion else None)
    scores = {CHALLENGER: np.array(first.returns), opponent: np.array(second.returns)}
    return Contest(
        data_sha256=challenger.data_sha256,
        hosts=params.evaluate.eval_seeds,
        tasks=1,
        iteration=iteration,
        compared=(_compared(opponent, scores, params.rng_seed),),
    )


def _refuse_other_task(entrant: Entrant, params: Params, prepared: Path) -> None:
    """Refuse other data: they may hold, as training samples, what is validated on here."""
    _refuse_other_data(entrant, prepared)
    theirs, ours = (train.model_dump(mode="json") for train in (entrant.learned.train, params.train))
    for name in SETTINGS:
        if theirs[name] != ours[name]:
            raise SimicError(
                f"{entrant.name}: was trained with train.{name} = {theirs[name]}, params.yaml has {ours[name]}: hosts "
                "must grow under the same rules; set the old value again, or take its alias away in MLflow"
            )


def _refuse_other_data(entrant: Entrant, prepared: Path) -> None:
    here = data_hash(prepared)
    if entrant.data_sha256 != here:
        raise SimicError(
            f"{entrant.name}: was trained on data {entrant.data_sha256[:12]}, {prepared} is {here[:12]} "
            f"({read_meta(prepared).source}): both must be of the same task; prepare its data again, or take its alias "
            "away in MLflow"
        )


def _refuse_other_space(entrant: Entrant, env: GrowthEnv) -> None:
    try:
        refuse_other_host(entrant.learned, env.host)
    except SimicError as error:
        raise SimicError(f"{entrant.name}: {error}") from None


def _arena(params: Params, prepared: Path, entrants: list[Entrant], policies: int) -> tuple[GrowthEnv, Hosts]:
    """Draw hosts for these entrants, at least ``evaluate.eval_seeds``, of every validation task as many; open rows for
    some policies at once.
    """
    device = machine.configure(params.runtime)
    choosing = torch.tensor(read_meta(prepared).of_group("val"))
    tasks = choosing.repeat(-(-params.evaluate.eval_seeds // len(choosing)))
    hosts = Hosts(tasks, torch.arange(len(tasks)), _drawn(entrants))
    rows = torch.arange(len(tasks) * at_once(len(tasks), policies))
    splits = load_split(prepared, "train", device), load_split(prepared, "val", device)
    return open_env(params.train, params.rng_seed, params.runtime, splits, rows, device), hosts


def _drawn(entrants: list[Entrant]) -> int:
    """Return the namespace of what is played, drawn for these policies."""
    drawn = durable.sha256_of("".join(entrant.sha256 for entrant in entrants).encode())
    return PROMOTION_ITERATION + int(drawn[:_HEX_DIGITS], 16)


def _scores(env: GrowthEnv, players: Mapping[str, Actor], hosts: Hosts) -> dict[str, Values]:
    """Return the scores of each player on every task, or on every host where there is one task."""
    scores = dict[str, Values]()
    for playing in play_in_groups(env, players, hosts):
        accuracy, _, size, _ = committed(env, None).numpy()
        points = score(accuracy, size - env.host.params, env.host.params, env.train.price)
        scores |= {name: _by_task(points[rows], hosts.tasks.numpy()) for name, (rows, _) in playing.items()}
    return scores


def _by_task(points: Values, tasks: Values) -> Values:
    different = np.unique(tasks)
    return points if len(different) == 1 else np.array([points[tasks == task].mean() for task in different])


def _compared(opponent: str, scores: Mapping[str, Values], rng_seed: int) -> Compared:
    compared = compare(scores[CHALLENGER], scores[opponent], rng_seed)
    return Compared(
        opponent=opponent,
        difference=compared.difference,
        p_value=compared.p_value,
        probability_of_improvement=compared.probability_of_improvement,
        pairs=compared.seeds,
    )
