"""Define the rules that label rows of the suite ``tables``, and the distributions and distortions of its columns.

A rule scores rows whose columns have mean 0 and deviation 1. A shape turns drawn rows into those that the rule reads
and those into what the table shows. All parameters are rounded before they are used: those recorded give the same
labels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simic.data.suites.kinds import Draws

COLUMNS = 12
# Levels of a column that is read as a category.
LEVELS = 12
# Levels of the codes that a rule `match` reads.
CODES = 6


@dataclass(frozen=True)
class Columns:
    """Distribution of columns: normal, with ``loadings`` on a common factor, uniform where listed, or one of ``levels``
    codes. ``anywhere``: all codes of a row differ, but in every other row two are equal; else codes are free, but the
    first two columns' are equal in every other row.
    """

    loadings: tuple[float, ...] = (0.0,) * COLUMNS
    uniform: tuple[int, ...] = ()
    codes: tuple[int, ...] = ()
    levels: int = 0
    anywhere: bool = True

    def draw(self, draws: Draws, n: int) -> Tensor:
        """Draw ``[n, 12]`` rows."""
        # A loading is a column's correlation with the common factor; all columns have variance 1.
        z = draws.normal(n, COLUMNS + 1)
        loadings = torch.tensor(self.loadings)
        x = z[:, :COLUMNS] * (1 - loadings**2).sqrt() + z[:, COLUMNS:] * loadings
        # The normal distribution function makes a column uniform.
        for column in self.uniform:
            x[:, column] = math.sqrt(3.0) * torch.erf(x[:, column] / math.sqrt(2.0))
        if self.codes:
            # Codes are scaled to mean 0 and deviation 1 as well.
            codes = (self._distinct if self.anywhere else self._free)(draws, n)
            x[:, self.codes] = (codes - (self.levels - 1) / 2) / math.sqrt(
                (self.levels**2 - 1) / 12
            )
        return x

    def _distinct(self, draws: Draws, n: int) -> Tensor:
        count = len(self.codes)
        codes = draws.uniform(n, self.levels).argsort(dim=1, stable=True)[:, :count]
        # In every other row one column takes the code of another.
        first = draws.integers(count, n, 1)
        second = (first + draws.integers(2, n, 1) * (1 + draws.integers(count - 1, n, 1))) % count
        return codes.scatter(1, second, codes.gather(1, first))

    def _free(self, draws: Draws, n: int) -> Tensor:
        codes = draws.integers(self.levels, n, len(self.codes))
        # A step of 0, in every other row, makes the first two columns equal.
        step = draws.integers(2, n) * (1 + draws.integers(self.levels - 1, n))
        codes[:, 1] = (codes[:, 0] + step) % self.levels
        return codes

    def level(self, x: Tensor, column: int, count: int) -> Tensor:
        """Tell in which of some equally likely bands the values of a column are.

        Args:
            x: rows ``[n, 12]``.
            column: number of the column.
            count: how many bands there are.

        Returns:
            Numbers of bands, int64 ``[n]``.
        """
        # The distribution function, less a half: of a uniform column on ±√3, or of a normal one.
        value = x[:, column]
        share = (
            value / math.sqrt(12.0)
            if column in self.uniform
            else torch.erf(value / math.sqrt(2.0)) / 2
        )
        return ((share + 0.5) * count).floor().long().clamp(0, count - 1)

    @property
    def parameters(self) -> dict[str, Any]:
        """List what is recorded: nothing of columns that are independent and normal."""
        recorded = dict[str, Any]()
        if any(self.loadings):
            recorded["loadings"] = [*self.loadings]
        if self.uniform:
            recorded["uniform"] = [*self.uniform]
        if self.codes:
            recorded |= {"codes": [*self.codes], "levels": self.levels}
        return recorded


def draw_columns(draws: Draws) -> Columns:
    """Draw independent normal, correlated, or partly uniform ones."""
    form = draws.whole(0, 2)
    if form == 1:
        size = draws.uniform(COLUMNS)
        sign = 2 * draws.integers(2, COLUMNS) - 1
        return Columns(loadings=tuple(_rounded((0.3 + 0.5 * size) * sign)))
    return Columns(uniform=tuple(draws.subset(COLUMNS, 3, 9))) if form == 2 else Columns()


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def _columns(draws: Draws, count: int) -> list[int]:
    """Draw ``count`` different columns."""
    return draws.permutation(COLUMNS)[:count].tolist()


def _pairs(draws: Draws, count: int) -> tuple[list[int], list[int]]:
    """Draw the first and the second columns of ``count`` pairs, all different."""
    chosen = _columns(draws, 2 * count)
    return chosen[:count], chosen[count:]


# --- rules -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelRule:
    """``score`` maps rows ``[n, 12]`` to ``[n]``, cut into bands of equal size or at ``cuts`` where these are given."""

    score: Callable[[Tensor], Tensor]
    parameters: dict[str, Any]
    cuts: tuple[float, ...] | None = None


Rule = Callable[[Draws, Columns], LabelRule]


def linear(draws: Draws, columns: Columns) -> LabelRule:
    """Score by a weighted sum of all columns."""
    weights = _rounded(draws.normal(COLUMNS))
    return LabelRule(lambda x: x @ torch.tensor(weights), {"weights": weights})


def sparse(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the size of one column and some of another: |a| + w b."""
    a, b = _columns(draws, 2)
    weight = draws.number(0.4, 0.8)
    return LabelRule(lambda x: x[:, a].abs() + weight * x[:, b], {"a": a, "b": b, "weight": weight})


