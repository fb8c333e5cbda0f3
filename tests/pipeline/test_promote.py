"""The rule by which a challenger becomes champion, and `simic promote` on a real registry."""

import json

import pytest

from simic.audit.findings import Result, Status, Verdict, read_verdict
from simic.data.batches import HELD_OUT_FILE, TEST_FILE
from simic.evaluation.promotion import Contest
from simic.evaluation.statistics import Interval, PairedComparison
from simic.pipeline import promote, tracking
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.telemetry.rows import Severity
from tests.conftest import Simic
from tests.pipeline.small_suite import tree


def played(*lows: float) -> Contest:
    numbers = {"p_value": 0.01, "probability_of_improvement": 0.9, "minimum_detectable": 1.0, "pairs": 20}
    compared = tuple(
        PairedComparison("challenger", name, Interval(low + 1.0, low, low + 2.0), **numbers)
        for name, low in zip(("random_legal", "static"), lows, strict=False)
    )
    return Contest(data_sha256="d" * 64, hosts=20, tasks=20, iteration=1 << 42, compared=compared)


def verdict(severity: Severity | None = None, layer: str = "symptom") -> Verdict:
    """Of one check, which found something of that severity."""
    found = {"check": "H1", "layer": layer, "severity": severity or "critical", "statistics": (), "evidence": ()}
    found |= dict.fromkeys(("title", "question", "measured", "threshold", "source", "fix"), "")
    result = Result.model_validate(found | {"status": Status.FINDING if severity else Status.PASS})
    return Verdict(run="x", results=(result,))


@pytest.mark.parametrize(
    ("contest", "found", "why"),
    [
        (played(0.01), verdict(), ""),
        (played(0.01, 0.01), verdict("medium"), ""),
        (played(0.0), verdict(), "the interval over random_legal is not above 0 (its lower end is +0.00)"),
        (played(0.5, -0.25), verdict(), "the interval over static is not above 0 (its lower end is -0.25)"),
        (played(0.01), verdict("high"), "its audit has critical or high findings (H1)"),
        (played(0.01), verdict("critical"), "its audit has critical or high findings (H1)"),
        (played(0.01), verdict("low", "recompute"), "its verdict is withheld (H1)"),
    ],
)
def test_promoted_is_who_wins_for_certain_with_an_audit_without_grave_findings(
    contest: Contest, found: Verdict, why: str
) -> None:
    assert "; ".join(promote.decide(contest, found)) == why


def track(workspace: Workspace, name: str, sound: bool = True) -> None:
    """Log the run of a workspace."""
    manifest = json.loads((workspace.checkpoints / "latest" / "manifest.json").read_bytes())
    tags = {tracking.DATA_TAG: manifest["data_sha256"]}
    tracking.log_run(workspace, tree(), name, tags, "", sound)


@pytest.fixture
def tracked(project: Workspace, initialised: bytes, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A finished run that MLflow knows, in the current folder."""
    monkeypatch.chdir(project.root)
    (project.root / "mlflow.db").write_bytes(initialised)
    track(project, run_name("a" * 16))
    return project


def holders(workspace: Workspace) -> dict[str, str]:
    client, _ = tracking.connect(workspace)
    return {alias: str(number) for alias, number in client.get_registered_model("simic-tables").aliases.items()}


def test_a_challenger_that_does_not_clear_the_floors_stays_one(tracked: Workspace, simic: Simic) -> None:
    """A controller of three iterations, on one validation task; what is held out is not there."""
    for name in (TEST_FILE, HELD_OUT_FILE):
        (tracked.prepared / name).unlink()
    code, out, _ = simic("promote")
    found = promote.Promotion.model_validate_json(tracked.promotion.read_bytes())
    assert code == 1 and not found.promoted and found.champion is None
    assert [each.second for each in found.contest.compared] == ["random_legal", "static"]
    assert found.refuted == () and found.findings == read_verdict(tracked.reports).counts()
    assert out.splitlines()[0] == "challenger  version 1"
    assert out.count("difference  ") == 2 and "decision    not promoted: the interval over " in out
    assert holders(tracked) == {"challenger": "1"}
    client, _ = tracking.connect(tracked)
    version = client.get_model_version("simic-tables", "1")
    assert version.tags["simic.promotion"] == "not promoted" and version.tags["simic.promotion.reason"]
    assert "promotion.json" in {file.path for file in client.list_artifacts(version.run_id or "")}
    before = tracked.promotion.read_bytes()
    simic("promote")
    assert tracked.promotion.read_bytes() == before


def test_a_champion_is_followed_by_who_beats_it_and_is_no_challenger(
    tracked: Workspace, simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wins is decided here; that the rule holds for it, and what follows, is what is tested."""
    won = [played(0.5, 0.5), played(-0.5)]
    opponents: list[bool] = []
    monkeypatch.setattr(
        promote, "contest", lambda *given: opponents.append(given[3] is not None) or won[len(opponents) - 1]
    )
    monkeypatch.setattr(promote, "decide", lambda contest, _: promote_rule(contest, verdict()))
    assert simic("promote")[0] == 0
    assert holders(tracked) == {"champion": "1"}
    assert simic.refuses("promote").startswith("simic: simic-tables: no version is the challenger")
    track(tracked, run_name("b" * 16))
    assert holders(tracked) == {"champion": "1", "challenger": "2"}
    assert simic("promote", run_name("b" * 16))[0] == 1
    assert opponents == [False, True] and holders(tracked) == {"champion": "1", "challenger": "2"}
    assert "is the champion already" in simic.refuses("promote", run_name("a" * 16))
    known = f"has no version of simic-tables; there are {run_name('b' * 16)}, {run_name('a' * 16)}"
    assert simic.refuses("promote", "nobody") == f"simic: run 'nobody': {known}\n"


promote_rule = promote.decide


def test_a_store_that_cannot_be_reached_is_one_line(
    project: Workspace, simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert simic.refuses("promote", root=project.root).startswith("simic: MLflow does not answer")
