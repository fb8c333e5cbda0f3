"""Overrides in params.yaml: the value changes, nothing else does."""

from pathlib import Path

import pytest
import yaml

from flows.overrides import Overrides
from simic import params
from simic.errors import SimicError
from simic.pipeline import overrides
from tests.helpers import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "params.yaml"
    file.write_bytes((ROOT / "params.yaml").read_bytes())
    return file


def write(file: Path, words: list[str]) -> None:
    file.write_bytes(overrides.edited(file, words))


def test_only_the_overridden_lines_change(path: Path) -> None:
    old = params.load(path).train
    before = path.read_text().splitlines()
    words = ["train.ppo.learning_rate=1.5e-4", "train.episode_steps=7"]
    changes = overrides.changes(path, words)
    write(path, words)
    after = path.read_text().splitlines()
    assert changes == [
        f"train.ppo.learning_rate: {old.ppo.learning_rate} -> 0.00015",
        f"train.episode_steps: {list(old.episode_steps)} -> 7",
    ]
    assert [new.strip() for line, new in zip(before, after, strict=True) if line != new] == [
        "episode_steps: 7",
        "learning_rate: 0.00015",
    ]


def test_a_params_file_gives_every_value_and_defaults_for_what_it_leaves_out(
    path: Path, tmp_path: Path
) -> None:
    write(path, ["train.envs=24", "rng_seed=9"])
    second = tmp_path / "other.yaml"
    second.write_text("prepare: {task: mnist}\ntrain: {host: {family: mlp}}\n")
    write(path, overrides.from_file(second))
    tree = params.load(path)
    assert tree == params.validate(
        {"prepare": {"task": "mnist"}, "train": {"host": {"family": "mlp"}}}, ""
    )
    assert tree.rng_seed == params.Params().rng_seed  # not the 9 that stood there
    assert "# How to run, not what" in path.read_text()  # comments stay


@pytest.mark.parametrize("value", ["5", "scale", "{a: 1}"])
def test_extensions_of_a_file_that_are_no_list_are_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(f"extensions: {value}\n")
    with pytest.raises(SimicError, match=r"other.yaml: extensions = .*: must be a valid tuple"):
        overrides.from_file(file)


def test_key_missing_in_the_file_is_added(path: Path) -> None:
    tree = yaml.safe_load(path.read_text())
    del tree["train"]["ppo"], tree["audit"]
    path.write_text(yaml.safe_dump(tree))
    write(path, ["train.ppo.epochs=2", "train.ppo.target_kl=null", "audit.fail_on=high"])
    assert (params.load(path).train.ppo.epochs, params.load(path).train.ppo.target_kl) == (2, None)
    assert params.load(path).audit.fail_on == "high"


def test_the_same_value_leaves_the_file_alone(path: Path) -> None:
    batches = params.load(path).train.batches_per_epoch
    words = [f"train.batches_per_epoch={batches}", "prepare.source=null"]
    assert overrides.changes(path, words) == []
    assert overrides.edited(path, words) == path.read_bytes()


def test_deployment_overrides_and_command_line_overrides_write_the_same(
    path: Path, tmp_path: Path
) -> None:
    second = tmp_path / "other.yaml"
    second.write_bytes(path.read_bytes())
    tree = {
        "rng_seed": 5,
        "train": {"ppo": {"learning_rate": 1e-5, "target_kl": None}, "batches_per_epoch": "all"},
    }
    tree["evaluate"] = {"policies": ["blind", "learned"]}
    write(path, overrides.from_model(Overrides.model_validate(tree)))
    words = [
        "rng_seed=5",
        "train.ppo.learning_rate=1e-5",
        "train.ppo.target_kl=null",
        "train.batches_per_epoch=all",
    ]
    words += ["evaluate.policies=[blind, learned]"]
    write(second, words)
    assert path.read_bytes() == second.read_bytes()
