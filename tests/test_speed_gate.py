"""The batched engine is not slower than it was: operations counted, and a ratio inside one run."""

import json

import pytest

from benchmarks.speed_gate import GATES, RESULT

MAY_GROW = 1.05


def recorded(case: str) -> dict:
    (found,) = [gate for gate in json.loads(RESULT.read_bytes())["gates"] if gate["case"] == case]
    return found


@pytest.mark.parametrize("case", GATES)
def test_hosts_issue_no_more_operations_than_recorded(case: str) -> None:
    now, before = GATES[case].operations(), recorded(case)["operations"]
    assert now <= MAY_GROW * before, "slower; if it has to be: python -m benchmarks.speed_gate"
    assert now >= before / MAY_GROW, "faster: record it with python -m benchmarks.speed_gate"
