"""The cards of a run: numbers of its record alone, code that runs."""

import json
import re

import pytest

from simic.audit import figures
from simic.audit.findings import Verdict
from simic.evaluation import result
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.pipeline.small_suite import tree


def test_the_card_of_the_policy_says_what_was_measured_and_the_verdict(
    suite_run: Workspace,
) -> None:
    text = suite_run.model_card.read_text(encoding="utf-8")
    standings = result.read(suite_run.evaluation).standings
    scores = [group.policies["learned"].score for group in standings.values()]
    for score in scores:
        assert f"{score.estimate:.1f} [{score.low:.1f}, {score.high:.1f}]" in text
    verdict = Verdict.from_json((suite_run.reports / "findings.json").read_bytes())
    for name, sentence in verdict.summary.lines.items():
        assert f"- {name}: {sentence}" in text
    manifest = json.loads((suite_run.checkpoints / "best" / "manifest.json").read_bytes())
    assert manifest["data_sha256"] in text and f"kept is iteration {manifest['iteration']}" in text


def test_the_card_of_the_grown_network_has_an_interval_around_its_test_accuracy(
    suite_run: Workspace,
) -> None:
    text = (suite_run.grown / "README.md").read_text(encoding="utf-8")
    row = re.search(r"\| test, .* over (\d+) samples \| ([\d.]+) % \[([\d.]+), ([\d.]+)\] \|", text)
    assert row is not None
    samples, test, low, high = map(float, row.groups())
    assert samples == result.read(suite_run.evaluation).test_samples
    assert low < test < high


def test_the_code_of_every_card_runs(suite_run: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (
        (suite_run.model_card, suite_run.models),
        (suite_run.models / "README.md", suite_run.models),
    )
    for card, folder in (*cards, (suite_run.grown / "README.md", suite_run.grown)):
        monkeypatch.chdir(folder)  # the code reads from there
        blocks = re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL)
        for block in blocks:
            exec(compile(block, card.name, "exec"), {})  # noqa: S102 - our own
        assert len(blocks) == 2


def test_numbers_of_a_record_that_does_not_hold_are_withheld(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "panels_of", lambda run, sound: ())
    evaluation = json.loads(project.evaluation.read_bytes())
    evaluation["rows"][0] = evaluation["rows"][-1]
    project.evaluation.write_text(json.dumps(evaluation))
    stages.audit(tree(), project)
    text = project.model_card.read_text(encoding="utf-8")
    assert (
        "Withheld: the record does not hold (" in text
        and "- record: The record is not sound: " in text
    )
    (project.checkpoints / "best" / "state.safetensors").write_bytes(b"")
    stages.audit(tree(), project)
    assert project.model_card.read_text().startswith("# No model card\n")
