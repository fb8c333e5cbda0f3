"""What identifies a training run."""

from pathlib import Path

import pytest

from simic.errors import SimicError
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.pipeline.small_suite import tree


def test_fingerprint_changes_with_params_data_and_seed_and_not_with_runtime(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    stages.prepare(tree(), workspace)
    base = stages.fingerprint(tree(), workspace)
    assert base == stages.fingerprint(tree("runtime.progress=none", "evaluate.eval_seeds=3"), workspace)
    others = [stages.fingerprint(tree(change), workspace) for change in ("train.ppo.epochs=3", "rng_seed=2")]
    stages.prepare(tree("prepare.split={train: 0.5, val: 0.25, test: 0.25}"), workspace)
    others.append(stages.fingerprint(tree(), workspace))
    assert len({base, *others}) == 4


@pytest.mark.slow
def test_an_extension_is_part_of_what_training_is_known_by(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    stages.prepare(tree(), workspace)
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "mine_for_fingerprint.py").write_text("X = 1\n")
    named = tree().model_copy(update={"extensions": ("mine_for_fingerprint",)})
    first = stages.fingerprint(named, workspace)
    assert first != stages.fingerprint(tree(), workspace)
    (tmp_path / "extensions" / "mine_for_fingerprint.py").write_text("X = 2\n")
    assert first != stages.fingerprint(named, workspace)


def test_missing_data_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(SimicError, match="run simic prepare first"):
        stages.train(tree(), Workspace(tmp_path))
