"""Where rounding decides whether a row is clipped, an update is derived on both sides."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.reference import iteration
from tests.reference import ppo as reference
from tests.reference.test_small_runs import differences, trained


def test_a_row_on_the_edge_of_the_clip_is_followed_to_either_side_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another clean training."""
    given = list[tuple]()
    right = iteration._followed
    monkeypatch.setattr(iteration, "_followed", lambda *each: given.append(each) or right(*each))
    assert differences(trained("tables", tmp_path)) == set()
    update, before, recorded = given[-1]
    plain, _, none = update.run(before)
    assert iteration._distance(before, plain, recorded) < iteration.ALLOWED["weights"] / 10
    assert none == []  # of so few rows
    monkeypatch.setattr(reference, "EDGE", 1.0)
    nearest = update.run(before)[2][0]
    other, metrics, _ = replace(update, crossed=frozenset({nearest})).run(before)
    assert iteration._distance(before, plain, other) > iteration.ALLOWED["weights"] / 10
    learned, told = right(update, before, other)
    assert iteration._distance(before, learned, other) == 0.0 and told == metrics
    monkeypatch.undo()
    crossed = replace(update, crossed=frozenset({nearest})).run(before)[0]
    assert iteration._distance(before, crossed, plain) == 0.0  # too far from the edge
