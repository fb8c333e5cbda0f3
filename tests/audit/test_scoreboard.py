"""The scoreboard counts what the steps say of every seed."""

import json

import numpy as np
import pytest

from simic.audit import report
from simic.audit.audit import examine
from simic.audit.record import RunRecord, Table
from simic.audit.scoreboard import Mean, scores
from simic.growth.life.vocabulary import Op, Stage

from .synthetic import ITERATIONS, params

STEPS, HOSTS, SLOTS = 6, 2, 2
W, G, P, F = Op.WAIT, Op.GERMINATE, Op.PRUNE, Op.FOSSILIZE
D, NEW, HOLD, KEPT, GONE = Stage.DORMANT, Stage.GERMINATED, Stage.HOLDING, Stage.FOSSILIZED, Stage.PRUNED
nan = np.nan


def column(first, second, kind="int64"):
    """Return a column of two hosts ``[T, E]`` or, of lists of pairs, ``[T, E, K]``."""
    return np.stack((np.array(first, dtype=kind), np.array(second, dtype=kind)), axis=1)


def record():
    """Host 0 grows blueprint 1 in slot 0 at once, prunes it, grows blueprint 2 in slot 1 and keeps it; host 1 grows 2
    in slot 0 and is still at it in the end. A bare host has 100 parameters and 1000 FLOPs.
    """
    stage = column(
        [(NEW, D), (HOLD, D), (GONE, D), (D, NEW), (D, HOLD), (D, KEPT)],
        [(D, D), (NEW, D), (HOLD, D), (HOLD, D), (HOLD, D), (HOLD, D)],
    )
    contribution = column(
        [(nan, nan), (-2.0, nan), (nan, nan), (nan, nan), (nan, 7.0), (nan, 9.0)],
        [(nan, nan), (nan, nan), (1.0, nan), (2.0, nan), (3.0, nan), (4.0, nan)],
        "float64",
    )
    size = column([110, 110, 100, 120, 120, 120], [100, 125, 125, 125, 125, 125])
    columns = {
        "iteration": np.zeros(STEPS, dtype=int), "step": np.arange(1, STEPS + 1), "stage": stage,
        "effective_op": column([G, W, P, G, W, F], [W, G, W, W, W, W]), "contribution": contribution,
        "slot": column([0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0]), "valid": np.ones((STEPS, HOSTS), dtype=bool),
        "blueprint": column([1, 0, 0, 2, 0, 0], [0, 2, 0, 0, 0, 0]), "params": size, "flops": 10 * size,
        "committed_params": column([100] * 5 + [120], [100] * 6),
        "committed_flops": column([1000] * 5 + [1200], [1000] * 6),
    }  # fmt: skip
    return RunRecord(params(), steps=Table(columns))


def test_seeds_are_counted_with_what_they_contributed_and_cost():
    two, one = scores(record())
    assert (two.germinated, two.kept, two.pruned) == (2, 1, 0)
    assert (one.germinated, one.kept, one.pruned) == (1, 0, 1)
    assert (two.contribution_kept, two.contribution_pruned) == (Mean(mean=9.0, error=None, seeds=1), None)
    assert one.contribution_pruned == Mean(mean=-2.0, error=None, seeds=1)
    assert (two.params, two.flops) == (22.5, 225.0)  # 20 and 25
    assert (one.params, one.flops) == (10.0, 100.0)  # in the first step, over the bare host


def test_the_error_is_that_of_the_mean_over_seeds():
    # deviations -1 and 1: standard deviation sqrt 2, over the root of two seeds 1
    assert str(Mean.of([2.0, 4.0])) == "+3.00 ± 1.00"
    assert str(Mean.of([2.0])) == "+2.00" and Mean.of([]) is None


def test_what_a_seed_cost_is_unknown_where_another_one_went_in_the_same_step():
    run = record()
    run.steps.column("stage")[2, 0] = (HOLD, D)
    run.steps.column("stage")[3, 0] = (GONE, NEW)
    two, one = scores(run)
    assert (two.params, one.pruned) == (25.0, 1)


def test_findings_json_and_both_reports_have_the_scoreboard(clean):
    verdict = examine(clean, "x")
    [row] = json.loads(verdict.to_json())["scoreboard"]
    assert (row["germinated"], row["kept"]) == (4 * ITERATIONS, 4 * ITERATIONS)
    assert row["contribution_kept"] == {"error": 0.0, "mean": 3.0, "seeds": 4 * ITERATIONS}
    for page in (report.markdown(clean, verdict), report.html(clean, verdict, [])):
        assert "What each blueprint was worth" in page and "+3.00 ± 0.00" in page


@pytest.mark.parametrize("name", ["steps.contribution", "steps.committed_flops"])
def test_a_run_without_the_steps_has_none(plant, name):
    assert scores(plant.without(name)) == ()
