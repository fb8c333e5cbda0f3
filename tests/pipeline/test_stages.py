"""What identifies a training run."""

from pathlib import Path

import pytest

from simic.errors import SimicError
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.pipeline.small_suite import tree


def test_fingerprint_changes_with_params_data_seed_and_extensions_and_not_with_runtime(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    stages.prepare(tree(), workspace)
    base = stages.fingerprint(tree(), workspace)
    assert base == stages.fingerprint(tree("runtime.progress=none", "evaluate.eval_seeds=3"), workspace)
    others = [stages.fingerprint(tree(change), workspace) for change in ("train.ppo.epochs=3", "rng_seed=2")]
    stages.prepare(tree("prepare.split={train: 0.5, val: 0.25, test: 0.25}"), workspace)
    others.append(stages.fingerprint(tree(), workspace))
    extended = tree().model_copy(update={"extensions": ("mine_for_fingerprint",)})
    (tmp_path / "extensions").mkdir()
    for content in ("X = 1\n", "X = 2\n"):
        (tmp_path / "extensions" / "mine_for_fingerprint.py").write_text(content)
        others.append(stages.fingerprint(extended, workspace))
    assert len({base, *others}) == 6


def test_missing_data_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(SimicError, match="run simic prepare first"):
        stages.train(tree(), Workspace(tmp_path))
