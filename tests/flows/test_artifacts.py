"""The table that Prefect shows of an evaluation."""

from flows import artifacts
from simic.evaluation.result import Evaluation
from tests.evaluation.test_page import standings


def test_the_table_has_score_and_gap_closed_of_every_policy_on_tasks_of_known_kinds() -> None:
    groups = {"held_out": standings(), "held_out_kinds": standings(share=False)}
    rows = artifacts.evaluation_rows(Evaluation.model_construct(standings=groups))
    assert [row["policy"] for row in rows] == list(groups["held_out"].policies)
    assert rows[0] == {
        "policy": "zealous",
        "score (points)": 71.25,
        "95 % interval": "70.00 to 72.00",
        "gap closed": "50 %",
        "parameters": 1234,
    }
    alone = artifacts.evaluation_rows(Evaluation.model_construct(standings={"train": standings(share=False)}))
    assert {row["gap closed"] for row in alone} == {"–"}


def test_a_name_does_nothing_to_what_shows_it() -> None:
    named = {"\x1b[31mred": next(iter(standings().policies.values()))}
    found = Evaluation.model_construct(standings={"train": standings().model_copy(update={"policies": named})})
    assert [row["policy"] for row in artifacts.evaluation_rows(found)] == ["\\x1b[31mred"]
