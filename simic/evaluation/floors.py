"""What a grown network stands beside: a guess, scikit-learn's models and networks that do not grow, on its own splits.

Each is fitted to the training split; where there are several, validation chooses; the test split scores. Of networks as
many are trained as were grown, for as many epochs.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from simic.data.batches import HeldOut
from simic.envs.growth_env import GrowthEnv
from simic.evaluation.page import markdown
from simic.evaluation.result import Frozen
from simic.evaluation.static_baselines import Network, Regime, filled, from_the_start, logistic_models
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.growth.networks.tabular import TOGETHER
from simic.params import Host, Params
from simic.progress import Progress

GROWN, MAJORITY = "grown network", "majority class"
PLAIN = {
    "tables": Host(family="tables", preset="baseline", widths=(64, 64)),
    "mlp": Host(family="mlp", preset="baseline", widths=(128, 128)),
    "cnn": Host(family="cnn", preset="baseline", widths=(16, 32, 64), kernel_size=3),
    "transformer": Host(family="transformer", preset="deep"),
}
STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # inverse penalties of logistic regression
MOST_ITERATIONS = 300
MOST_VALUES = 20_000_000  # rows × columns × classes that scikit-learn's models are fitted to
UNEVEN = 0.5  # a class with less than so many times the samples of another

Correct = NDArray[np.bool_]


@dataclass(frozen=True)
class Samples:
    """One split for scikit-learn: standardised features, what they were made of, and labels."""

    x: NDArray[np.float32]
    raw: NDArray[np.generic]
    y: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Contender:
    """One model's right answers on the test split, what it cost, and the mean accuracy of all that were trained."""

    name: str
    correct: Correct
    size: int
    seconds: float
    unit: str = ""  # of size; empty: parameters
    mean_pct: float | None = None


class FloorRow(Frozen):
    """One line of the table; ``mean_pct`` is over all networks that were trained, the others are of the one chosen."""

    name: str
    accuracy_pct: float
    balanced_pct: float | None  # None where classes are even
    mean_pct: float | None
    size: str
    seconds: float


class Floors(Frozen):
    """All floors with the grown network, and which a person should use."""

    rows: tuple[FloorRow, ...]
    hosts: int
    advice: str

    def table(self) -> str:
        """Return the rows as Markdown, in columns that also align as plain text: accuracies in percent, seconds."""
        balanced = self.rows[0].balanced_pct is not None
        cells = [["", "test", *["balanced"] * balanced, f"mean of {self.hosts}", "parameters", "s"]]  # 80 columns
        for row in self.rows:
            mean = "" if row.mean_pct is None else f"{row.mean_pct:.1f}"
            extra = [f"{row.balanced_pct:.1f}"] if row.balanced_pct is not None else []
            cells.append([row.name, f"{row.accuracy_pct:.1f}", *extra, mean, row.size, f"{row.seconds:.1f}"])
        return markdown(cells)


def floors(
    params: Params,
    env: GrowthEnv,
    held: HeldOut,
    samples: dict[str, Samples] | None,
    codes: tuple[int, ...],
    grown: Contender,
    told: Progress,
) -> Floors:
    """Fit all floors beside a grown network; ``env`` is at the end of the episode that it grew in. ``samples`` are the
    splits as scikit-learn takes them (None: tokens), and ``codes`` the raw columns that hold codes.
    """
    y, classes = held.test.y.cpu().numpy().ravel(), held.test.classes
    commonest = int(held.train.y.flatten().bincount().argmax())
    contenders = [Contender(MAJORITY, y == commonest, 0, 0.0)]
    fits = list[Callable[[], Contender]]()
    if samples is not None:
        fits += [partial(_logistic, samples, classes), partial(_boosting, samples, codes, classes)]
    fits += [partial(_trained, params, env, held, network) for network in _networks(env)]
    for done, fit in enumerate(fits, start=1):
        contenders.append(fit())
        told("compared with, models", done, len(fits))
    contenders.append(grown)
    counts = np.bincount(y, minlength=classes)
    uneven = bool(counts.min() < UNEVEN * counts.max())
    balance = 1.0 / np.maximum(counts, 1)[y]
    weights = balance / balance.sum() if uneven else np.full(len(y), 1 / len(y))
    rows = tuple(
        FloorRow(
            name=each.name,
            accuracy_pct=round(100 * float(each.correct.mean()), 4),
            balanced_pct=round(100 * float(each.correct @ weights), 4) if uneven else None,
            mean_pct=None if each.mean_pct is None else round(each.mean_pct, 4),
            size=f"{each.size:,}{each.unit}",
            seconds=round(each.seconds, 2),
        )
        for each in contenders
    )
    return Floors(rows=rows, hosts=env.num_envs, advice=advice(contenders, weights))


