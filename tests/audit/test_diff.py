"""simic audit diff: what became of every finding."""

import json

import pytest

from simic.audit import diff
from simic.audit.audit import examine
from simic.audit.findings import Status
from simic.errors import SimicError


@pytest.fixture(scope="module")
def verdict(clean):
    return examine(clean, "run")


def ended(verdict, **changes):
    """Change results: R1="high" is a finding, R1=None was not evaluated; the run is named after the changes."""
    results = []
    for result in verdict.results:
        if result.check in changes:
            severity = changes[result.check]
            status = Status.FINDING if severity else Status.NOT_EVALUATED
            result = result.model_copy(update={"status": status, "severity": severity or result.severity})
        results.append(result)
    return verdict.model_copy(update={"run": "-".join(changes) or "clean", "results": tuple(results)})


def sorted_out(before, after):
    found = diff.changes(before, after)
    return {change: [(new or old).check for old, new in pairs] for change, pairs in found.items() if pairs}


def test_every_finding_is_new_worse_same_better_fixed_or_unknown(verdict):
    before = ended(verdict, R1="high", R2="high", R3="high", G1="low", G2="low", H1=None)
    after = ended(verdict, R2="high", R3="medium", G1="critical", G2=None, H1="low", P5="critical")
    assert sorted_out(before, after) == {
        "new": ["P5", "H1"], "worse": ["G1"], "same": ["R2"], "better": ["R3"], "fixed": ["R1"],
        "not evaluated any more": ["G2"],
    }  # fmt: skip


def test_to_lose_a_check_fixes_nothing_and_the_page_counts_what_became_of_each(verdict):
    gone = verdict.model_copy(update={"results": tuple(r for r in verdict.results if r.check != "R1")})
    assert sorted_out(ended(verdict, R1="high"), gone) == {"not evaluated any more": ["R1"]}
    head, line = diff.page(ended(verdict, G1="low"), ended(verdict, G1="high", K1=None)).splitlines()
    assert head.startswith("G1 (certified) -> G1-K1 (not certified): 0 new, 1 worse, 0 same, 0 better, 0 fixed")
    assert line.startswith("worse   low -> high G1 ")


@pytest.mark.parametrize("place", ["reports/findings.json", "reports", "."])
def test_a_run_is_found_by_file_and_by_folder(place, verdict, tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "findings.json").write_text(verdict.to_json(), encoding="utf-8")
    assert diff.read_verdict(tmp_path / place) == verdict


@pytest.mark.parametrize("content", [None, b"\xff", json.dumps({"schema_version": 2}).encode()])
def test_what_is_no_finding_is_refused_by_name(content, tmp_path):
    place = tmp_path / "findings.json"
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(SimicError, match=r"findings\.json: (not findings of this version|neither)"):
        diff.read_verdict(place)
