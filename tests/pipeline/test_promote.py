"""`simic promote` on a real registry: the rule by which a challenger becomes champion, and what it refuses."""

import json
from unittest.mock import Mock

import pytest

from simic.audit.findings import Result, Status, Summary, Verdict
from simic.errors import SimicError
from simic.pipeline import promote, tracking
from simic.pipeline.paths import Workspace
from simic.serving import promotion
from simic.telemetry.naming import run_name
from tests.conftest import Simic
from tests.pipeline.small_suite import tree


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
    return {
        alias: str(number)
        for alias, number in client.get_registered_model("simic-tables").aliases.items()
    }


def test_a_moved_project_is_named_and_not_taken_for_a_store_that_is_away(
    tracked: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tracked.root / "mlruns"
    folder.rename(folder.with_name("moved"))
    with pytest.raises(SimicError, match=r"findings.json of version 1 is not at .*mlruns.*moved"):
        promotion.promote(tree(), tracked)
    monkeypatch.setattr(tracking, "connect", Mock(side_effect=tracking.Unusable("copied")))
    with pytest.raises(SimicError, match=r"^copied$"):
        promotion.promote(tree(), tracked)


class Findings:
    """A store with the findings of one check."""

    def __init__(self, folder, severity: str | None, layer: str) -> None:
        text = dict.fromkeys(("title", "question", "measured", "threshold", "source", "fix"), "")
        fields = {"check": "H1", "layer": layer, "severity": severity or "critical", "evidence": ()}
        status = Status.FINDING if severity else Status.PASS
        row = Result.model_validate({**fields, **text, "status": status})
        self.path = folder / "findings.json"
        self.path.write_text(
            Verdict(
                run="x", summary=Summary(what="", record="", replay="", learning=""), results=(row,)
            ).to_json()
        )

    def download_artifacts(self, run_id: str, name: str, folder: str) -> str:
        return str(self.path)


@pytest.mark.parametrize(
    ("severity", "layer", "reasons"),
    [
        (None, "learning", []),
        ("medium", "learning", []),
        ("high", "learning", ["its audit has critical or high findings (H1)"]),
        ("low", "record", ["its result is withheld (H1)"]),
    ],
)
def test_the_audit_may_have_nothing_grave_against_a_champion(
    tmp_path, severity, layer, reasons
) -> None:
    version = tracking.ModelVersion("simic-tables", "1", 0, run_id="r")
    assert promote.audit_reasons(Findings(tmp_path, severity, layer), version) == reasons


def test_a_champion_is_followed_by_who_beats_it_and_is_no_challenger(
    tracked: Workspace, simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the audit found of a controller of three iterations is not looked at here."""
    monkeypatch.setattr(promote, "audit_reasons", lambda client, version: [])
    assert simic("promote")[:2] == (
        0,
        "challenger  version 1\nchampion    none yet\ndecision    promoted\n",
    )
    assert holders(tracked) == {"champion": "1"}
    assert simic.refuses("promote").startswith("simic: simic-tables: no version is the challenger")
    assert "is the champion already" in simic.refuses("promote", run_name("a" * 16))

    # The same scores are not better.
    track(tracked, run_name("b" * 16))
    code, out, _ = simic("promote", run_name("b" * 16))
    assert code == 1 and "difference  +0.00 [+0.00, +0.00]" in out
    assert holders(tracked) == {"champion": "1", "challenger": "2"}

    # Five points more on every host are; validation decides, whatever the test split says.
    evaluation = json.loads(tracked.evaluation.read_bytes())
    hosts = evaluation["policies"]["learned"]["per_seed"]
    hosts["val_accuracy_pct"] = [accuracy + 5.0 for accuracy in hosts["val_accuracy_pct"]]
    hosts["test_accuracy_pct"] = [0.0 for _ in hosts["test_accuracy_pct"]]
    tracked.evaluation.write_text(json.dumps(evaluation))
    track(tracked, run_name("c" * 16))
    code, out, _ = simic("promote")
    assert code == 0 and "difference  +5.00 [+5.00, +5.00]" in out
    assert holders(tracked) == {"champion": "3"}

    # Other tasks cannot be compared.
    tracked.evaluation.write_text(json.dumps({**evaluation, "data_sha256": "0" * 64}))
    track(tracked, run_name("d" * 16))
    assert (
        "version 4 was evaluated with another data_sha256 than the champion, version 3"
        in simic.refuses("promote")
    )
    names = ", ".join(run_name(letter * 16) for letter in "dcba")
    assert (
        simic.refuses("promote", "nobody")
        == f"simic: run 'nobody': has no version of simic-tables; there are {names}\n"
    )


def test_a_store_that_cannot_be_reached_is_one_line(
    project: Workspace, simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert simic.refuses("promote", root=project.root).startswith("simic: MLflow does not answer")
