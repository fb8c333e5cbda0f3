"""What a grown network stands beside: a guess, scikit-learn's models and networks that do not grow, on its own splits.

Each is fitted to the training split; where there are several, validation chooses; the test split scores. A network
of each kind is trained as often as hosts were grown, for as many epochs.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    log_loss,
    roc_auc_score,
    roc_curve,
)

from simic.data.batches import Dataset, HeldOut
from simic.data.own.rates import rates
from simic.data.raw_inputs import InputColumn, RawInputs
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.evaluation.fitted_models import (
    FittedModel,
    LinearScores,
    TreeFeatures,
    TreeScores,
    places_among,
)
from simic.evaluation.page import markdown
from simic.evaluation.result import Frozen
from simic.evaluation.static_baselines import (
    Regime,
    StaticNetwork,
    filled,
    from_the_start,
    logistic_models,
)
from simic.growth.batch.population import Population
from simic.growth.grown_network import FittedStructure, GrownNetwork, Product, grown_network
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.growth.networks.tabular import TOGETHER
from simic.params import Host, Params
from simic.progress import Progress

GROWN = "grown network"
MAJORITY = "majority class"
ALL_MODULES = "all modules from the start"
# Features with which all modules together are trained: they compare all pairs, some of them several times.
MOST_TOGETHER = 128
PLAIN = {
    "tables": Host(family="tables", preset="baseline", widths=(64, 64)),
    "mlp": Host(family="mlp", preset="baseline", widths=(128, 128)),
    "cnn": Host(family="cnn", preset="baseline", widths=(16, 32, 64), kernel_size=3),
    "transformer": Host(family="transformer", preset="deep"),
}
# Inverse penalties of logistic regression.
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
MOST_ITERATIONS = 300
# Levels of a column that gradient boosting takes as they are: it needs ten rows of each.
MOST_CATEGORIES = 20
# Rows × columns × classes that scikit-learn's models are fitted to.
MOST_VALUES = 20_000_000
# Classes are uneven when the rarest has less than this share of the samples of the commonest.
UNEVEN = 0.5
# Of two classes one threshold decides.
TWO = 2
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Samples:
    """Hold one split for scikit-learn."""

    # Standardised features [N, D].
    x: NDArray[np.float32]
    # What the features were made of, as models are given it; None: there is nothing but the features.
    raw: NDArray[np.generic] | None
    y: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Contender:
    """Hold one model's right answers on the test split, and what it cost."""

    name: str
    # Share of right answers in each sample, [N]: 0 or 1 where a sample has one answer; a sequence has one a token.
    correct: NDArray[np.floating | np.bool_]
    size: int
    seconds: float
    # Unit of the size; empty: parameters.
    unit: str = ""
    # Goes before the name in a sentence.
    article: str = ""
    # Accuracy of all networks that were trained.
    mean_pct: float | None = None
    # Where classes are uneven: probabilities of the classes [N, classes] on "val" and "test".
    chances: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)
    # What can be saved; None of a guess.
    model: Product | None = None

    @property
    def noun(self) -> str:
        """Name it within a sentence."""
        return f"{self.article}{self.name}"

    @property
    def cost(self) -> str:
        """Describe its size and time."""
        return f"{self.size:,}{self.unit or ' parameters'} and {self.seconds:.1f} s"


class FloorRow(Frozen):
    """One line of the table; ``mean_pct`` is over all networks that were trained, the others are of the one chosen."""

    name: str
    accuracy_pct: float
    # Every class counts as much; None where classes are even.
    balanced_pct: float | None
    mean_pct: float | None
    size: str
    seconds: float
    ranking: "Ranking | None" = None


class Ranking(Frozen):
    """How well probabilities rank samples of uneven classes: of two classes the rarest, of more the mean over all."""

    auc_pct: float
    average_precision_pct: float
    # Of two classes: from which probability on the rarest is answered, chosen on validation rows, and what that gives.
    threshold: float | None = None
    balanced_pct: float | None = None


