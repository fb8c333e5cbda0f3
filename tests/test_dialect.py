"""One dialect of YAML: what simic uses is what DVC records, for every form of a scalar, in the file and with -S."""

from pathlib import Path
from typing import Any

import pytest

from simic import params
from simic.errors import SimicError
from simic.params import read_tree
from simic.pipeline import dvc_record, overrides
from simic.pipeline.paths import Workspace
from tests.helpers import toy_project

# As YAML 1.2 has it and DVC reads it; YAML 1.1 has 15, 90, "1e3", True, "0o17" and 1:30 = 90 among them.
FORMS: dict[str, Any] = {
    "017": 17, "09": 9, "0o17": 15, "0x1F": 31, "1_000": 1000, "+1": 1, "-0": 0,
    "1e3": 1000.0, "1E3": 1000.0, "12e03": 12000.0, "1e-4": 0.0001, "1.e-6": 1e-06, "1.": 1.0, ".5": 0.5, "1.0": 1.0,
    "1:30": "1:30", "1:30:00": "1:30:00", "yes": "yes", "NO": "NO", "on": "on", "0o9": "0o9", "1e": "1e", "y": "y",
    "'017'": "017", '"1e3"': "1e3", "'yes'": "yes", "'~'": "~", "'2020-01-01'": "2020-01-01", "'1:30'": "1:30",
    "a b": "a b", "1,5": "1,5", "1 000": "1 000",
}  # fmt: skip


def exact(values: Any) -> Any:
    """With types told apart: 1 == 1.0 == True."""
    if isinstance(values, dict):
        return {key: exact(value) for key, value in values.items()}
    return [exact(value) for value in values] if isinstance(values, list | tuple) else (type(values), values)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    found = toy_project(tmp_path)
    found.checkpoints.mkdir()
    found.prepared.mkdir(parents=True)
    return found


def recorded(workspace: Workspace) -> dict[str, Any]:
    """The section train as DVC writes it into dvc.lock."""
    dvc_record.commit(workspace.root, "train")
    lock = read_tree(workspace.root / "dvc.lock")
    return lock["stages"]["train"]["params"]["params.yaml"]["train"]


def test_simic_reads_every_scalar_as_dvc_does_in_the_file_and_with_s(workspace: Workspace) -> None:
    from dvc.utils.serialize import parse_yaml

    text = workspace.params.read_text()
    listed = "".join(f"\n    form{k}:\n    - {form}" for k, form in enumerate(FORMS))
    workspace.params.write_text(text.replace("  actions:", "  actions:" + listed, 1))
    tree = read_tree(workspace.params, [f"train.actions.given{k}=- {form}" for k, form in enumerate(FORMS)])
    for k, (form, value) in enumerate(FORMS.items()):
        found = parse_yaml(f"a: {form}", "f")["a"], tree["train"]["actions"][f"form{k}"][0]
        assert exact([*found, tree["train"]["actions"][f"given{k}"][0]]) == exact([value] * 3), form


def test_anchors_and_merges_are_used_as_dvc_records_them(workspace: Workspace) -> None:
    text = workspace.params.read_text()
    text = text.replace("score: {weight: 0.1}", "score: *w").replace(
        "loss: {weight: 0.2", "loss: {<<: &w {weight: 0.2}"
    )
    text = text.replace("target_chances: 0.13", "target_chances: &d 0.13").replace("gamma: 1.0", "gamma: *d")
    workspace.params.write_text(text)
    tree, found = params.load(workspace.params).train, recorded(workspace)
    assert (tree.reward.loss.weight, tree.reward.score.weight, tree.ppo.gamma) == (0.2, 0.2, 0.13)
    assert (found["reward"]["loss"]["weight"], found["reward"]["score"]["weight"]) == (0.2, 0.2)
    assert found["ppo"]["gamma"] == 0.13


def test_a_value_that_an_anchor_ties_to_another_is_not_changed_alone(workspace: Workspace) -> None:
    text = workspace.params.read_text().replace("score: {weight: 0.1}", "score: *w")
    workspace.params.write_text(text.replace("loss: {weight: 0.2,", "loss: {<<: &w {weight: 0.2},"))
    before = workspace.params.read_bytes()
    with pytest.raises(SimicError, match="its anchors tie other values to those that change"):
        overrides.write(workspace.params, ["train.reward.score.weight=0.3"])
    assert workspace.params.read_bytes() == before
