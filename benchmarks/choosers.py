"""Supervised choosers: try one to three seeds, then extra trees pick one of all from what was seen of them.

The outcome of every opening is known on hosts of training tasks: hosts that are alike up to the choice go on with one
opening each. Which seeds are tried, and for how long, is searched for on the same tasks.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic import rng
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation
from simic.errors import SimicError
from simic.evaluation.rules import opening_name
from simic.evaluation.scoring import ROWS_AT_ONCE
from simic.evaluation.trials import (
    SEEN,
    ByLength,
    Opening,
    TrialPlan,
    Watched,
    last_decisions,
    possible_openings,
)
from simic.evaluation.tuning import OPENING_HOSTS, PATIENCE, Ground, Told, grown_alone
from simic.params import Params

TRAININGS = 3000  # of hosts, that the final model of a design learns from
MOST_TRIES = 3
DESIGNS = 3  # for each number of epochs, that are tried beyond the first estimate
DESIGN_HOSTS = 32  # on which they are
LEAVES = (1, 2, 4, 8, 16)  # least rows of a leaf
COMPARED_LEAVES = (1, 4)  # of those, while designs are compared
FOLDS = 4
TREES, FEWER_TREES = 200, 50  # fewer while designs are compared
ESTIMATE_LEAF = 2
MISSING = -1000.0  # of what was not measured

Table, Folds = NDArray[np.float64], NDArray[np.int64]


class Model(Protocol):
    """A regressor of scikit-learn with several outputs."""

    def fit(self, X: Table, y: Table) -> object: ...

    def predict(self, X: Table) -> Table: ...


@dataclass(frozen=True)
class Design:
    """Which openings are tried, by their places among all, and for how many epochs each."""

    tries: tuple[int, ...]
    patience: int

    def plan(self, openings: Sequence[Opening]) -> TrialPlan:
        """Return the plan, whose order is that of ``places``."""
        order = tuple(openings[place] for place in self.places(len(openings)))
        return TrialPlan(order, len(self.tries), self.patience, float("inf"), True)

    def places(self, count: int) -> list[int]:
        """Return all places: those that are tried first, then the others."""
        return [*self.tries, *(place for place in range(count) if place not in self.tries)]


@dataclass(frozen=True)
class Fitted:
    """A chooser for episodes of so many epochs."""

    epochs: int
    design: Design
    leaf: int
    model: Model  # predicts every opening's score less their mean
    gain: float  # points over a random opening, cross-validated over tasks
    hosts: int  # that it learned from, each with every opening

    def words(self, names: Sequence[str]) -> str:
        """Return it as in a table, given the openings' names."""
        tried = ", ".join(names[place] for place in self.design.tries)
        return f"{tried} for {self.design.patience} epoch(s) each, leaves of {self.leaf}"


@dataclass(frozen=True)
class Choosers:
    """A chooser for each number of epochs, and how many host trainings they cost together."""

    fitted: tuple[Fitted, ...]
    openings: tuple[Opening, ...]
    names: tuple[str, ...]  # of the openings
    trainings: int

    def actor(self, env: GrowthEnv) -> ByLength:
        """Return the choosers as one actor."""
        return ByLength({each.epochs: Guided(env, each, self.openings) for each in self.fitted})


class Guided(Watched):
    """Tries as its chooser's design says, then grows what the model expects most of."""

    def __init__(self, env: GrowthEnv, fitted: Fitted, openings: Sequence[Opening]) -> None:
        super().__init__(env, [fitted.design.plan(openings)], torch.empty(0))
        self.model, self.places = fitted.model, torch.tensor(fitted.design.places(len(openings)))

    def choose(self, situation: Situation) -> Tensor:
        """Return the place in the order of the opening that the model expects most of."""
        expected = torch.as_tensor(self.model.predict(features(self.seen)))
        return expected[:, self.places].argmax(dim=1).to(self.rows.device)


def features(seen: Tensor) -> Table:
    """Return one row per host of what was ``seen [H, tries, patience, F]``: every value, the accuracy without the seed,
    and the changes of all from epoch to epoch.
    """
    alone = seen[..., SEEN.index("accuracy")] - seen[..., SEEN.index("contribution")]
    values = torch.cat([seen, alone[..., None]], dim=-1)
    parts = [values.flatten(1), values.diff(dim=2).flatten(1)]
    return torch.cat(parts, dim=1).nan_to_num(MISSING).double().cpu().numpy()