class Floors(Frozen):
    """All floors with the grown network, and which a person should use."""

    rows: tuple[FloorRow, ...]
    hosts: int
    advice: str
    # What was not trained, and why.
    left_out: str = ""

    def table(self) -> str:
        """Write the rows as Markdown, in columns that also align as plain text: accuracies in percent, seconds."""
        balanced = self.rows[0].balanced_pct is not None
        # The widest table has 80 columns, as many as a terminal.
        cells = [["", "test", *["balanced"] * balanced, f"mean of {self.hosts}", "parameters", "s"]]
        for row in self.rows:
            mean = "" if row.mean_pct is None else f"{row.mean_pct:.1f}"
            extra = [f"{row.balanced_pct:.1f}"] if row.balanced_pct is not None else []
            cells.append(
                [row.name, f"{row.accuracy_pct:.1f}", *extra, mean, row.size, f"{row.seconds:.1f}"]
            )
        left_out = [self.left_out] if self.left_out else []
        return "\n\n".join([markdown(cells), *self._rankings(), *left_out])

    def _rankings(self) -> list[str]:
        """Write how well probabilities rank, where classes are uneven."""
        rankings = {row.name: row.ranking for row in self.rows if row.ranking is not None}
        cells = [["uneven classes", "AUC", "average precision", "threshold", "balanced there"]]
        for name, ranking in rankings.items():
            chosen = (ranking.threshold, ranking.balanced_pct)
            cells.append(
                [
                    name,
                    f"{ranking.auc_pct:.1f}",
                    f"{ranking.average_precision_pct:.1f}",
                    "" if chosen[0] is None else f"{chosen[0]:.3f}",
                    "" if chosen[1] is None else f"{chosen[1]:.1f}",
                ]
            )
        return [markdown(cells)] if rankings else []


def floors(
    params: Params,
    env: GrowthEnv,
    held_out: HeldOut,
    samples: dict[str, Samples] | None,
    inputs: RawInputs | None,
    grown: Contender,
    progress: Progress,
) -> tuple[Floors, Contender | None]:
    """Fit all floors, and compare them with a grown network.

    Args:
        params: how networks are trained.
        env: at the end of the episode in which the network grew.
        held_out: the splits.
        samples: the same, by name, for scikit-learn; None: tokens, which it does not take.
        inputs: what a saved model takes in place of standardised samples.
        grown: the network.
        progress: hears how many models are fitted.

    Returns:
        The comparison, and the model that it recommends; None where that is the grown network or nothing.
    """
    # Fit all floors, from the plainest on; the grown network is the last.
    y = held_out.test.y.cpu().numpy()
    classes = held_out.test.classes
    commonest = int(held_out.train.y.flatten().bincount().argmax())
    fits: list[Callable[[], Contender]] = []
    if samples is not None:
        structure = FittedStructure(
            model="", input_shape=held_out.test.shape, classes=classes, inputs=inputs
        )
        fits += [
            partial(_fit_logistic, samples, structure),
            partial(_fit_boosting, samples, structure),
        ]
    fits += [partial(_train, params, env, held_out, inputs, *network) for network in _networks(env)]
    contenders = [Contender(MAJORITY, (y == commonest).reshape(len(y), -1).mean(1), 0, 0.0)]
    for fit in fits:
        contenders.append(fit())
        progress("compared with, models", len(contenders) - 1, len(fits))
    contenders.append(grown)

    # Where classes are uneven, balanced accuracy decides. A sequence has no class, so all count as much.
    weights = np.full(len(y), 1 / len(y))
    counts = np.bincount(y.ravel(), minlength=classes)
    uneven = is_uneven(held_out)
    if uneven:
        balance = 1.0 / counts[y]
        weights = balance / balance.sum()
    rows = tuple(
        FloorRow(
            name=contender.name,
            accuracy_pct=round(100 * float(contender.correct.mean()), 4),
            balanced_pct=round(100 * float(contender.correct @ weights), 4) if uneven else None,
            mean_pct=None if contender.mean_pct is None else round(contender.mean_pct, 4),
            size=f"{contender.size:,}{contender.unit}",
            seconds=round(contender.seconds, 2),
            ranking=_ranking(contender.chances, held_out) if uneven else None,
        )
        for contender in contenders
    )
    # What is missing in the table is said below it.
    left_out = ""
    features = env.host.input_shape[-1]
    if env.host.family == TOGETHER.family and features > MOST_TOGETHER:
        left_out = f"Left out: {ALL_MODULES}, since {features} features have too many pairs."
    compared = Floors(
        rows=rows,
        hosts=env.num_envs,
        advice=advice(contenders, weights),
        left_out=left_out,
    )
    recommended = contenders[_chosen(contenders, weights)]
    is_other = recommended is not grown and recommended.model is not None
    return compared, recommended if is_other else None


def is_uneven(held_out: HeldOut) -> bool:
    """Tell whether the rarest class has far fewer test samples than the commonest; a sequence has no class."""
    y = held_out.test.y
    counts = y.flatten().bincount(minlength=held_out.test.classes)
    return y.ndim == 1 and bool(counts.min() < UNEVEN * counts.max())


