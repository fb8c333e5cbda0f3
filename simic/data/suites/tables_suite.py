"""Define the suite ``tables``: rows of 12 numbers, labelled by rules that need different modules.

A kind is a rule, a way of cutting its score into classes, and a shape of the columns. Twelve kinds choose the
checkpoint (group ``val``). Nine are held out, and so are real tables and generators that were not written for this
suite (group ``outside``). No label is made of two rules: a controller that is trained on such tasks as well does worse
on new kinds (docs/history/experiments.md, 2026-11-26).
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simic.data.sources import BANDS, checked
from simic.data.suites import table_rules as rules
from simic.data.suites.kinds import Draws, Kind, Problem, kind
from simic.data.suites.suites import TaskSuite, suite
from simic.data.suites.table_rules import CODES, COLUMNS, Columns, LabelRule, Shape

# Rows of an instance on which the cuts of a score are chosen.
REFERENCE = 1024
LABEL_NOISE = (0.0, 0.03, 0.06)


def table_problem(
    draws: Draws,
    columns: Columns,
    rule: LabelRule,
    shape: Shape,
    reference: Tensor,
    classes: int,
) -> Problem:
    """Make an instance whose classes are bands of a rule's score, equally many rows in each."""
    cuts = rules.cuts_of(rule, reference, classes)
    noise = LABEL_NOISE[draws.whole(0, len(LABEL_NOISE) - 1)]

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        needed = torch.bincount(y, minlength=classes)
        rows = torch.empty(0, COLUMNS)
        labels = torch.empty(0, dtype=torch.int64)
        # Some more than are needed, and again until there are enough of each class.
        while (torch.bincount(labels, minlength=classes) < needed).any():
            block = shape.read(columns.draw(draws, n + n // 8 + 64))
            rows = torch.cat((rows, block))
            labels = torch.cat((labels, torch.bucketize(rule.score(block), torch.tensor(cuts))))
        # Rows take the places that labels were drawn for.
        of_labels = [torch.nonzero(labels == label).flatten() for label in range(classes)]
        chosen = [
            members[:count] for members, count in zip(of_labels, needed.tolist(), strict=True)
        ]
        x = torch.empty(n, COLUMNS)
        x[y.argsort(stable=True)] = rows[torch.cat(chosen)]
        return shape.show(draws, x)[:, None, None], draws.mislabelled(y, classes, noise)

    parameters: dict[str, Any] = {
        "rule": rule.parameters,
        "cuts": [*cuts],
        "label_noise": noise,
    }
    if columns.parameters:
        parameters["columns"] = columns.parameters
    if shape.parameters:
        parameters["shape"] = shape.parameters
    return Problem(classes, parameters, sample)


def _ruled(
    draws: Draws,
    rule: Callable[[Draws, Columns], LabelRule],
    classes: tuple[int, int] = (2, 2),
    shape: Callable[[Draws], Shape] = rules.SHAPES[""],
    codes: dict[str, Any] | None = None,
) -> Problem:
    """Make an instance of one rule with from … to … ``classes``; ``codes`` are fields of ``Columns``."""
    least, most = classes
    count = draws.whole(least, most) if most > least else least
    columns = replace(rules.draw_columns(draws), **(codes or {}))
    shaped = shape(draws)
    reference = shaped.read(columns.draw(draws, REFERENCE))
    return table_problem(draws, columns, rule(draws, columns), shaped, reference, count)


# --- kinds -----------------------------------------------------------------------------------------------------------


def _match(draws: Draws) -> Problem:
    chosen = draws.subset(COLUMNS, 6, COLUMNS)
    levels = len(chosen) + draws.whole(1, 4)
    return _ruled(draws, rules.match, codes={"codes": tuple(chosen), "levels": levels})


def _gain(draws: Draws) -> Problem:
    classes = draws.whole(2, 4)
    return _ruled(
        draws,
        rules.folded if classes == 2 else rules.linear,
        (classes, classes),
        rules.scaled,
    )


def _twins(draws: Draws) -> Problem:
    chosen = draws.permutation(COLUMNS).tolist()
    levels = draws.whole(4, 10)
    return _ruled(
        draws,
        rules.twins,
        codes={"codes": tuple(chosen), "levels": levels, "anywhere": False},
    )


BASE: dict[str, Kind] = {
    # Bands of a weighted sum: the host alone sees them.
    "linear": partial(_ruled, rule=rules.linear, classes=(2, 6)),
    # Two columns matter, one by its size.
    "sparse": partial(_ruled, rule=rules.sparse),
    # Products of pairs of columns.
    "product": partial(_ruled, rule=rules.product),
    # The sine of a column.
    "periodic": partial(_ruled, rule=rules.periodic),
    # Levels of a column with values of their own.
    "category": partial(_ruled, rule=rules.category),
    # Weights on sorted values.
    "order": partial(_ruled, rule=rules.order, classes=(2, 4)),
    # Whether two columns, anywhere, hold the same code.
    "match": _match,
    # Columns that are heavily distorted.
    "skew": partial(_ruled, rule=rules.linear, shape=rules.skewed),
    # The direction of a row; two classes are near an axis and far from it.
    "gain": _gain,
}
HELD_OUT: dict[str, Kind] = {
    # Signs of products.
    "signs": partial(_ruled, rule=rules.signs),
    # Which levels of a column are yes.
    "band": partial(_ruled, rule=rules.band),
    # The range of a row, or differences of its sorted values.
    "spread": partial(_ruled, rule=rules.spread),
    # Alternating intervals of a column.
    "stripes": partial(_ruled, rule=rules.stripes),
    # Two rules on the same columns.
    "blend": partial(_ruled, rule=rules.blend),
    # Which of three columns is nearest to a fourth.
    "nearest": partial(_ruled, rule=rules.nearest, classes=(3, 3)),
    "heavy": partial(_ruled, rule=rules.linear, classes=(2, 4), shape=rules.odd_powers),
    # Whether two certain columns agree, among others that hold codes too.
    "twins": _twins,
    # Signs of differences.
    "rank": partial(_ruled, rule=rules.rank),
}


# A rule, the ways in which its score is cut into classes (two halves, two by the distance from its middle, three to
# five bands), and shapes of columns under which one module helps more than others (docs/history/experiments.md).
SINGLE_RULES: dict[str, tuple[rules.Rule, tuple[str, ...], tuple[str, ...]]] = {
    "linear": (
        rules.linear,
        ("folded", "bands"),
        ("exponentiated", "scaled", "skewed"),
    ),
    "sparse": (rules.sparse, ("", "bands"), ("", "scaled")),
    "product": (
        rules.product,
        ("", "bands"),
        ("", "exponentiated", "scaled", "rounded"),
    ),
    "periodic": (rules.periodic, ("", "folded", "bands"), ("", "rounded")),
    "waves": (rules.waves, ("", "bands"), ("", "rounded")),
    "category": (
        rules.category,
        ("", "folded", "bands"),
        ("", "exponentiated", "rounded"),
    ),
    "order": (rules.order, ("", "folded", "bands"), ("", "exponentiated", "rounded")),
    "match": (rules.match, ("",), ("", "exponentiated", "powers", "scaled", "rounded")),
    "place": (
        rules.place,
        ("", "folded", "bands"),
        ("", "powers", "scaled", "rounded"),
    ),
    "centres": (
        rules.centres,
        ("",),
        ("", "exponentiated", "powers", "scaled", "rounded"),
    ),
    "largest": (
        rules.largest,
        ("",),
        ("", "exponentiated", "powers", "scaled", "skewed"),
    ),
}


def _single(name: str, way: str, shape: str, draws: Draws) -> Problem:
    columns = rules.draw_columns(draws)
    # This rule reads codes.
    if name == "match":
        columns = replace(columns, codes=tuple(draws.subset(COLUMNS, 4, CODES - 1)), levels=CODES)
    shaped = rules.SHAPES[shape](draws)
    reference = shaped.read(columns.draw(draws, REFERENCE))
    rule = SINGLE_RULES[name][0](draws, columns)
    # By the distance from the middle.
    if way == "folded":
        unfolded = rule.score
        middle = rules.cuts_of(rule, reference, 2)[0]
        parameters = rule.parameters | {"middle": middle}
        rule = LabelRule(lambda x: (unfolded(x) - middle).abs(), parameters)
    classes = draws.whole(3, 5) if way == "bands" else len(rule.cuts or (0,)) + 1
    return table_problem(draws, columns, rule, shaped, reference, classes)


SINGLES = {
    "_".join(filter(None, ("only", name, way, shape))): (name, way, shape)
    for name, (_, ways, shapes) in SINGLE_RULES.items()
    for way in ways
    for shape in shapes
    if way or shape or name not in BASE
}
# In the order of the hashes of their names: an arbitrary but fixed one.
_SHUFFLED = sorted(SINGLES, key=lambda name: hashlib.sha256(name.encode()).digest())
SINGLE_VAL = tuple(_SHUFFLED[:12])
SINGLE = tuple(_SHUFFLED[12:])

# --- tables from outside ---------------------------------------------------------------------------------------------
# Scikit-learn's real tables, at their own widths, and its generators. Real tables are small, so a split may hold a row
# more than once, each time with other noise; no two splits of a task share a row.

# Rows that a generator gives for an instance: enough for all splits.
ROWS = 4096
REAL = ("breast_cancer", "wine", "diabetes", "digits", "iris")

# Generators and the parameters that an instance draws for each.
GENERATED: dict[str, Callable[[Draws], dict[str, Any]]] = {
    "friedman1": lambda draws: {"n_features": 10, "noise": draws.number(0.0, 1.0)},
    "friedman2": lambda draws: {},
    "friedman3": lambda draws: {},
    "hastie": lambda draws: {},
    "gaussian_quantiles": lambda draws: {
        "n_features": COLUMNS,
        "n_classes": draws.whole(2, 4),
    },
    "moons": lambda draws: {"noise": draws.number(0.1, 0.3)},
    "circles": lambda draws: {
        "noise": draws.number(0.05, 0.15),
        "factor": draws.number(0.4, 0.7),
    },
    "classification": lambda draws: {
        "n_features": COLUMNS,
        "n_informative": draws.whole(4, 8),
        "n_classes": draws.whole(2, 4),
        "n_clusters_per_class": draws.whole(1, 3),
    },
    "blobs": lambda draws: {
        "n_features": COLUMNS,
        "centers": draws.whole(3, 6),
        "cluster_std": draws.number(4.0, 8.0),
    },
}


def _real(name: str, draws: Draws) -> Problem:
    """Show all columns of a table in a little noise: three to six classes of digits, two or three bands of diabetes,
    all classes of the others.
    """
    # A class of the task is one class of the table, or a band of its target.
    labels = draws.bundled(name).y
    classes = int(labels.max()) + 1
    if name == "diabetes":
        count = draws.whole(2, 3)
        groups = [
            [*range(BANDS)][k * BANDS // count : (k + 1) * BANDS // count] for k in range(count)
        ]
    else:
        groups = [
            [label]
            for label in (draws.subset(classes, 3, 6) if name == "digits" else range(classes))
        ]
    # Noise as a share of each column's deviation.
    noise = draws.number(0.05, 0.2)

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        # Noise makes a row that comes again another row.
        source = draws.bundled(name)
        y = draws.labels(n, len(groups))
        values = source.x.flatten(1)
        x = values[draws.of_pool(name, source.y, draws.members(y, groups))]
        return (x + noise * values.std(0, correction=0) * draws.normal(*x.shape))[:, None, None], y

    return Problem(len(groups), {"labels": groups, "noise": noise}, sample)


def _generated(name: str, draws: Draws) -> Problem:
    """Draw one table of a generator; two columns get ten of noise beside them, and targets are cut at their median."""
    from sklearn import datasets

    # scikit-learn draws by a seed of its own, which is recorded.
    seed = draws.whole(0, 2**30)
    options = GENERATED[name](draws)
    generator = getattr(datasets, "make_hastie_10_2" if name == "hastie" else f"make_{name}")
    values, target, *_ = generator(n_samples=ROWS, random_state=seed, **options)
    # The target is a number.
    if name.startswith("friedman"):
        labels = target.argsort(kind="stable").argsort() * 2 // ROWS
    else:
        labels = np.unique(target, return_inverse=True)[1]
    rows, targets = checked(f"scikit-learn {name}", values, labels)
    # Columns of noise stand beside a plane of two.
    if rows.shape[1] == 2:
        rows = torch.cat((rows, draws.normal(ROWS, COLUMNS - 2)), 1)
    classes = int(targets.max()) + 1

    def sample(draws: Draws, n: int) -> tuple[Tensor, Tensor]:
        y = draws.labels(n, classes)
        return rows[draws.of_pool(name, targets, y)][:, None, None], y

    return Problem(classes, {"random_state": seed, **options}, sample)


OUTSIDE: dict[str, Kind] = {name: partial(_real, name) for name in REAL}
OUTSIDE |= {name: partial(_generated, name) for name in GENERATED}

# --- the suite -------------------------------------------------------------------------------------------------------

suite(
    TaskSuite(
        name="tables",
        held_out=tuple(HELD_OUT),
        val=SINGLE_VAL,
        outside=(*REAL, *GENERATED),
        parts=(tuple(BASE), SINGLE, SINGLE_VAL, REAL, tuple(GENERATED)),
        samples={"train": 2048, "val": 256, "test": 512},
        table=True,
    )
)
_MADE = {name: partial(_single, *SINGLES[name]) for name in _SHUFFLED}
for _name, _make in (BASE | _MADE | HELD_OUT | OUTSIDE).items():
    kind("tables", _name)(_make)
