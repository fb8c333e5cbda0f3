"""docs/metrics.md says one sentence about everything that is recorded, and is what the code says."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

from simic.agent.metrics import UpdateMetrics
from simic.audit.audit import checks
from simic.envs.rewards import MODES, TERMS
from simic.evaluation import endpoints
from simic.params import PolicyName, RuleName
from simic.telemetry import columns

from .synthetic import evaluation

LINES = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
ON_PAGE = checks()


def test_document_is_what_the_code_says():
    sentences = get_type_hints(UpdateMetrics, include_extras=True)
    expected = {f"- `{name}`: {hint.__metadata__[0]}" for name, hint in sentences.items()}
    for name, term in TERMS.items():
        modes = ", ".join(mode for mode, terms in MODES.items() if name in terms)
        paragraph = (term.__doc__ or "").strip().split("\n\n")[0]
        expected.add(f"- `{name}` ({modes}): {' '.join(paragraph.split())}")
    for check in ON_PAGE:
        expected.add(
            f"- `{check.id}` ({check.severity}{', live' if check.live else ''}): {check.title}."
        )
    assert expected - {*LINES} == set()


def test_every_metric_component_and_check_has_a_sentence_and_nothing_else_has_one():
    names_on_page = [
        match[1]
        for line in LINES
        if (match := re.fullmatch(r"- `(.+?)`(?: \(.*?\))?: .{8,}", line))
    ]
    names = [
        *UpdateMetrics.__annotations__,
        *TERMS,
        *columns.EPISODES,
        *get_args(RuleName),
        *get_args(PolicyName),
    ]
    names += [*endpoints.metrics(evaluation()), *(check.id for check in ON_PAGE)]
    shown_beside = {"static_final", "linear classifier", endpoints.COMMON, endpoints.ORACLE_TASK}
    assert {*names_on_page} == {*names, *shown_beside}


def test_what_checks_say_names_no_check_that_there_is_not():
    text = "\n".join(f"{check.fix} {check.threshold} {check.question}" for check in checks())
    assert set(re.findall(r"\b(?:\(|in )([A-Z]\d+)\b", text)) <= {check.id for check in checks()}