# --- fitting ---------------------------------------------------------------------------------------------------------


def regressor(leaf: int, trees: int = TREES) -> Model:
    """Return a model that has learned nothing."""
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(n_estimators=trees, min_samples_leaf=leaf, random_state=0)


def centred(scores: Table) -> Table:
    """Return ``scores [H, P]`` less their mean over the openings of each host: what a choice can change."""
    return scores - scores.mean(axis=1, keepdims=True)


def folds_of(hosts: Tensor, tasks: int) -> Folds:
    """Return a fold for each host ``[H]``: hosts of one task share it, and no kind of task is all in one."""
    groups = hosts % tasks if tasks > 1 else hosts
    return (rng.permutation(rng.key(0, rng.Purpose.SUBSAMPLE), int(groups.max()) + 1)[groups] % FOLDS).numpy()


def chosen_gain(leaf: int, seen: Table, gains: Table, folds: Folds, trees: int = TREES) -> float:
    """Return the mean of ``gains [H, P]`` at the openings that models choose for a fold ``[H]`` they have not met."""
    found = np.empty(len(folds))
    for fold in np.unique(folds):
        inside, outside = folds != fold, folds == fold
        if not inside.any():
            raise SimicError("chooser: its hosts are all of one fold: it needs more tasks of training, or more hosts")
        model = regressor(leaf, trees)
        model.fit(seen[inside], gains[inside])
        best = model.predict(seen[outside]).argmax(axis=1)
        found[outside] = gains[outside][np.arange(len(best)), best]
    return float(found.mean())


def fit(epochs: int, design: Design, seen: Table, scores: Table, folds: Folds) -> Fitted:
    """Return a chooser with the leaf size that is best for tasks it has not met, fitted on all of them."""
    gains = centred(scores)
    by_leaf = {leaf: chosen_gain(leaf, seen, gains, folds) for leaf in LEAVES}
    leaf = max(by_leaf, key=lambda leaf: by_leaf[leaf])
    model = regressor(leaf)
    model.fit(seen, gains)
    return Fitted(epochs, design, leaf, model, by_leaf[leaf], len(scores))


# --- data ------------------------------------------------------------------------------------------------------------


@dataclass
class Outcomes:
    """What was seen on hosts in the trials of a design ``[H, D]``, and what every opening reached ``[L, H, P]``."""

    seen: Table
    scores: Table
    hosts: Tensor  # [H]

    def and_(self, other: "Outcomes") -> "Outcomes":
        """Return both, one after the other."""
        return Outcomes(
            np.concatenate([self.seen, other.seen]),
            np.concatenate([self.scores, other.scores], axis=1),
            torch.cat([self.hosts, other.hosts]),
        )


def outcomes(ground: Ground, openings: Sequence[Opening], design: Design, hosts: Tensor, told: Told) -> Outcomes:
    """Play the trials of a design on ``hosts [H]`` once for every opening, which is grown after them."""
    count, plan = len(openings), design.plan(openings)
    position = torch.tensor(design.places(count)).argsort()  # in the order, of every place

    def make(part: Tensor) -> Watched:
        return Watched(ground.env, [plan], position[part % count])

    rows = hosts.repeat_interleave(count)
    scores, actors = ground.play(make, rows, lambda done, of: told("choosers, outcomes of trials", done, of))
    seen = torch.cat([actor.seen for actor in actors if isinstance(actor, Watched)])[: len(rows) : count]
    return Outcomes(features(seen), scores.view(-1, len(hosts), count).numpy(), hosts)


# --- the search ------------------------------------------------------------------------------------------------------


