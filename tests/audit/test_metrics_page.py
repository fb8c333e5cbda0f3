"""docs/metrics.md says one sentence about everything that is recorded, and is what the code says."""

from dataclasses import fields
from pathlib import Path

from simic.agent.metrics import UpdateMetrics
from simic.audit.audit import checks
from simic.audit.metrics_page import page
from simic.envs.rewards import MODES

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def rows():
    """First cell and last cell of each table row."""
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("` "): row for row in cells}


def test_document_is_what_the_code_says():
    assert DOCUMENT.read_text(encoding="utf-8") == page(), "run python -m simic.audit.metrics_page > docs/metrics.md"


def test_every_metric_component_and_check_has_a_sentence():
    found = rows()
    names = [field.name for field in fields(UpdateMetrics)]
    names += [name for terms in MODES.values() for name in terms]
    names += [check.id for check in checks()]
    for name in names:
        assert name in found, name
        assert len(found[name][-1]) >= 10, name
