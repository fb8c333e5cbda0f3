"""Training that was begun with other params, data or code is named, kept, and removed when asked for."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from simic import cli, seals
from simic.pipeline import doctor, dvc_record, engine, recipe, stages, stale_runs
from simic.pipeline.paths import Workspace
from simic.pipeline.recipe import Kept, TrainingRecipe
from simic.telemetry.naming import run_name
from simic.training import run_layout
from simic.training.run_layout import CHECKPOINTS
from tests.pipeline.small_suite import tree


@pytest.fixture
def begun(suite_run: Workspace, tmp_path: Path) -> Workspace:
    """A workspace with the checkpoints of a run that was not finished."""
    found = Workspace(tmp_path / "project")
    shutil.copytree(suite_run.prepared, found.prepared)
    save(found)
    work = found.work(stages.fingerprint(tree(), found))
    shutil.copytree(suite_run.checkpoints / "latest", work / CHECKPOINTS / "000003")
    recipe.write(work, Kept(recipe=TrainingRecipe.of(tree(), found)))
    return found


def save(workspace: Workspace, *overrides: str) -> None:
    workspace.params.write_text(yaml.safe_dump(tree(*overrides).model_dump(mode="json"), sort_keys=False))


def simic(monkeypatch: pytest.MonkeyPatch, workspace: Workspace, *arguments: str) -> int | str | None:
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(sys, "argv", ["simic", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def stale(workspace: Workspace) -> list[stale_runs.KeptRun]:
    return [run for run in stale_runs.unfinished(workspace) if run.stale]


def test_what_training_goes_on_with_is_not_stale(begun: Workspace) -> None:
    [own] = stale_runs.unfinished(begun)
    assert (own.iterations, own.changed) == (3, ()) and stale(begun) == []


def test_changed_params_are_named_with_both_values_and_many_are_counted(begun: Workspace) -> None:
    save(begun, "train.ppo.gamma=0.9", "train.envs=8")
    [left] = stale(begun)
    assert left.changed == ("train.envs (4 → 8)", "train.ppo.gamma (1.0 → 0.9)")
    line = left.line()
    assert "3 iterations" in line and str(left.path) in line and line.endswith("simic clean")
    assert line in {answer.seen for answer in doctor.examine(begun)}
    save(begun, "train.ppo.gamma=0.9", "train.envs=8", "train.ppo.epochs=2", "train.episode_steps=12", "rng_seed=5")
    [left] = stale(begun)
    assert "(3 → 5), train.envs (4 → 8), train.episode_steps (10 → 12) and 2 more changed" in left.line()


def test_other_data_are_named_and_so_is_code(begun: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        files = {f"{name}.py": "0" for name in "abcde"}
        patch.setattr(seals, "code_hashes", lambda _: files)
        patch.setattr(recipe, "FORMAT_VERSION", 99)
        [left] = stale(begun)
        assert left.changed[0] == "the format of checkpoints" and "more files)" in left.changed[1]
    shutil.rmtree(begun.prepared)
    assert [left.changed for left in stale(begun)] == [("the prepared data",)]


@pytest.mark.parametrize("content", ["{", None])
def test_without_a_whole_recipe_nothing_is_known(content: str | None, begun: Workspace) -> None:
    [own] = stale_runs.unfinished(begun)
    (own.path / run_layout.RECIPE).unlink()
    if content is not None:
        (own.path / run_layout.RECIPE).write_text(content)
    [left] = stale(begun)
    assert left.iterations == 3 and "nothing was saved" in left.changed[0]
    assert stale_runs.extendable(tree("train.iterations=5"), begun, allow_code_change=True) is None


def test_training_that_does_not_go_on_with_it_says_so_first(begun: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    save(begun, "train.envs=8")
    monkeypatch.setattr(dvc_record, "is_stale", lambda *_: True)
    monkeypatch.setattr(dvc_record, "commit", lambda *_: None)
    monkeypatch.setattr(engine, "perform", lambda *_: None)
    said: list[str] = []
    engine.refresh("train", begun, engine.Execution(), said.append)
    assert said[:2] == [f"train: {stale(begun)[0].line()}", "train: running"]


def test_clean_removes_what_is_left_and_nothing_else(
    begun: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [own] = stale_runs.unfinished(begun)
    shutil.copytree(own.path, own.path.with_name("0" * 16))
    other = recipe.read(own.path)
    assert other is not None
    changed = other.recipe.model_copy(update={"data_sha256": "0"})
    recipe.write(own.path.with_name("0" * 16), Kept(recipe=changed))
    shutil.copytree(own.path, begun.finished / ("1" * 16))
    assert simic(monkeypatch, begun, "clean") == 0
    assert f"removed unfinished run {run_name('0' * 16)}: 3 iterations" in capsys.readouterr().out
    assert [each.path for each in stale_runs.unfinished(begun)] == [own.path]
    assert simic(monkeypatch, begun, "clean", "--all") == 0
    assert f"removed finished run {run_name('1' * 16)}: 3 iterations" in capsys.readouterr().out
    assert stale_runs.unfinished(begun) == [] == [*begun.finished.iterdir()]
