"""Define the suite ``together``: labels made of two rules, of which neither alone says much.

A kind is a join and two rules. An exclusive or, a gate (a column decides which rule holds) and an order (the second
rule parts the rows that the first one left) are joins; beside them stands ``sum``, a control: scores are added, and
each rule alone helps. Some pairs of rules, and some rules, are held out. What is left to decide there:
``benchmarks/together.py``.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from simic.data.suites import table_rules as rules
from simic.data.suites.kinds import Draws, Problem, kind
from simic.data.suites.suites import TaskSuite, suite
from simic.data.suites.table_rules import CODES, COLUMNS, LabelRule, Shape
from simic.data.suites.tables_suite import REFERENCE, table_problem

# Rules that part rows in two halves: those of training, and those held out.
KNOWN: dict[str, rules.Rule] = {
    "linear": rules.linear,
    "sparse": rules.sparse,
    "product": rules.product,
    "periodic": rules.periodic,
    "category": rules.category,
    "order": rules.order,
    "place": rules.place,
    "match": rules.match,
    "centres": rules.centres,
}
NEW: dict[str, rules.Rule] = {
    "signs": rules.signs,
    "band": rules.band,
    "spread": rules.spread,
    "stripes": rules.stripes,
    "rank": rules.rank,
    "folded": rules.folded,
}
# Pairs of known rules that are held out, and pairs of a known and a new one.
LEFT_OUT_PAIRS = 9
NEW_PAIRS = 27

# Each makes classes of the halves of both rules and a column.
JOINS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = {
    "xor": (lambda a, b, column: a ^ b, 2),
    "gate": (lambda a, b, column: torch.where(column > 0, a, b), 2),
    "order": (lambda a, b, column: a * (1 + b), 3),
}
# Written when all else was measured, and looked at once.
FRESH_JOINS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = {
    "both": (lambda a, b, column: 2 * a + b, 4),
    "majority": (lambda a, b, column: (a + b + (column > 0) > 1).long(), 2),
    "switch": (lambda a, b, column: torch.where(column > 0, a, a ^ b), 2),
}


def _joined(join: str, first: str, second: str, draws: Draws) -> Problem:
    """Make an instance of two rules."""
    columns = rules.draw_columns(draws)
    # This rule reads codes.
    if "match" in (first, second):
        columns = replace(columns, codes=tuple(draws.subset(COLUMNS, 4, CODES - 1)), levels=CODES)
    reference = columns.draw(draws, REFERENCE)
    pair = [(KNOWN | NEW)[name](draws, columns) for name in (first, second)]
    parameters: dict[str, Any] = {"rules": [rule.parameters for rule in pair]}
    if join == "sum":
        rule = _sum(pair, reference, parameters)
        return table_problem(draws, columns, rule, Shape(), reference, 2)

    # Each rule parts rows in two halves, the join makes classes of these.
    halves = [rules.cuts_of(rule, reference, 2)[0] for rule in pair]
    column = draws.whole(0, COLUMNS - 1)
    combine, classes = (JOINS | FRESH_JOINS)[join]

    def score(x: Tensor) -> Tensor:
        a, b = ((rule.score(x) > half).long() for rule, half in zip(pair, halves, strict=True))
        return combine(a, b, x[:, column]).float()

    parameters |= {"halves": halves, "column": column}
    rule = LabelRule(score, parameters, tuple(k + 0.5 for k in range(classes - 1)))
    return table_problem(draws, columns, rule, Shape(), reference, classes)


def _sum(pair: list[LabelRule], reference: Tensor, parameters: dict[str, Any]) -> LabelRule:
    """Add the scores of two rules, each in units of its deviation."""
    deviations = [round(float(rule.score(reference).std()), 6) for rule in pair]

    def score(x: Tensor) -> Tensor:
        first, second = (r.score(x) / d for r, d in zip(pair, deviations, strict=True))
        return first + second

    return LabelRule(score, parameters | {"deviations": deviations})


def _shuffled(pairs: list[str]) -> list[str]:
    """Put pairs in the order of the hashes of their names: an arbitrary but fixed one."""
    return sorted(pairs, key=lambda name: hashlib.sha256(name.encode()).digest())


def _kinds(joins: tuple[str, ...], pairs: list[str]) -> tuple[str, ...]:
    return tuple(f"{join}_{pair}" for join in joins for pair in pairs)


PAIRS = _shuffled([f"{a}_{b}" for a, b in combinations(KNOWN, 2)])
TRAINED = _kinds(tuple(JOINS), PAIRS[LEFT_OUT_PAIRS:])
LEFT_OUT = _kinds(tuple(JOINS), PAIRS[:LEFT_OUT_PAIRS])
NEW_RULES = _kinds(tuple(JOINS), _shuffled([f"{a}_{b}" for a in KNOWN for b in NEW])[:NEW_PAIRS])
CONTROL = _kinds(("sum",), PAIRS)
FRESH = _kinds(tuple(FRESH_JOINS), [name.split("_", 1)[1] for name in (LEFT_OUT + NEW_RULES)[::4]])

for _suite, _parts in (
    ("together", (TRAINED, LEFT_OUT, NEW_RULES, CONTROL)),
    ("fresh_together", (TRAINED, FRESH)),
):
    suite(
        TaskSuite(
            name=_suite,
            held_out=sum(_parts[1:], ()),
            parts=_parts,
            samples={"train": 2048, "val": 256, "test": 512},
            table=True,
        )
    )
    for _name in sum(_parts, ()):
        kind(_suite, _name)(partial(_joined, *_name.split("_")))
