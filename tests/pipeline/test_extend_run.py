"""Training made longer equals training that was as long from the start; other code goes on only where it is allowed."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from simic import seals
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import engine, extend_run, recipe, stages, stale_runs
from simic.pipeline.paths import Workspace
from simic.pipeline.recipe import TrainingRecipe
from simic.telemetry import starts
from simic.telemetry.publish import FINDINGS_FILE
from simic.training import run_layout
from simic.training.partial import FOLDER as PARTIAL
from simic.training.run_layout import CHECKPOINTS
from simic.training.session import open_session
from tests.helpers import contents
from tests.pipeline.small_suite import tree

SHORT, LONG = 3, 5


def lasting(iterations: int, *overrides: str) -> Params:
    return tree(f"train.iterations={iterations}", f"train.horizon={LONG}", "train.validate_every=1", *overrides)


def project(folder: Path, suite_run: Workspace, params: Params) -> Workspace:
    found = Workspace(folder)
    shutil.copytree(suite_run.prepared, found.prepared)
    save(found, params)
    return found


def save(workspace: Workspace, params: Params) -> None:
    workspace.params.write_text(yaml.safe_dump(params.model_dump(mode="json"), sort_keys=False))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory, suite_run: Workspace) -> Workspace:
    """Trained, published, recorded; read only."""
    found = project(tmp_path_factory.mktemp("short") / "project", suite_run, lasting(SHORT))
    begin(lasting(SHORT), found)
    stages.train(lasting(SHORT), found)
    stages.discard_work(lasting(SHORT), found)
    return found


@pytest.fixture
def copy(short: Workspace, tmp_path: Path) -> Workspace:
    return Workspace(shutil.copytree(short.root, tmp_path / "project"))


def begin(params: Params, workspace: Workspace, fresh: bool = False, allow_code_change: bool = False) -> str | None:
    return extend_run.begin(params, workspace, fresh, allow_code_change)


def test_training_made_longer_is_byte_for_byte_training_of_that_length(
    copy: Workspace, suite_run: Workspace, tmp_path: Path
) -> None:
    assert list((copy.state / "work").iterdir()) == [] and len(list(copy.finished.iterdir())) == 1
    said = begin(lasting(LONG), copy)
    assert said is not None and f"after {SHORT} iterations; changed: train.iterations ({SHORT} → {LONG})" in said
    stages.train(lasting(LONG), copy)
    at_once = project(tmp_path / "at once", suite_run, lasting(LONG))
    stages.train(lasting(LONG), at_once)
    published = ("checkpoints", "models", "telemetry")
    assert contents(copy.root, published) == contents(at_once.root, published)
    lives = starts.read(copy.telemetry / starts.RUN_FILE)
    assert [life.start_iteration for life in lives] == [0, SHORT]
    assert [seam.check for seam in lives[1].findings] == ["resumed_with_changes"]


def test_without_a_horizon_of_its_own_the_schedule_is_said_to_change(copy: Workspace) -> None:
    [work] = copy.finished.iterdir()
    kept = recipe.read(work)
    assert kept is not None
    open_ended = lasting(SHORT, "train.horizon=null")
    recipe.write(work, recipe.Kept(recipe=TrainingRecipe.of(open_ended, copy)))
    said = begin(lasting(LONG, "train.horizon=null"), copy)
    assert said is not None and said.endswith("(train.horizon)")


@pytest.mark.parametrize("overrides", [("train.ppo.gamma=0.9",), ("rng_seed=7",), ("train.horizon=7",)])
def test_other_settings_begin_anew(copy: Workspace, overrides: Sequence[str]) -> None:
    assert stale_runs.extendable(lasting(LONG, *overrides), copy, allow_code_change=True) is None


def test_what_is_as_long_already_is_not_made_longer(copy: Workspace) -> None:
    assert stale_runs.extendable(lasting(SHORT - 1), copy, allow_code_change=False) is None
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
    [line] = stale_runs.staying(unfinished, allow_code_change=False)
    assert "the code (agent/ppo.py) changed since; restore that or use --allow-code-change to go on with it" in line
    assert stale_runs.staying(unfinished, allow_code_change=True) == []
    said = begin(lasting(LONG), unfinished, allow_code_change=True)
    assert said is not None and said.endswith("changed: the code (agent/ppo.py)")
    assert [run.stale for run in stale_runs.unfinished(unfinished)] == [False]  # what it went on with is gone
    stages.train(lasting(LONG), unfinished)
    found = pq.read_table(unfinished.telemetry / FINDINGS_FILE).to_pylist()
    assert [(row["iteration"], row["severity"]) for row in found if row["check"] == extend_run.CODE_CHANGED] == [
        (SHORT, "medium")
    ]


@pytest.mark.parametrize("code", [False, True])
def test_steps_of_an_iteration_go_along_unless_other_code_played_them(
    copy: Workspace, monkeypatch: pytest.MonkeyPatch, code: bool
) -> None:
    [work] = copy.finished.iterdir()
    (work / PARTIAL / "000007").mkdir(parents=True)
    if code:
        changed_code(monkeypatch)
    begin(lasting(LONG), copy, allow_code_change=True)
    assert (copy.work(stages.fingerprint(lasting(LONG), copy)) / PARTIAL).exists() != code


def test_a_seam_is_a_finding_until_a_checkpoint_is_behind_it(
    unfinished: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_code(monkeypatch)
    params = lasting(LONG)
    begin(params, unfinished, allow_code_change=True)
    work = unfinished.work(stages.fingerprint(params, unfinished))
    assert [seam.check for seam in run_layout.read_lineage(work)] == ["resumed_with_changes", extend_run.CODE_CHANGED]
    for _ in range(2):  # the first life ends before it has a checkpoint
        with open_session(params, work, unfinished.prepared) as session:
            assert [finding.check for finding in session.findings] == [extend_run.CODE_CHANGED]
    begin(params, unfinished, fresh=True)
    with open_session(params, work, unfinished.prepared, fresh=True) as session:
        assert session.findings == []
    assert recipe.read(work) is not None


def test_a_seam_is_found_where_its_own_checkpoint_is_damaged(
    unfinished: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_code(monkeypatch)
    begin(lasting(LONG), unfinished, allow_code_change=True)
    work = unfinished.work(stages.fingerprint(lasting(LONG), unfinished))
    (work / CHECKPOINTS / f"{SHORT:06d}" / "manifest.json").write_text("{")
    with open_session(lasting(LONG), work, unfinished.prepared) as session:
        assert session.state.counters.iteration == SHORT - 1
        assert extend_run.CODE_CHANGED in [finding.check for finding in session.findings]


@pytest.mark.parametrize("damage", ["missing", "cut", "of another run"])
def test_seams_that_are_lost_are_a_finding_once(unfinished: Workspace, damage: str) -> None:
    params = lasting(LONG)
    work = unfinished.work(stages.fingerprint(params, unfinished))
    kept, file = recipe.read(work), work / run_layout.RECIPE
    assert kept is not None and kept.seams
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        recipe.write(work, kept.model_copy(update={"recipe": kept.recipe.model_copy(update={"data_sha256": "other"})}))
    assert begin(params, unfinished) is None
    with open_session(params, work, unfinished.prepared) as session:
        assert [(each.check, each.severity) for each in session.findings] == [("seams_lost", "medium")]
    again = recipe.read(work)
    assert again is not None and begin(params, unfinished) is None and recipe.read(work) == again


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
    monkeypatch.setattr(recipe, "write", full)
    with pytest.raises(SimicError, match="disk full"):
        begin(lasting(LONG), copy)
    assert sorted(copy.finished.rglob("*")) == before and list((copy.state / "work").iterdir()) == []


def test_the_engine_goes_on_before_it_trains_unless_it_is_to_begin_anew(
    copy: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[int] = []
    params = lasting(LONG)

    def train(tree: Params, workspace: Workspace, *_: object, **__: object) -> None:
        work = workspace.work(stages.fingerprint(tree, workspace)) / CHECKPOINTS
        trained.append(len(list(work.glob("*"))))

    monkeypatch.setitem(stages.STAGES, "train", train)
    monkeypatch.setattr(engine, "observers", lambda *_: (None, Publisher()))
    engine._train(params, copy, engine.Execution(fresh=True))
    engine._train(params, copy, engine.Execution())
    assert trained[0] == 0 < trained[1]
    assert capsys.readouterr().out.startswith("train: goes on with run ")


class Publisher:
    def publish(self) -> None:
        pass


def test_why_a_published_run_is_not_made_longer_is_said(copy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(iterations: int, *overrides: str, allow: bool = False) -> list[str]:
        save(copy, lasting(iterations, *overrides))
        return stale_runs.staying(copy, allow)

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
