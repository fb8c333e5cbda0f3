"""The table that Prefect shows of an evaluation."""

from flows import artifacts
from simic.evaluation.intervals import Interval
from simic.evaluation.result import Evaluation, Standing, Standings


def standings() -> Standings:
    standing_of_policy = Standing(
        score=Interval(71.25, 70, 72),
        over_rule=None,
        over_common=Interval(-3.0, -4.0, -2.0),
        params=1234.0,
    )
    gap, policies = (
        Interval(9.0, 6.0, 12.0),
        {"zealous": standing_of_policy, "static": standing_of_policy},
    )
    return Standings(tasks=20, gap=gap, random_search=(50.0,), policies=policies, by_kind={})


def test_the_table_has_the_score_of_every_policy_on_tasks_of_known_kinds() -> None:
    """A name does nothing to the page that shows it."""
    groups = {"held_out": standings(), "held_out_kinds": standings()}
    groups["held_out"].policies["\x1b[31mred"] = groups["held_out"].policies["zealous"]
    rows = artifacts.evaluation_rows(Evaluation.model_construct(standings=groups))
    assert [row["policy"] for row in rows] == ["zealous", "static", "\\x1b[31mred"]
    assert rows[0] == {
        "policy": "zealous",
        "score (points)": 71.25,
        "95 % interval": "70.00 to 72.00",
        "parameters": 1234,
    }