def right_answers(network: GrownNetwork, test: Dataset) -> NDArray[np.floating]:
    """Tell whether a network is right, ``[N]``; of sequences the share of right tokens."""
    with torch.no_grad():
        logits = [network.body(x) for x in test.x.cpu().split(ROWS_AT_ONCE)]
    right = torch.cat(logits).argmax(-1) == test.y.cpu()
    # By the same mean as a population's own.
    return right.view(len(test), -1).float().mean(1).numpy()


def network_chances(network: GrownNetwork, held_out: HeldOut) -> dict[str, NDArray[np.floating]]:
    """Compute a network's probabilities where classes are uneven; nothing elsewhere."""
    if not is_uneven(held_out):
        return {}
    chances = dict[str, NDArray[np.floating]]()
    with torch.no_grad():
        for name, data in (("val", held_out.val), ("test", held_out.test)):
            logits = [network.body(x) for x in data.x.cpu().split(ROWS_AT_ONCE)]
            chances[name] = torch.cat(logits).double().softmax(1).numpy()
    return chances


def _ranking(chances: Mapping[str, NDArray[np.floating]], held_out: HeldOut) -> Ranking | None:
    """Measure how well probabilities rank; None without any, or where a split lacks a class."""
    val = held_out.val.y.cpu().numpy()
    test = held_out.test.y.cpu().numpy()
    labels = range(held_out.test.classes)
    is_complete = all((val == label).any() and (test == label).any() for label in labels)
    if not chances or not is_complete:
        return None
    rarest = int(np.bincount(test).argmin())
    ranked = [rarest] if held_out.test.classes == TWO else labels
    auc = [roc_auc_score(test == label, chances["test"][:, label]) for label in ranked]
    precision = [
        average_precision_score(test == label, chances["test"][:, label]) for label in ranked
    ]
    ranking = Ranking(
        auc_pct=round(100 * float(np.mean(auc)), 4),
        average_precision_pct=round(100 * float(np.mean(precision)), 4),
    )
    if len(ranked) > 1:
        return ranking
    # The threshold with the highest balanced accuracy on validation rows (Youden 1950).
    false, true, thresholds = roc_curve(val == rarest, chances["val"][:, rarest])
    threshold = min(1.0, float(thresholds[(true - false).argmax()]))
    answers = chances["test"][:, rarest] >= threshold
    balanced = balanced_accuracy_score(test == rarest, answers)
    return ranking.model_copy(
        update={
            "threshold": round(threshold, 4),
            "balanced_pct": round(100 * float(balanced), 4),
        }
    )


def advice(contenders: Sequence[Contender], weights: NDArray[np.float64]) -> str:
    """Say which to use: the first, from the plainest on, that is not worse than the best by more than one standard
    error of their difference on the test split (Breiman et al. 1984); the grown network is the last.

    ``weights [N]`` sum to 1: equal ones, or such that every class counts as much.
    """
    *alternatives, grown = contenders
    scores = [float(contender.correct @ weights) for contender in contenders]
    best = contenders[int(np.argmax(scores))]
    chosen = _chosen(contenders, weights)
    # Every model is described by what it reaches, and what that costs.
    costs = [
        f"{100 * score:.1f} % for {contender.cost}"
        for score, contender in zip(scores, contenders, strict=True)
    ]
    measure = "balanced accuracy" if len(np.unique(weights.round(12))) > 1 else "accuracy"

    # The grown network, or nothing.
    if chosen == len(alternatives):
        second = int(np.argmax(scores[:-1]))
        return (
            f"Use the grown network: {measure} {costs[-1]}. The best of the others is "
            f"{alternatives[second].noun}: {costs[second]}."
        )
    if alternatives[chosen].name == MAJORITY:
        majority = f"always answering the commonest class ({costs[0]})"
        return f"Use none of these: nothing beats {majority} by more than chance."

    # A floor; the difference is that of the rounded numbers beside it.
    lead = round(round(100 * scores[-1], 1) - round(100 * scores[chosen], 1), 1)
    if lead > 0:
        gain = f"{lead:.1f} points more, which may be chance"
    else:
        gain = f"{-lead:.1f} points less" if lead else "no better"
    sentences = (
        f"Use {alternatives[chosen].noun}: {measure} {costs[chosen]}. The grown network is not the one to take here: "
        f"{costs[-1]} ({gain})."
    )
    if best in (grown, alternatives[chosen]):
        return sentences
    return f"{sentences} The highest is {best.noun} with {100 * max(scores):.1f} %, which may be chance."


