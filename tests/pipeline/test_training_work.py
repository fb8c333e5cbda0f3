"""The one training of a project: made longer it equals training that was as long from the start; other settings begin
anew, say so, and leave what was unfinished where it is found again.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from simic import durable, seals
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import doctor, dvc_record, engine, stages, training_work
from simic.pipeline.paths import Workspace
from simic.telemetry import starts
from simic.telemetry.naming import run_name
from simic.training import run_layout
from simic.training.run_layout import CHECKPOINTS
from tests.conftest import Simic
from tests.helpers import contents
from tests.pipeline.small_suite import train, tree

SHORT, LONG = 2, 4


def lasting(iterations: int, *overrides: str) -> Params:
    return tree(
        f"train.iterations={iterations}",
        f"train.horizon={LONG}",
        "train.validate_every=1",
        *overrides,
    )


def save(workspace: Workspace, params: Params) -> None:
    workspace.params.write_text(yaml.safe_dump(params.model_dump(mode="json"), sort_keys=False))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory, suite_run: Workspace) -> Workspace:
    """A project with a finished training of two iterations; read only."""
    workspace = Workspace(tmp_path_factory.mktemp("short") / "project")
    shutil.copytree(suite_run.prepared, workspace.prepared)
    save(workspace, lasting(SHORT))
    begin(lasting(SHORT), workspace)
    train(lasting(SHORT), workspace)
    return workspace


@pytest.fixture
def copy(short: Workspace, tmp_path: Path) -> Workspace:
    return Workspace(shutil.copytree(short.root, tmp_path / "project"))


@pytest.fixture
def unfinished(copy: Workspace) -> Workspace:
    """The same with more iterations asked for, of which it has two."""
    save(copy, lasting(LONG))
    begin(lasting(LONG), copy)
    return copy


def begin(params: Params, workspace: Workspace, fresh: bool = False) -> list[str]:
    return training_work.begin(params, workspace, fresh)


def folders(workspace: Workspace) -> list[str]:
    trained = (training.folder for training in training_work.trainings(workspace))
    return [folder.relative_to(workspace.state).as_posix() for folder in trained]


def work_of(workspace: Workspace, params: Params) -> Path:
    return workspace.work(stages.fingerprint(params, workspace))


def changed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = seals.code_hashes

    def other(places: Sequence[str]) -> Mapping[str, str]:
        return {**hashes(tuple(places)), "agent": "0" * 64}

    monkeypatch.setattr(seals, "code_hashes", other)


def test_training_made_longer_is_byte_for_byte_training_of_that_length(
    copy: Workspace, tmp_path: Path
) -> None:
    [line] = begin(lasting(LONG), copy)
    assert f"after {SHORT} iterations; train.iterations ({SHORT} → {LONG}) changed" in line
    train(lasting(LONG), copy)
    at_once = Workspace(tmp_path / "at once")
    shutil.copytree(copy.prepared, at_once.prepared)
    train(lasting(LONG), at_once)
    published = ("checkpoints", "models", "telemetry")
    assert contents(copy.root, published) == contents(at_once.root, published)
    assert [start.start_iteration for start in starts.read(copy.telemetry / starts.RUN_FILE)] == [
        0,
        SHORT,
    ]
    assert folders(copy) == [work_of(copy, lasting(LONG)).relative_to(copy.state).as_posix()]


def test_without_a_horizon_of_its_own_the_schedule_is_said_to_change(copy: Workspace) -> None:
    [training] = training_work.trainings(copy)
    training_work._note(
        training.folder, seals.identify(copy.root, "train", lasting(SHORT, "train.horizon=null"))
    )
    assert begin(lasting(LONG, "train.horizon=null"), copy)[0].endswith("(train.horizon)")


@pytest.mark.parametrize("override", ["train.ppo.gamma=0.9", "rng_seed=7", "train.horizon=7"])
def test_after_a_recorded_training_other_settings_begin_anew_in_one_line(
    copy: Workspace, override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dvc_record, "is_recorded", lambda *_: True)
    [line] = begin(lasting(LONG, override), copy)
    assert " does not go on: " in line and override.partition("=")[0] in line
    assert folders(copy) == [
        work_of(copy, lasting(LONG, override)).relative_to(copy.state).as_posix()
    ]


def test_a_finished_training_that_nothing_else_has_is_put_by(copy: Workspace) -> None:
    """As when it was killed before its results were published, and then params were edited."""
    [line] = begin(lasting(SHORT, "rng_seed=7"), copy)
    assert f"its {SHORT} iterations are put by in {copy.previous}" in line
    [line] = begin(lasting(SHORT), copy)
    assert line.startswith("goes on with run ") and line.endswith(f"after {SHORT} iterations")


def test_that_an_earlier_training_is_removed_for_the_one_put_by_is_said(
    unfinished: Workspace,
) -> None:
    [training] = training_work.trainings(unfinished)
    begin(lasting(LONG, "rng_seed=7"), unfinished)
    shutil.copytree(
        unfinished.previous / training.folder.name,
        work_of(unfinished, lasting(LONG, "rng_seed=7")),
        dirs_exist_ok=True,
    )
    [line] = begin(lasting(LONG, "rng_seed=8"), unfinished)
    earlier = f"run {run_name(training.folder.name)}, put by earlier after {SHORT} iterations"
    assert line.endswith(f"; {earlier}, is removed")


def test_what_was_put_by_stays_until_the_next_is(
    unfinished: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(lasting(LONG, "rng_seed=7"), unfinished)
    put_by = folders(unfinished)[-1]
    shutil.copytree(
        unfinished.state / put_by,
        work_of(unfinished, lasting(LONG, "rng_seed=7")),
        dirs_exist_ok=True,
    )

    def full(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "move_directory", full)
        with pytest.raises(OSError, match="no room"):
            begin(lasting(LONG, "rng_seed=8"), unfinished)
    assert put_by in folders(unfinished)


def test_files_of_others_in_the_folder_of_trainings_disturb_nobody(unfinished: Workspace) -> None:
    for parent in (unfinished.work_root, unfinished.previous):
        parent.mkdir(exist_ok=True)
        (parent / ".DS_Store").write_text("of a file manager")
        (parent / ".abc.12.old").mkdir()
    assert begin(lasting(LONG), unfinished) == []
    assert (unfinished.work_root / ".DS_Store").exists()
    assert not (unfinished.work_root / ".abc.12.old").exists()


def test_unfinished_training_is_put_by_and_goes_on_when_its_settings_are_back(
    unfinished: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = folders(unfinished)
    with monkeypatch.context() as patch:
        changed_code(patch)
        [line] = begin(lasting(LONG), unfinished)
        assert "does not go on: code agent changed since; " in line
        assert f"its {SHORT} iterations are put by in {unfinished.previous}" in line
        assert begin(lasting(LONG), unfinished) == []
        assert len(folders(unfinished)) == 2
    [line] = begin(lasting(LONG), unfinished)
    assert line.startswith("goes on with run ") and line.endswith(f"after {SHORT} iterations")
    assert folders(unfinished) == before


@pytest.mark.parametrize("content", ["{", None])
def test_a_lost_identity_is_written_again_where_the_folder_has_its_name(
    content: str | None, copy: Workspace
) -> None:
    [training] = training_work.trainings(copy)
    (training.folder / run_layout.IDENTITY).unlink()
    if content is not None:
        (training.folder / run_layout.IDENTITY).write_text(content)
    assert begin(lasting(SHORT), copy) == []
    assert training_work.trainings(copy) == [training]
    (training.folder / run_layout.IDENTITY).write_text("{")
    [line] = begin(lasting(LONG), copy)
    assert "does not go on: identity.json is damaged; its 2 iterations are put by" in line


def test_that_every_checkpoint_is_lost_is_said(unfinished: Workspace) -> None:
    params = lasting(LONG)
    shutil.rmtree(work_of(unfinished, params) / CHECKPOINTS)
    assert begin(params, unfinished) == [
        "no checkpoint is left of what was begun before, so training begins anew"
    ]
    assert begin(params, unfinished, fresh=True) == []


@pytest.mark.parametrize("step", ["_rewrite_params", "_note"])
def test_a_stop_while_it_is_taken_up_costs_nothing(
    step: str, copy: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise SimicError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(training_work, step, full)
        with pytest.raises(SimicError, match="disk full"):
            begin(lasting(LONG), copy)
    [line] = begin(lasting(LONG), copy)
    assert f"after {SHORT} iterations" in line and len(folders(copy)) == 1


def test_the_engine_goes_on_before_it_trains_unless_it_is_to_begin_anew(
    copy: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints: list[int] = []
    params = lasting(LONG)

    def begun(tree: Params, workspace: Workspace, *_: object, **__: object) -> None:
        checkpoints.append(len(list((work_of(workspace, tree) / CHECKPOINTS).glob("*"))))

    monkeypatch.setitem(stages.STAGES, "train", begun)
    monkeypatch.setattr(
        engine, "observers", lambda *_: (None, SimpleNamespace(publish=lambda: None))
    )
    lines: list[str] = []
    engine._train(params, copy, engine.Execution(), lines.append)
    assert checkpoints[0] > 0
    assert lines[0].startswith("train: goes on with run ")


def test_the_doctor_says_what_the_next_training_does(unfinished: Workspace, simic: Simic) -> None:
    def seen() -> list[str]:
        return [
            answer.seen for answer in doctor.examine(unfinished) if answer.question == "training"
        ]

    [line] = seen()
    assert f"{SHORT} iterations in {unfinished.work_root}" in line
    assert line.endswith("the next training goes on with it")
    save(unfinished, lasting(LONG, "train.ppo.gamma=0.9"))
    [line] = seen()
    assert line.endswith("train.ppo.gamma (1.0 → 0.9) changed since; restore that to go on with it")
    code, out, _ = simic("clean", root=unfinished.root)
    assert code == 0 and out.startswith("removed run ") and f"{SHORT} iterations" in out
    assert folders(unfinished) == [] and simic("clean")[1] == "nothing to remove\n"


def test_of_two_trainings_that_could_go_on_the_one_in_its_own_place_does(
    unfinished: Workspace,
) -> None:
    [training] = training_work.trainings(unfinished)
    shutil.copytree(training.folder, unfinished.previous / training.folder.name)
    ends = [line.rpartition("; ")[2] for line in training_work.describe(unfinished)]
    assert ends == [
        "the next training goes on with it",
        "the next training does not go on with it",
    ]
    assert begin(lasting(LONG), unfinished) == [] and len(folders(unfinished)) == 2


def test_of_a_training_that_is_as_long_as_it_is_to_be_nothing_goes_on(copy: Workspace) -> None:
    [line] = training_work.describe(copy)
    assert line.endswith("; nothing is left to train")


def test_the_fingerprint_changes_with_extensions_and_not_with_what_is_not_trained(
    copy: Workspace,
) -> None:
    """Params, data and code are in tests/test_seals.py."""
    changes = ("runtime.progress=none", "evaluate.eval_seeds=3")
    assert stages.fingerprint(tree(*changes), copy) == stages.fingerprint(tree(), copy)
    extended = tree().model_copy(update={"extensions": ("mine_for_fingerprint",)})
    (copy.root / "extensions").mkdir()
    fingerprints = {stages.fingerprint(tree(), copy)}
    for content in ("X = 1\n", "X = 2\n"):
        (copy.root / "extensions" / "mine_for_fingerprint.py").write_text(content)
        fingerprints.add(stages.fingerprint(extended, copy))
    assert len(fingerprints) == 3
