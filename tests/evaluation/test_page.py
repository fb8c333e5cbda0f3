"""A suite's page: what it says, and that nobody is left out."""

import pytest

from simic.evaluation import page
from simic.evaluation.result import (
    Fixed,
    HeadroomReport,
    HostDescription,
    Standing,
    Standings,
    TaskRow,
)  # fmt: skip
from simic.evaluation.search import SearchWorth, Trainings
from simic.evaluation.statistics import Interval

POLICIES = ("zealous", "static", "best common schedule", "oracle per kind", "oracle per task", "patient")
WORTH = SearchWorth(Trainings(1.0, "<"), Trainings(1.0, "<"), Trainings(4.2))


def standings(low: float = 6.0, estimate: float = 9.0, share: bool = True) -> Standings:
    gap = Interval(estimate, low, 12.0)
    one = Standing(
        score=Interval(71.25, 70, 72), over_rule=None, rule_share=None, over_common=Interval(-3.0, -4.0, -2.0),
        search_worth=WORTH, share=Interval(0.5, 0.25, 0.75) if share else None, params=1234.0, flops_per_sample=5.0,
    )  # fmt: skip
    return Standings(
        tasks=20, gap=gap, gap_undefined="" if share else "nothing", random_search=(50.0, 60.0, 62.0),
        policies=dict.fromkeys(POLICIES, one), by_kind={"lines": dict.fromkeys(POLICIES, 71.25)},
    )  # fmt: skip


def headroom(**changes) -> HeadroomReport:
    floor = Fixed(
        test_accuracy_pct=(80.0, 90.0), epochs=(0, 0), params=(10, 30), flops_per_sample=(1, 1), training_flops=(1, 1)
    )
    task = TaskRow(name="lines 0", kind="lines", group="held_out", classes=2)
    given = {
        "data_sha256": "d", "settings_sha256": "s", "rng_seed": 1, "epochs": 12, "max_seeds": 1,
        "param_budget": 4.0, "price": 0.0,
        "host": HostDescription(family="cnn", preset="impaired", slots=3, params=100, flops_per_sample=7),
        "tasks": (task,), "rows": (0, 0), "schedules": ("static", "norm at 0, step 0"), "common": 1,
        "search_scores": ((1.0, 2.0),), "choosing_val_pct": ((1.0, 2.0),) * 2, "val_pct": ((1.0, 2.0),) * 2,
        "test_pct": ((1.0, 2.0),) * 2, "params": ((100.0, 110.0),) * 2, "flops_per_sample": ((7.0, 8.0),) * 2,
        "grid_cost": 12, "common_cost": 12,
        "policies": {}, "floors": {"linear classifier": floor},
        "standings": {"held_out": standings(), "held_out_kinds": standings(-1.0, 2.0, share=False)},
    }  # fmt: skip
    return HeadroomReport(**(given | changes))


@pytest.mark.parametrize(
    ("low", "estimate", "said"),
    [
        (5.0, 9.0, "decisions matter here."),
        (4.9, 5.0, "decisions seem to matter, but the interval reaches below 5."),
        (4.0, 4.9, "one schedule for all is nearly as good, so there is little to decide."),
    ],
)
def test_the_verdict_is_that_of_the_gap_and_its_interval(low, estimate, said):
    sentence = page.verdict(standings(low, estimate))
    assert sentence.endswith(said)
    assert f"{estimate:+.1f} [{low:.1f}, 12.0] points above the best common schedule on 20 tasks" in sentence


def test_every_policy_of_every_group_is_in_the_table_and_the_four_of_reference_come_first():
    text = page.page(headroom(), "suite lines")
    parts = text.split("\n## ")
    assert [part.splitlines()[0] for part in parts] == [
        "# Headroom of suite lines",
        "On held-out tasks of known kinds",
        "On tasks of held-out kinds",
        "Networks that nobody grew, on the same tasks",
    ]
    for part, share in zip(parts[1:3], ("50 %", "–"), strict=True):
        lines = [" ".join(line.split()) for line in part.splitlines()]
        rows = [line.split(" | ") for line in lines if "1,234" in line]
        names = ["static", "best common schedule", "oracle per kind", "oracle per task", "patient", "zealous"]
        assert [row[0].removeprefix("| ") for row in rows] == names
        assert rows[0][1:] == ["71.2", "-3.0 [-4.0, -2.0]", share, "< 1", "1,234 |"]
        assert "50.0 with 1, 60.0 with 2." in part
        assert "| lines | 71.2 | 71.2 | 71.2 | 71.2 |" in lines
    assert "| linear classifier | 85.0 | 20 |" in " ".join(parts[3].split())