def _chosen(contenders: Sequence[Contender], weights: NDArray[np.float64]) -> int:
    best = contenders[int(np.argmax([contender.correct @ weights for contender in contenders]))]
    behind = [_is_behind(best, contender, weights) for contender in contenders]
    return behind.index(False)


def _is_behind(best: Contender, contender: Contender, weights: NDArray[np.float64]) -> bool:
    """Tell whether one is behind the best by more than the standard error of that."""
    # Both answered the same samples, so the error is that of the paired difference.
    difference = best.correct.astype(np.float64) - contender.correct
    lag = float(difference @ weights)
    return lag > float(np.sqrt(np.square(weights * (difference - lag)).sum()))


# --- scikit-learn's models ------------------------------------------------------------------------------


def _rows_to_fit(samples: Samples, classes: int) -> tuple[slice, str]:
    """Choose the training rows that are fitted to, and how a name tells that they are not all."""
    most = max(1, MOST_VALUES // (samples.x.shape[1] * classes))
    return slice(most), f" ({most:,} rows)" if most < len(samples.y) else ""


def _fit_logistic(samples: dict[str, Samples], structure: FittedStructure) -> Contender:
    start = time.perf_counter()
    classes = structure.classes
    train = samples["train"]
    val = samples["val"]
    test = samples["test"]
    rows, note = _rows_to_fit(train, classes)

    # The loss chooses, not accuracy: of a few samples many strengths would be equal.
    def loss(model: LogisticRegression) -> float:
        return float(log_loss(val.y, model.predict_proba(val.x), labels=model.classes_))

    best = min(logistic_models(train.x[rows], train.y[rows], STRENGTHS, MOST_ITERATIONS), key=loss)
    size = np.size(best.coef_) + np.size(best.intercept_)
    correct = np.equal(best.predict(test.x), test.y)
    seconds = time.perf_counter() - start
    chances = _chances(best, {"val": val.x, "test": test.x}, classes)
    name = f"logistic regression{note}"
    program = FittedModel(
        structure.model_copy(update={"model": name}), LinearScores(best), best.classes_, True
    )
    _refuse_other_answers(program, test.x, correct, test.y)
    return Contender(name, correct, size, seconds, chances=chances, model=program)


def _refuse_other_answers(
    model: FittedModel,
    x: NDArray[np.generic],
    correct: NDArray[np.bool_],
    y: NDArray[np.int64],
) -> None:
    """Raise SimicError where a program is not right where scikit-learn's model is."""
    with torch.no_grad():
        batches = torch.from_numpy(np.asarray(x)).split(ROWS_AT_ONCE)
        labels = torch.cat([model.body(batch).argmax(1) for batch in batches]).numpy()
    if not np.array_equal(labels == y, correct):
        raise SimicError(
            f"{model.structure.model}: cannot be saved as its scores were taken, with scikit-learn "
            f"{sklearn.__version__}: install the version of constraints.txt"
        )


def _chances(
    model: Any, splits: Mapping[str, NDArray[np.generic]], classes: int
) -> dict[str, NDArray[np.floating]]:
    """Compute probabilities of all classes on each split, 0 of one that the model was not fitted to."""
    chances = dict[str, NDArray[np.floating]]()
    for name, x in splits.items():
        chances[name] = np.zeros((len(x), classes))
        chances[name][:, model.classes_] = model.predict_proba(x)
    return chances


def _fit_boosting(samples: dict[str, Samples], structure: FittedStructure) -> Contender:
    """Fit with scikit-learn's own settings; it takes missing values and codes of strings as they are."""
    start = time.perf_counter()
    classes = structure.classes
    test = samples["test"]
    flat = {
        name: (split.x if split.raw is None else split.raw).reshape(len(split.y), -1)
        for name, split in samples.items()
    }
    rows, note = _rows_to_fit(samples["train"], classes)
    y = samples["train"].y[rows]
    columns = structure.inputs.columns if structure.inputs is not None else ()
    x, features = _code(flat["train"][rows], columns, y)
    categorical: Any = list(range(len(features.few))) or None
    model = HistGradientBoostingClassifier(random_state=0, categorical_features=categorical)
    model.fit(x, y)
    unseen = {name: features(torch.from_numpy(flat[name])).numpy() for name in ("val", "test")}
    correct = np.equal(model.predict(unseen["test"]), test.y)
    trees = int(model.n_iter_) * (1 if classes == TWO else classes)
    seconds = time.perf_counter() - start
    chances = _chances(model, unseen, classes)
    name = f"gradient boosting{note}"
    program = FittedModel(
        structure.model_copy(update={"model": name}),
        torch.nn.Sequential(features, TreeScores(model)),
        model.classes_,
        is_standardised=test.raw is None,
    )
    _refuse_other_answers(program, flat["test"], correct, test.y)
    return Contender(name, correct, trees, seconds, unit=" trees", chances=chances, model=program)


def _code(
    x: NDArray[np.generic], columns: Sequence[InputColumn], y: NDArray[np.int64]
) -> tuple[NDArray[np.float64], TreeFeatures]:
    """Code training rows for trees, and learn how others are coded: of a column with more levels than trees take, each
    level becomes the rates of the classes, which a training row has from other folds.
    """
    few = dict[int, NDArray[np.float64]]()
    many = dict[int, NDArray[np.float64]]()
    folds = list[NDArray[np.float64]]()
    for place, column in enumerate(columns):
        if column.levels is None:
            continue
        codes = x[:, place].astype(np.float64)
        if np.nanmax(codes, initial=0) >= MOST_CATEGORIES:
            trained, many[place] = rates(codes, len(column.levels), y)
            folds.append(trained)
        else:
            few[place] = places_among(np.unique(codes[~np.isnan(codes)]), len(column.levels))
    coded = few.keys() | many.keys()
    numbers = [place for place in range(x.shape[1]) if place not in coded]
    features = TreeFeatures(numbers, few, many)
    train = features(torch.from_numpy(x)).numpy()
    if folds:
        # Class by class, of each all columns, as the features are.
        by_class = np.stack(folds, 2).reshape(len(y), -1)
        train[:, -by_class.shape[1] :] = by_class
    return train, features


# --- networks --------------------------------------------------------------------------------------------------------


def _networks(env: GrowthEnv) -> Iterator[tuple[str, StaticNetwork]]:
    """Yield every form of network that is trained beside the grown ones, with the article of its name."""
    host = env.host
    hosts = env.num_envs
    blueprints = blueprints_of(host.family)
    bare = Slots.empty(hosts, host.slots, env.device)
    yield "the ", StaticNetwork("host alone", host, blueprints, bare)
    if host.family in PLAIN:
        plain = build_host(PLAIN[host.family], host.input_shape, host.classes)
        empty = Slots.empty(hosts, plain.slots, env.device)
        yield "the ", StaticNetwork(f"plain {host.family} network", plain, blueprints, empty)
    if host.family == TOGETHER.family and host.input_shape[-1] <= MOST_TOGETHER:
        full = filled(hosts, host.slots, env.device)
        yield "", StaticNetwork(ALL_MODULES, host, (TOGETHER,), full)
    final = from_the_start(env.slots)
    if bool((final.blueprint >= 0).any()):
        yield "", StaticNetwork("its modules from the start", host, blueprints, final)


def _train(
    params: Params,
    env: GrowthEnv,
    held_out: HeldOut,
    inputs: RawInputs | None,
    article: str,
    network: StaticNetwork,
) -> Contender:
    """Train, in this process, one network for each host that grew, in its order of samples; choose by validation."""
    start = time.perf_counter()
    hosts = env.num_envs
    slots = network.slots
    population = Population(
        network.host,
        network.blueprints,
        env.env_ids,
        params.rng_seed,
        params.train.host_optimizer,
        env.device,
        params.runtime.backend,
    )
    tasks = torch.zeros(hosts, dtype=torch.int64, device=env.device)
    regime = Regime(params.train, held_out.train, held_out.test, tasks, env.iteration)
    epochs = torch.full((1, hosts), params.train.longest_episode, device=env.device)
    [result] = regime.run(population, slots, epochs)

    # Validation chooses, the test split scores.
    nothing_off = torch.zeros_like(slots.blueprint, dtype=torch.bool)[None]
    validation = population.evaluate(slots, held_out.val, nothing_off).correct[0].float()
    chosen = int(validation.mean(1).argmax())
    test = held_out.test.of("test")
    correct = population.evaluate(slots, test, nothing_off).correct[0].float()
    plain = grown_network(population, slots, chosen, inputs=inputs)
    seconds = time.perf_counter() - start
    return Contender(
        network.name,
        right_answers(plain, test),
        result.params[chosen],
        seconds,
        chances=network_chances(plain, held_out),
        article=article,
        mean_pct=100 * float(correct.mean()),
        model=plain,
    )
