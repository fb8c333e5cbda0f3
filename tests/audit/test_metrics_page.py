"""docs/metrics.md says one sentence about everything that is recorded, and is what the code says."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from simic.agent.metrics import UpdateMetrics
from simic.audit.audit import checks
from simic.audit.metrics_page import page
from simic.envs.rewards import MODES
from simic.evaluation import endpoints
from simic.params import PolicyName, RuleName
from simic.telemetry import columns

from .synthetic import evaluation

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def sentences():
    """Return the sentence of each name."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"- `(\w+)`(?: \(.*?\))?:(.*)", line) for line in lines]
    return {match[1]: match[2].strip() for match in found if match}


def test_document_is_what_the_code_says():
    assert DOCUMENT.read_text(encoding="utf-8") == page() + "\n", (
        "run python -m simic.audit.metrics_page > docs/metrics.md"
    )


def test_every_metric_component_and_check_has_a_sentence():
    found = sentences()
    names = [field.name for field in fields(UpdateMetrics)]
    names += [name for terms in MODES.values() for name in terms]
    names += [*columns.EPISODES, *get_args(RuleName), *get_args(PolicyName), *endpoints.metrics(evaluation())]
    names += [check.id for check in checks(of_gym=False) if not check.id.startswith("C")]
    for name in names:
        assert name in found, name
        assert len(found[name]) >= 9, name


def test_what_checks_say_names_no_check_that_there_is_not():
    said = "\n".join(f"{check.fix} {check.threshold} {check.question}" for check in checks())
    assert set(re.findall(r"\b(?:\(|in )([A-Z]\d+)\b", said)) <= {check.id for check in checks()}
