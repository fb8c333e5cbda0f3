"""Every fault of the catalogue can be planted in the source as it is today, and is judged as it should be."""

from collections import Counter
from typing import Literal

import pytest

from simic.errors import SimicError
from tests.faults.catalogue import ALL, BY_ID
from tests.faults.fault import FAMILIES, PACKAGE, Fault, Patch, patched, planted
from tests.faults.play import Ending
from tests.faults.runner import gravest, judge

HIGH = Fault("maths-x", "maths", "Something is wrong.", "high")


@pytest.mark.parametrize("fault", [fault for fault in ALL if fault.patches], ids=lambda fault: fault.id)
def test_every_patch_applies_once_and_compiles(fault: Fault) -> None:
    sources: dict[str, str] = {}
    for patch in fault.patches:
        before = sources.get(patch.file) or (PACKAGE / patch.file).read_text()
        sources[patch.file] = patched(before, patch)
        assert sources[patch.file] != before


@pytest.mark.parametrize(("old", "new", "said"), [("c", "d", "there 0 times"), ("= 1", "=", "there 2 times")])
def test_a_patch_that_does_not_fit_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(SimicError, match=said):
        patched("a = 1\nb = 1\n", Patch("x.py", old, new))


def test_there_are_enough_faults_of_every_family() -> None:
    of_family = Counter(fault.family for fault in ALL)
    assert len(ALL) >= 64 and of_family.keys() == set(FAMILIES) and min(of_family.values()) >= 8
    assert len(BY_ID) == len(ALL) == len({fault.title for fault in ALL})
    for fault in ALL:
        assert fault.id.startswith(fault.family) and fault.title.endswith(".")
        assert not [patch for patch in fault.patches if patch.file.startswith("audit")]
    with pytest.raises(ValueError, match="fault maths-nothing: needs a patch or one tampering"):
        list(planted("maths", {"nothing": ("low", "Nothing is wrong.")}))


@pytest.mark.parametrize(
    ("found", "clean", "word"),
    [
        ({}, {}, "missed"),
        ({"A1": "high"}, {"A1": "high"}, "missed"),  # a false alarm proves nothing
        ({"A1": "low"}, {"A1": "medium"}, "missed"),
        ({"A1": "medium"}, {}, "lower"),
        ({"A1": "high"}, {"A1": "medium"}, "caught"),
        ({"A1": "low", "B1": "critical"}, {}, "caught"),
    ],
)
def test_findings_that_a_clean_run_has_do_not_count(found: dict, clean: dict, word: str) -> None:
    assert judge(HIGH, Ending(), found, clean).word == word


@pytest.mark.parametrize("how", ["refused", "crashed"])
def test_a_run_that_ends_early_is_judged_by_how_it_ended(how: Literal["refused", "crashed"]) -> None:
    judged = judge(HIGH, Ending(how, "train", "why"), {"A1": "critical"}, {})
    assert (judged.word, judged.by, judged.stage, judged.message) == (how, {}, "train", "why")


def test_of_several_reports_each_check_counts_at_its_gravest() -> None:
    reports = [{"A1": "low", "B1": "critical"}, {"A1": "high"}, {"C1": "info"}]
    assert gravest(reports) == {"A1": "high", "B1": "critical", "C1": "info"}