def product(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the sum of products of one to three pairs of columns."""
    count = draws.whole(1, 3)
    first, second = _pairs(draws, count)
    signs = (2 * draws.integers(2, count) - 1).tolist()
    parameters = {"first": first, "second": second, "signs": signs}
    return LabelRule(
        lambda x: (x[:, first] * x[:, second] * torch.tensor(signs)).sum(1), parameters
    )


def periodic(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the sine of a column."""
    column = draws.whole(0, COLUMNS - 1)
    frequency = draws.number(3.0, 7.0)
    phase = draws.number(0.0, 6.283)
    parameters = {"column": column, "frequency": frequency, "phase": phase}
    return LabelRule(lambda x: (frequency * x[:, column] + phase).sin(), parameters)


def category(draws: Draws, columns: Columns) -> LabelRule:
    """Score by a free value for each of the levels of a column, and a little of another column."""
    column, second = _columns(draws, 2)
    values = _rounded(draws.normal(LEVELS))
    parameters = {"column": column, "values": values, "other": second}
    return LabelRule(
        lambda x: torch.tensor(values)[columns.level(x, column, LEVELS)] + 0.2 * x[:, second],
        parameters,
    )


def order(draws: Draws, columns: Columns) -> LabelRule:
    """Score by weights on the sorted values; they sum to 0, so that the mean of a row says nothing."""
    drawn = draws.normal(COLUMNS)
    weights = _rounded(drawn - drawn.mean())
    return LabelRule(lambda x: x.sort(1).values @ torch.tensor(weights), {"weights": weights})


def match(draws: Draws, columns: Columns) -> LabelRule:
    """Tell whether two columns, anywhere, hold the same code."""
    return LabelRule(
        lambda x: (x[:, columns.codes].sort(1).values.diff(dim=1) == 0).any(1).float(),
        {},
        (0.5,),
    )


def twins(draws: Draws, columns: Columns) -> LabelRule:
    """Tell whether two certain columns hold the same code."""
    first, second = columns.codes[:2]
    return LabelRule(
        lambda x: (x[:, first] == x[:, second]).float(),
        {"first": first, "second": second},
        (0.5,),
    )


def folded(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the size of a weighted sum."""
    rule = linear(draws, columns)
    return LabelRule(lambda x: rule.score(x).abs(), rule.parameters | {"folded": True})


def signs(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the signs of products, of one pair of columns or summed over three."""
    first, second = _pairs(draws, 2 * draws.whole(0, 1) + 1)
    return LabelRule(
        lambda x: (x[:, first] * x[:, second]).sign().sum(1),
        {"first": first, "second": second},
        (0.0,),
    )


def band(draws: Draws, columns: Columns) -> LabelRule:
    """Tell whether the level of a column is one of a chosen half."""
    column = draws.whole(0, COLUMNS - 1)
    count = 2 * draws.whole(4, 6)
    yes = sorted(draws.permutation(count)[: count // 2].tolist())
    parameters = {"column": column, "levels": count, "yes": yes}
    return LabelRule(
        lambda x: torch.isin(columns.level(x, column, count), torch.tensor(yes)).float(),
        parameters,
        (0.5,),
    )


def spread(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the range of a row, or some of its sorted values less as many others."""
    if draws.whole(0, 1):
        return LabelRule(lambda x: x.amax(1) - x.amin(1), {"plus": [COLUMNS - 1], "minus": [0]})
    plus, minus = _pairs(draws, draws.whole(1, 2))

    def score(x: Tensor) -> Tensor:
        ranked = x.sort(1).values
        return ranked[:, plus].sum(1) - ranked[:, minus].sum(1)

    return LabelRule(score, {"plus": plus, "minus": minus})


def stripes(draws: Draws, columns: Columns) -> LabelRule:
    """Tell alternating intervals of a column apart."""
    column = draws.whole(0, COLUMNS - 1)
    width = draws.number(0.4, 0.9)
    start = draws.number(0.0, 1.0)
    parameters = {"column": column, "width": width, "start": start}
    return LabelRule(lambda x: (x[:, column] / width + start).floor() % 2, parameters, (0.5,))


def blend(draws: Draws, columns: Columns) -> LabelRule:
    """Score by two rules on the same two columns: sum, product, wave or difference of sizes."""
    a, b = _columns(draws, 2)
    first, second = sorted(draws.permutation(4)[:2].tolist())
    frequency = draws.number(2.0, 4.0)

    def score(x: Tensor) -> Tensor:
        u = x[:, a]
        v = x[:, b]
        scores = (
            u + 0.5 * v,
            u * v,
            (frequency * u).sin() + (frequency * v).sin(),
            u.abs() - v.abs(),
        )
        return scores[first] + scores[second]

    return LabelRule(score, {"a": a, "b": b, "rules": [first, second], "frequency": frequency})


def nearest(draws: Draws, columns: Columns) -> LabelRule:
    """Tell which of three columns is nearest to a fourth."""
    centre, *candidates = _columns(draws, 4)
    parameters = {"to": centre, "of": candidates}
    return LabelRule(
        lambda x: (x[:, candidates] - x[:, [centre]]).abs().argmin(1).float(),
        parameters,
        (0.5, 1.5),
    )


def rank(draws: Draws, columns: Columns) -> LabelRule:
    """Tell whether two pairs of columns are in the same order; the pairs may share a column."""
    a, b, c, d = _columns(draws, 4)
    c = b if draws.whole(0, 1) else c
    return LabelRule(
        lambda x: ((x[:, a] - x[:, b]) * (x[:, c] - x[:, d])).sign(),
        {"columns": [a, b, c, d]},
        (0.0,),
    )


def place(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the place of a column among the values of its row."""
    column = draws.whole(0, COLUMNS - 1)
    return LabelRule(lambda x: (x < x[:, [column]]).float().sum(1), {"column": column})


def centres(draws: Draws, columns: Columns) -> LabelRule:
    """Tell whether the nearest of some points has an even number."""
    points = [_rounded(draws.normal(COLUMNS)) for _ in range(2 * draws.whole(2, 4))]
    return LabelRule(
        lambda x: (torch.cdist(x, torch.tensor(points)).argmin(1) % 2).float(),
        {"points": points},
        (0.5,),
    )


def waves(draws: Draws, columns: Columns) -> LabelRule:
    """Score by the sum of sines of two or three columns."""
    chosen = _columns(draws, draws.whole(2, 3))
    frequencies = [draws.number(3.0, 6.0) for _ in chosen]
    phases = [draws.number(0.0, 6.283) for _ in chosen]

    def score(x: Tensor) -> Tensor:
        return (torch.tensor(frequencies) * x[:, chosen] + torch.tensor(phases)).sin().sum(1)

    return LabelRule(score, {"columns": chosen, "frequencies": frequencies, "phases": phases})


def largest(draws: Draws, columns: Columns) -> LabelRule:
    """Tell which of three columns is largest."""
    chosen = _columns(draws, 3)
    return LabelRule(lambda x: x[:, chosen].argmax(1).float(), {"columns": chosen}, (0.5, 1.5))


def cuts_of(rule: LabelRule, reference: Tensor, classes: int) -> tuple[float, ...]:
    """Find the scores that part bands of equal size, never in the middle of equal scores, so that no band is empty as
    long as there are two scores.

    Args:
        rule: the rule; its own cuts, if it has some, come first.
        reference: rows ``[n, 12]`` to score.
        classes: number of bands.
    """
    if rule.cuts is not None:
        return rule.cuts
    scores = rule.score(reference).sort().values
    # Places between two different scores, and of these the nearest to equal bands.
    edges = torch.nonzero(scores.diff()).flatten() + 1
    ranks = torch.arange(1, classes) * len(scores) / classes
    chosen = edges[(edges - ranks[:, None]).abs().argmin(1)]
    return tuple(round(value, 6) for value in ((scores[chosen - 1] + scores[chosen]) / 2).tolist())


# --- shapes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Two steps from drawn rows to a table: ``read`` for the rule, then ``show``, which may draw, for the reader."""

    show: Callable[[Draws, Tensor], Tensor] = lambda draws, x: x
    read: Callable[[Tensor], Tensor] = lambda x: x
    parameters: dict[str, Any] | None = None


def exponentiated(draws: Draws) -> Shape:
    """Show the exponential of each column."""
    rate = draws.number(1.0, 2.0)
    return Shape(lambda draws, x: (rate * x).exp(), parameters={"rate": rate})


def powers(draws: Draws) -> Shape:
    """Show all columns raised to the power 3 or 5."""
    power = 3 + 2 * draws.whole(0, 1)
    return Shape(lambda draws, x: x**power, parameters={"power": power})


def scaled(draws: Draws) -> Shape:
    """Let the rule read the direction of a row, whose shown length is drawn apart."""
    deviation = draws.number(0.8, 1.4)
    return Shape(
        show=lambda draws, x: x * (deviation * draws.normal(len(x), 1)).exp(),
        read=lambda x: x * (math.sqrt(COLUMNS) / x.norm(dim=1, keepdim=True)),
        parameters={"deviation": deviation},
    )


def rounded(draws: Draws) -> Shape:
    """Round columns to steps, which are too small to make two codes of ``CODES`` levels one."""
    step = draws.number(0.3, 0.5)
    return Shape(read=lambda x: (x / step).round() * step, parameters={"step": step})


def skewed(draws: Draws) -> Shape:
    """Distort each column in its own way: exp(x), -exp(-x), sinh(x) or sign(x) √|x|, steeply."""
    forms = draws.integers(4, COLUMNS).tolist()
    rate = draws.number(1.2, 2.0)

    def show(draws: Draws, x: Tensor) -> Tensor:
        steep = rate * x
        ways = torch.stack(
            (
                steep.exp(),
                -(-steep).exp(),
                (1.5 * steep).sinh(),
                x.sign() * x.abs().sqrt(),
            )
        )
        return ways[torch.tensor(forms), :, torch.arange(COLUMNS)].T.contiguous()

    return Shape(show, parameters={"forms": forms, "rate": rate})


def odd_powers(draws: Draws) -> Shape:
    """Show each column raised to the power 3, 5 or 7."""
    chosen = (3 + 2 * draws.integers(3, COLUMNS)).tolist()
    return Shape(lambda draws, x: x ** torch.tensor(chosen), parameters={"powers": chosen})


SHAPES: dict[str, Callable[[Draws], Shape]] = {
    "": lambda draws: Shape(),
    "exponentiated": exponentiated,
    "powers": powers,
    "scaled": scaled,
    "rounded": rounded,
    "skewed": skewed,
}