def advice(contenders: Sequence[Contender], weights: NDArray[np.float64]) -> str:
    """Say which to use: the first, from the plainest on, that is not worse than the best by more than one standard
    error of their difference on the test split (Breiman et al. 1984); the grown network is the last.

    ``weights [N]`` sum to 1: equal ones, or such that every class counts as much.
    """
    scores = [float(each.correct @ weights) for each in contenders]
    best, grown = contenders[int(np.argmax(scores))], contenders[-1]
    chosen = next(k for k, each in enumerate(contenders) if not _is_behind(best, each, weights))
    said = [f"{100 * score:.1f} % for {_cost(each)}" for score, each in zip(scores, contenders, strict=True)]
    measure = "balanced accuracy" if len(np.unique(weights.round(12))) > 1 else "accuracy"
    if chosen == len(scores) - 1:
        below = int(np.argmax(scores[:-1]))
        return (
            f"Use the grown network: {measure} {said[-1]}, against {said[below]} of the best of the others, "
            f"{_named(contenders[below])}."
        )
    if contenders[chosen].name == MAJORITY:
        return f"Use none of these: nothing beats always answering the commonest class ({said[0]}) by more than chance."
    shown = [round(100 * score, 1) for score in scores]  # so that the difference is that of the numbers beside it
    lead = round(shown[-1] - shown[chosen], 1)
    more = f"{lead:.1f} points more, which may be chance" if lead > 0 else f"{-lead:.1f} points less"
    found = (
        f"Use {_named(contenders[chosen])}: {measure} {said[chosen]}. The grown network is not the one to take here: "
        f"{said[-1]} ({more if lead else 'no better'})."
    )
    if best in (grown, contenders[chosen]):
        return found
    return f"{found} The highest is {_named(best)} with {100 * max(scores):.1f} %, which may be chance."


def _is_behind(best: Contender, other: Contender, weights: NDArray[np.float64]) -> bool:
    """Return whether another is behind the best by more than the standard error of that."""
    difference = best.correct.astype(np.float64) - other.correct
    lag = float(difference @ weights)
    return lag > float(np.sqrt(np.square(weights * (difference - lag)).sum()))


def _named(each: Contender) -> str:
    return each.name if each.mean_pct is None else f"the {each.name}"


def _cost(each: Contender) -> str:
    return f"{each.size:,}{each.unit or ' parameters'} and {each.seconds:.1f} s"


# --- scikit-learn's models ------------------------------------------------------------------------------


def _rows(samples: Samples, classes: int) -> tuple[slice, str]:
    """Return the training rows that are fitted to, and what to say of them."""
    most = max(1, MOST_VALUES // (samples.x.shape[1] * classes))
    return slice(most), f" ({most:,} rows)" if most < len(samples.y) else ""


def _logistic(samples: dict[str, Samples], classes: int) -> Contender:
    began, train, val, test = time.perf_counter(), samples["train"], samples["val"], samples["test"]
    rows, said = _rows(train, classes)

    def loss(model: LogisticRegression) -> float:  # not accuracy: of a few samples many strengths would be equal
        return float(log_loss(val.y, model.predict_proba(val.x), labels=model.classes_))

    best = min(logistic_models(train.x[rows], train.y[rows], STRENGTHS, MOST_ITERATIONS), key=loss)
    size, correct = np.size(best.coef_) + np.size(best.intercept_), np.equal(best.predict(test.x), test.y)
    return Contender(f"logistic regression{said}", correct, size, time.perf_counter() - began)


def _boosting(samples: dict[str, Samples], codes: tuple[int, ...], classes: int) -> Contender:
    """With scikit-learn's own settings; it takes missing values and codes of strings as they are."""
    began, train, test = time.perf_counter(), samples["train"], samples["test"]
    rows, said = _rows(train, classes)
    chosen: Any = {"categorical_features": list(codes)} if codes else {}
    model = HistGradientBoostingClassifier(random_state=0, **chosen)
    model.fit(train.raw[rows].reshape(len(train.y[rows]), -1), train.y[rows])
    correct = np.equal(model.predict(test.raw.reshape(len(test.y), -1)), test.y)
    trees = int(model.n_iter_) * (1 if classes == 2 else classes)
    return Contender(f"gradient boosting{said}", correct, trees, time.perf_counter() - began, unit=" trees")


# --- networks --------------------------------------------------------------------------------------------------------


def _networks(env: GrowthEnv) -> Iterator[Network]:
    """Yield name, host, blueprints and seeds of every form of network that is trained."""
    host, hosts, device = env.host, env.num_envs, env.device
    kinds, bare = blueprints_of(host.family), Slots.empty(hosts, host.slots, device)
    yield "host alone", host, kinds, bare
    if host.family in PLAIN:
        plain = build_host(PLAIN[host.family], host.input_shape, host.classes)
        yield f"plain {host.family} network", plain, kinds, Slots.empty(hosts, plain.slots, device)
    if host.family == TOGETHER.family:
        yield "all modules from the start", host, (TOGETHER,), filled(hosts, host, device, 0)
    kept = from_the_start(env.slots)
    if bool((kept.blueprint >= 0).any()):
        yield "its modules from the start", host, kinds, kept


def _trained(params: Params, env: GrowthEnv, held: HeldOut, network: Network) -> Contender:
    """Train, in this process, one network for each host that grew, in its order of samples; the best by validation is
    kept.
    """
    began, hosts, (name, host, kinds, slots) = time.perf_counter(), env.num_envs, network
    optimizer, backend = params.train.host_optimizer, params.runtime.backend
    population = Population(host, kinds, env.env_ids, params.rng_seed, optimizer, env.device, backend)
    tasks = torch.zeros(hosts, dtype=torch.int64, device=env.device)
    regime = Regime(params.train, held.train, held.test, tasks, env.iteration)
    [trained] = regime.run(population, slots, torch.full((1, hosts), params.train.longest_episode, device=env.device))
    off = torch.zeros_like(slots.blueprint, dtype=torch.bool)[None]
    chosen = int(population.evaluate(slots, held.val, off).correct[0].float().flatten(1).mean(1).argmax())
    correct = population.evaluate(slots, held.test, off).correct[0].float().flatten(1)
    mean = 100 * float(correct.mean())
    right = (correct[chosen] > 0.5).cpu().numpy()
    return Contender(name, right, trained.params[chosen], time.perf_counter() - began, mean_pct=mean)