def learn(
    params: Params,
    prepared: Path,
    epochs: Sequence[int],
    device: torch.device,
    told: Told = lambda *_: None,
    trainings: int = TRAININGS,
    opening_hosts: int = OPENING_HOSTS,
    design_hosts: int = DESIGN_HOSTS,
    rows: int = ROWS_AT_ONCE,
) -> Choosers:
    """Return a chooser for each number of epochs.

    Openings grown alone on ``opening_hosts`` give a first estimate of every design; the best are played on
    ``design_hosts``, and the best of these until about ``trainings`` hosts were trained for it.
    """
    ground = Ground.open(params, prepared, device, epochs, rows)
    with closing(ground.env) as env:
        openings = possible_openings(env)
        designs = promising(params, prepared, device, ground, openings, opening_hosts, rows, told)
        first = opening_hosts + torch.arange(design_hosts)
        tried = {design: outcomes(ground, openings, design, first, told) for designs_ in designs for design in designs_}
        best = [_best_of(tried, of_length, k, len(ground.tasks)) for k, of_length in enumerate(designs)]
        more = max(0, trainings // len(openings) - design_hosts)
        rest = opening_hosts + design_hosts + torch.arange(more)
        if more:
            tried |= {d: tried[d].and_(outcomes(ground, openings, d, rest, told)) for d in dict.fromkeys(best)}
        fitted = []
        for k, design in enumerate(best):
            data = tried[design]
            folds = folds_of(data.hosts, len(ground.tasks))
            fitted.append(fit(ground.epochs[k], design, data.seen, data.scores[k], folds))
        names = tuple(opening_name(opening, [item.name for item in env.blueprints]) for opening in openings)
    return Choosers(tuple(fitted), tuple(openings), names, ground.trainings)


def _best_of(tried: dict[Design, Outcomes], designs: Sequence[Design], k: int, tasks: int) -> Design:
    """Return the design whose choices reach most at length ``k``, on hosts that all designs were played on."""

    def reached(design: Design) -> float:
        data = tried[design]
        own = (data.hosts % tasks).numpy()
        gains = centred(data.scores[k])
        return data.scores[k].mean() + max(
            chosen_gain(leaf, data.seen, gains, own, FEWER_TREES) for leaf in COMPARED_LEAVES
        )

    return max(designs, key=reached)


def promising(
    params: Params,
    prepared: Path,
    device: torch.device,
    ground: Ground,
    openings: Sequence[Opening],
    hosts: int,
    rows: int,
    told: Told,
) -> list[list[Design]]:
    """Return the designs that seem best for each number of epochs, from openings grown alone on ``hosts``: what is
    chosen is estimated to gain what it gains in the epochs that the trials leave.
    """
    by_tries = {(tries, patience): tries * (last_decisions(params.train.lifecycle) - 1 + patience)
                for tries, patience in product(range(1, MOST_TRIES + 1), PATIENCE)}  # fmt: skip
    left = {n - taken for n, taken in product(ground.epochs, by_tries.values()) if n > taken}
    if not left:
        raise SimicError(
            f"chooser: episodes of {max(ground.epochs)} epochs leave none after a trial: ask for longer ones"
        )
    apart = Ground.open(params, prepared, device, sorted({*left, max(ground.epochs)}), rows)
    ids = torch.arange(hosts)
    with closing(apart.env):
        scores, seen = grown_alone(apart, openings, ids, told)
        bare = never_grown(apart, openings, ids)
    ground.trainings += apart.trainings
    gains = dict(zip(apart.epochs, (scores - bare[:, :, None]).numpy(), strict=True))
    folds = folds_of(ids, len(ground.tasks))

    def estimate(design: Design, n: int) -> float:
        rest = n - by_tries[len(design.tries), design.patience]
        if rest < 1:
            return -np.inf
        shown = features(seen[:, list(design.tries), : design.patience])
        return chosen_gain(ESTIMATE_LEAF, shown, gains[rest], folds, FEWER_TREES)

    return [_searched(len(openings), lambda design, n=n: estimate(design, n)) for n in ground.epochs]


def never_grown(ground: Ground, openings: Sequence[Opening], hosts: Tensor) -> Tensor:
    """Return the scores ``[L, H]`` of hosts in which nothing germinates."""
    nothing = TrialPlan(tuple(openings), 0, 1, float("inf"), False)
    scores, _ = ground.play(lambda part: Watched(ground.env, [nothing], torch.zeros_like(part)), hosts)
    return scores


def _searched(count: int, estimate: Callable[[Design], float]) -> list[Design]:
    """Return the best ``DESIGNS`` by expected gain of a greedy search: single openings, then one added to the best."""
    found = dict[Design, float]()
    for patience in PATIENCE:
        best: tuple[int, ...] = ()
        for _ in range(min(MOST_TRIES, count)):
            longer = [Design((*best, place), patience) for place in range(count) if place not in best]
            found |= {design: estimate(design) for design in longer}
            best = max(longer, key=lambda design: found[design]).tries
    possible = [design for design, value in found.items() if np.isfinite(value)]
    return sorted(possible, key=lambda design: -found[design])[:DESIGNS]
