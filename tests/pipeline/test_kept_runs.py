"""What .simic keeps: training made longer equals training that was as long from the start, other code goes on where it
may, and what training does not go on with is named, kept, and removed when asked for.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml

from simic import seals
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import doctor, dvc_record, engine, kept_runs, stages
from simic.pipeline.kept_runs import Kept, KeptRun, TrainingRecipe
from simic.pipeline.paths import Workspace
from simic.telemetry import starts
from simic.telemetry.naming import run_name
from simic.telemetry.publish import FINDINGS_FILE
from simic.training import run_layout, trainer
from simic.training.run_layout import CHECKPOINTS
from simic.training.session import open_session
from tests.conftest import Simic
from tests.helpers import contents
from tests.pipeline.small_suite import train, tree

SHORT, LONG = 2, 4


def lasting(iterations: int, *overrides: str) -> Params:
    return tree(f"train.iterations={iterations}", f"train.horizon={LONG}", "train.validate_every=1", *overrides)


def save(workspace: Workspace, params: Params) -> None:
    workspace.params.write_text(yaml.safe_dump(params.model_dump(mode="json"), sort_keys=False))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory, suite_run: Workspace) -> Workspace:
    """Trained, published, recorded; read only."""
    found = Workspace(tmp_path_factory.mktemp("short") / "project")
    shutil.copytree(suite_run.prepared, found.prepared)
    save(found, lasting(SHORT))
    begin(lasting(SHORT), found)
    train(lasting(SHORT), found)
    stages.discard_work(lasting(SHORT), found)
    return found


@pytest.fixture
def copy(short: Workspace, tmp_path: Path) -> Workspace:
    return Workspace(shutil.copytree(short.root, tmp_path / "project"))


def begin(params: Params, workspace: Workspace, fresh: bool = False, allow_code_change: bool = False) -> str | None:
    return kept_runs.begin(params, workspace, fresh, allow_code_change)


def test_training_made_longer_is_byte_for_byte_training_of_that_length(copy: Workspace, tmp_path: Path) -> None:
    assert list((copy.state / "work").iterdir()) == [] and len(list(copy.finished.iterdir())) == 1
    said = begin(lasting(LONG), copy)
    assert said is not None and f"after {SHORT} iterations; changed: train.iterations ({SHORT} → {LONG})" in said
    train(lasting(LONG), copy)
    at_once = Workspace(tmp_path / "at once")
    shutil.copytree(copy.prepared, at_once.prepared)
    train(lasting(LONG), at_once)
    published = ("checkpoints", "models", "telemetry")
    assert contents(copy.root, published) == contents(at_once.root, published)
    lives = starts.read(copy.telemetry / starts.RUN_FILE)
    assert [life.start_iteration for life in lives] == [0, SHORT]
    assert [seam.check for seam in lives[1].findings] == ["resumed_with_changes"]


def test_training_that_was_killed_before_it_was_published_is_not_taken_for_the_recorded_one(copy: Workspace) -> None:
    """As `dvc repro` finds it, which asks for it again: the outputs and dvc.lock are those of the earlier run."""
    [earlier] = copy.finished.iterdir()
    params = lasting(LONG)
    save(copy, params)
    begin(params, copy)
    work = copy.work(stages.fingerprint(params, copy))
    with open_session(params, work, copy.prepared) as session:
        trainer.train(session)
    stages.discard_work(params, copy)
    assert work.exists() and [*copy.finished.iterdir()] == [earlier]
    train(params, copy)
    stages.discard_work(params, copy)
    assert not work.exists() and [each.name for each in copy.finished.iterdir()] == [work.name]


def test_without_a_horizon_of_its_own_the_schedule_is_said_to_change(copy: Workspace) -> None:
    [work] = copy.finished.iterdir()
    Kept(recipe=TrainingRecipe.of(lasting(SHORT, "train.horizon=null"), copy)).write(work)
    assert (begin(lasting(LONG, "train.horizon=null"), copy) or "").endswith("(train.horizon)")


def goes_on_with(params: Params, workspace: Workspace, allow_code_change: bool = True) -> KeptRun | None:
    return kept_runs.extendable(kept_runs.kept_runs(workspace, params), params, allow_code_change)


def test_other_settings_begin_anew_and_what_is_as_long_already_is_not_made_longer(copy: Workspace) -> None:
    for override in ("train.ppo.gamma=0.9", "rng_seed=7", "train.horizon=7"):
        assert goes_on_with(lasting(LONG, override), copy) is None
    assert goes_on_with(lasting(SHORT - 1), copy) is None
    shutil.rmtree(copy.finished)
    assert begin(lasting(LONG), copy) is None


@pytest.fixture
def unfinished(copy: Workspace) -> Workspace:
    """Of more iterations; nothing of it is published."""
    [work] = copy.finished.iterdir()
    longer = lasting(LONG)
    save(copy, longer)
    begin(longer, copy)
    shutil.rmtree(work)
    return copy


def changed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = seals.code_hashes

    def other(places: Sequence[str]) -> Mapping[str, str]:
        return {**hashes(places), "agent/ppo.py": "0" * 64}

    monkeypatch.setattr(seals, "code_hashes", other)


def test_other_code_is_named_and_goes_on_only_where_it_may(
    unfinished: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_code(monkeypatch)
    assert begin(lasting(LONG), unfinished) is None
    [line] = kept_runs.staying(unfinished, allow_code_change=False)
    assert "the code (agent/ppo.py) changed since; restore that or use --allow-code-change to go on with it" in line
    assert kept_runs.staying(unfinished, allow_code_change=True) == []
    said = begin(lasting(LONG), unfinished, allow_code_change=True)
    assert said is not None and said.endswith("changed: the code (agent/ppo.py)")
    assert [run.changed for run in kept_runs.unfinished(unfinished)] == [()]  # what it went on with is gone
    train(lasting(LONG), unfinished)
    found = pq.read_table(unfinished.telemetry / FINDINGS_FILE).to_pylist()
    assert [(row["iteration"], row["severity"]) for row in found if row["check"] == kept_runs.CODE_CHANGED] == [
        (SHORT, "medium")
    ]


def test_a_seam_is_a_finding_until_a_whole_checkpoint_is_behind_it(
    unfinished: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_code(monkeypatch)
    params = lasting(LONG)
    begin(params, unfinished, allow_code_change=True)
    work = unfinished.work(stages.fingerprint(params, unfinished))
    assert [seam.check for seam in run_layout.read_lineage(work)] == ["resumed_with_changes", kept_runs.CODE_CHANGED]
    for _ in range(2):  # the first life ends before it has a checkpoint
        with open_session(params, work, unfinished.prepared) as session:
            assert [finding.check for finding in session.findings] == [kept_runs.CODE_CHANGED]
    (work / CHECKPOINTS / f"{SHORT:06d}" / "manifest.json").write_text("{")
    with open_session(params, work, unfinished.prepared) as session:
        assert session.state.counters.iteration == SHORT - 1
        assert kept_runs.CODE_CHANGED in [finding.check for finding in session.findings]
    begin(params, unfinished, fresh=True)
    with open_session(params, work, unfinished.prepared, fresh=True) as session:
        assert session.findings == []
    assert Kept.read(work) is not None


@pytest.mark.parametrize("damage", ["cut", "of another run"])
def test_seams_that_are_lost_are_a_finding_once(unfinished: Workspace, damage: str) -> None:
    params = lasting(LONG)
    work = unfinished.work(stages.fingerprint(params, unfinished))
    kept, file = Kept.read(work), work / run_layout.RECIPE
    assert kept is not None and kept.seams
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        kept.model_copy(update={"recipe": kept.recipe.model_copy(update={"data_sha256": "other"})}).write(work)
    assert kept_runs.staying(unfinished, allow_code_change=False) == []  # training goes on with it all the same
    assert begin(params, unfinished) is None
    with open_session(params, work, unfinished.prepared) as session:
        assert [(each.check, each.severity) for each in session.findings] == [("seams_lost", "medium")]
    again = Kept.read(work)
    assert again is not None and begin(params, unfinished) is None and Kept.read(work) == again


def test_that_every_checkpoint_is_lost_is_said(unfinished: Workspace) -> None:
    params = lasting(LONG)
    work = unfinished.work(stages.fingerprint(params, unfinished))
    shutil.rmtree(work / CHECKPOINTS)
    shutil.rmtree(unfinished.finished, ignore_errors=True)
    assert begin(params, unfinished) == "no checkpoint is left of what was begun before, so training begins anew"
    assert begin(params, unfinished, fresh=True) is None


def test_stop_in_mid_copy_leaves_what_there_was(copy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SimicError("disk full")

    before = sorted(copy.finished.rglob("*"))
    monkeypatch.setattr(Kept, "write", full)
    with pytest.raises(SimicError, match="disk full"):
        begin(lasting(LONG), copy)
    assert sorted(copy.finished.rglob("*")) == before and list((copy.state / "work").iterdir()) == []


def test_the_engine_goes_on_before_it_trains_unless_it_is_to_begin_anew(
    copy: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[int] = []
    params = lasting(LONG)

    def begun(tree: Params, workspace: Workspace, *_: object, **__: object) -> None:
        work = workspace.work(stages.fingerprint(tree, workspace)) / CHECKPOINTS
        trained.append(len(list(work.glob("*"))))

    monkeypatch.setitem(stages.STAGES, "train", begun)
    monkeypatch.setattr(engine, "observers", lambda *_: (None, SimpleNamespace(publish=lambda: None)))
    engine._train(params, copy, engine.Execution(fresh=True))
    engine._train(params, copy, engine.Execution())
    assert trained[0] == 0 < trained[1]
    assert capsys.readouterr().out.startswith("train: goes on with run ")


def test_why_a_published_run_is_not_made_longer_is_said(copy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(iterations: int, *overrides: str, allow: bool = False) -> list[str]:
        save(copy, lasting(iterations, *overrides))
        return kept_runs.staying(copy, allow)

    assert said(LONG) == said(SHORT) == []  # it is; there is nothing to make longer
    with monkeypatch.context() as patch:
        changed_code(patch)
        [line] = said(LONG)
        assert f"has {SHORT} of {LONG} iterations" in line and "--allow-code-change" in line
        assert said(LONG, allow=True) == []
    shutil.rmtree(copy.finished)  # as where it was pulled
    [line] = said(LONG)
    assert "its log, which is kept only where it was trained" in line
    assert said(LONG, "train.ppo.gamma=0.9") == said(SHORT) == []  # another run
    begin(lasting(LONG), copy)
    shutil.copytree(copy.checkpoints / "latest", copy.work(stages.fingerprint(lasting(LONG), copy)) / CHECKPOINTS / "3")
    assert said(LONG) == []  # it is under way


# --- what training does not go on with ---


@pytest.fixture
def begun(suite_run: Workspace, tmp_path: Path) -> Workspace:
    """A workspace with the checkpoints of a run that was not finished."""
    found = Workspace(tmp_path / "project")
    shutil.copytree(suite_run.prepared, found.prepared)
    save(found, tree())
    work = found.work(stages.fingerprint(tree(), found))
    shutil.copytree(suite_run.checkpoints / "latest", work / CHECKPOINTS / "000003")
    Kept(recipe=TrainingRecipe.of(tree(), found)).write(work)
    return found


def stale(workspace: Workspace) -> list[KeptRun]:
    return [run for run in kept_runs.unfinished(workspace) if run.changed]


def test_changed_params_data_and_code_are_named_and_many_are_counted(
    begun: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    [own] = kept_runs.unfinished(begun)
    assert (own.iterations, own.changed) == (3, ()) and stale(begun) == []  # training goes on with it
    save(begun, tree("train.ppo.gamma=0.9", "train.envs=8"))
    [left] = stale(begun)
    assert left.changed == ("train.envs (4 → 8)", "train.ppo.gamma (1.0 → 0.9)")
    line = left.line()
    assert "3 iterations" in line and str(left.path) in line and line.endswith("simic clean")
    assert line in {answer.seen for answer in doctor.examine(begun)}
    save(begun, tree())
    with monkeypatch.context() as patch:
        files = {f"{name}.py": "0" for name in "abcde"}
        patch.setattr(seals, "code_hashes", lambda _: files)
        patch.setattr(kept_runs, "FORMAT_VERSION", 99)
        [left] = stale(begun)
        assert left.changed[0] == "the format of checkpoints" and left.changed[1].endswith(" more)")
    shutil.rmtree(begun.prepared)
    assert [left.changed for left in stale(begun)] == [("the prepared data",)]


@pytest.mark.parametrize("content", ["{", None])
def test_without_a_whole_recipe_nothing_is_known(content: str | None, begun: Workspace) -> None:
    [own] = kept_runs.unfinished(begun)
    (own.path / run_layout.RECIPE).unlink()
    if content is not None:
        (own.path / run_layout.RECIPE).write_text(content)
    assert stale(begun) == []  # its folder bears the name of what training goes on with
    own.path.rename(own.path.with_name("0" * 16))
    [left] = stale(begun)
    assert left.iterations == 3 and "nothing was saved" in left.changed[0]
    assert goes_on_with(tree("train.iterations=5"), begun) is None


def test_training_that_does_not_go_on_with_it_says_so_first(begun: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    save(begun, tree("train.envs=8"))
    monkeypatch.setattr(dvc_record, "is_stale", lambda *_: True)
    monkeypatch.setattr(dvc_record, "commit", lambda *_: None)
    monkeypatch.setattr(engine, "perform", lambda *_: None)
    said: list[str] = []
    engine.refresh("train", begun, engine.Execution(), said.append)
    assert said[:2] == [f"train: {stale(begun)[0].line()}", "train: running"]


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


def test_clean_removes_what_is_left_and_nothing_else(begun: Workspace, simic: Simic) -> None:
    [own] = kept_runs.unfinished(begun)
    for folder in (own.path.with_name("0" * 16), begun.finished / ("1" * 16)):
        shutil.copytree(own.path, folder)
    other = Kept.read(own.path)
    assert other is not None
    Kept(recipe=other.recipe.model_copy(update={"data_sha256": "0"})).write(own.path.with_name("0" * 16))
    code, out, _ = simic("clean", root=begun.root)
    assert code == 0 and f"removed unfinished run {run_name('0' * 16)}: 3 iterations" in out
    assert [each.path for each in kept_runs.unfinished(begun)] == [own.path]
    code, out, _ = simic("clean", "--all")
    assert code == 0 and f"removed finished run {run_name('1' * 16)}: 3 iterations" in out
    assert kept_runs.unfinished(begun) == [] == [*begun.finished.iterdir()]
    assert simic("clean")[1].strip() == "nothing to remove"
