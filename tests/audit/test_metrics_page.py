"""docs/metrics.md says one sentence about everything that is recorded, and is what the code says."""

import re
from dataclasses import fields
from pathlib import Path

from simic.agent.metrics import UpdateMetrics
from simic.audit.audit import checks
from simic.audit.metrics_page import page
from simic.envs.rewards import MODES

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def sentences():
    """What is said of each name, in a list or in a table."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"(?:- `|\| )(\w+)(?:`(?: \(.*?\))?:| \|)(.*)", line) for line in lines]
    return {match[1]: match[2].strip() for match in found if match}


def test_document_is_what_the_code_says():
    assert DOCUMENT.read_text(encoding="utf-8") == page(), "run python -m simic.audit.metrics_page > docs/metrics.md"


def test_every_metric_component_and_check_has_a_sentence():
    found = sentences()
    names = [field.name for field in fields(UpdateMetrics)]
    names += [name for terms in MODES.values() for name in terms]
    names += [check.id for check in checks()]
    for name in names:
        assert name in found, name
        assert len(found[name]) >= 10, name
