"""`simic doctor` on a fit checkout and on one that is not."""

import importlib.metadata
from pathlib import Path

import pytest
import yaml

from simic.pipeline import doctor
from simic.pipeline.paths import Workspace

ROOT = Path(__file__).parents[2]


def answers(root: Path) -> dict[str, doctor.Answer]:
    return {answer.question: answer for answer in doctor.examine(Workspace(root))}


def test_a_good_checkout_has_sound_packages_and_params() -> None:
    found = answers(ROOT)
    assert found["packages"].well and found["params.yaml"].well


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "dvc":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = answers(ROOT)["packages"]
    assert not found.well and "dvc is not installed" in found.seen


def test_bad_params_are_named_and_nothing_raises(tmp_path: Path) -> None:
    tree = yaml.safe_load((ROOT / "params.yaml").read_text())
    tree["train"]["envs"] = 0
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
    found = answers(tmp_path)
    assert not found["params.yaml"].well and "train.envs = 0" in found["params.yaml"].seen
