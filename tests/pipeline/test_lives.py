"""A life ends at the moment that was given, and leaves a trace of what it had begun."""

import json
from pathlib import Path

import pytest
import yaml

from simic.agent.optimizer import Adam
from simic.pipeline import lives, verify_resume
from simic.pipeline.lives import Moment
from simic.pipeline.paths import Workspace
from simic.training.observers import Observer
from tests.pipeline.killed_chain import copy, copy_to
from tests.pipeline.small_suite import tree

STEPS = 10  # of an iteration of the small suite
MOMENTS = (
    Moment("step", STEPS + 5),
    Moment("checkpoint", 2),
    Moment("record", 3, delay_seconds=0.001),
    Moment("publication", 1),
    Moment("publication", 6),
)


@pytest.fixture(scope="module")
def begun(suite_run: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with prepared data and nothing trained."""
    found = Workspace(tmp_path_factory.mktemp("lives") / "begun")
    copy_to(Workspace(suite_run.prepared), found.prepared)
    found.params.write_text(yaml.safe_dump(tree().model_dump(mode="json")))
    return found


@pytest.fixture(scope="module")
def twin(begun: Workspace) -> Workspace:
    found = copy(begun, "twin")
    life = lives.live(found.root, None, 0)
    assert life.exitcode == 0, life.said
    assert life.begun == [0, 1, 2] and life.counts["step"] == 3 * STEPS and life.seconds > 0
    assert min(life.counts[where] for where in ("checkpoint", "record", "publication")) > 5
    return found


@pytest.mark.slow  # test_verify_resume.py kills one in CI
def test_a_training_killed_in_every_way_comes_to_the_same_bytes(begun: Workspace, twin: Workspace) -> None:
    child, lived = copy(begun, "killed"), list[list[int]]()
    for number, moment in enumerate(MOMENTS):
        life = lives.live(child.root, moment, number)
        assert life.killed, (moment, life.said)
        lived.append(life.begun)
    last = lives.live(child.root, None, len(MOMENTS))
    assert last.exitcode == 0, last.said
    assert lived[:2] == [[0, 1], [1]]
    assert lived[-1] == last.begun == [], "what is trained is published again, not trained again"
    expected = verify_resume.contents(twin)
    parting = verify_resume.apart(expected, verify_resume.contents(child))
    assert (parting.differing_bytes, parting.differing) == (0, ())
    assert parting.files > 10 and parting.bytes > 10_000


def forgetful(workspace: Workspace, watching: Observer) -> None:
    """Training that begins with new moments of the optimiser after a resume."""
    Adam.load_tensors = lambda self, tensors: None  # type: ignore[method-assign]
    lives.train(workspace, watching)


@pytest.mark.slow
def test_what_a_resume_forgets_is_seen(begun: Workspace, twin: Workspace) -> None:
    child = copy(begun, "forgetful")
    assert lives.live(child.root, Moment("step", 2 * STEPS + 1), 0, forgetful).killed
    assert lives.live(child.root, None, 1, forgetful).exitcode == 0
    parting = verify_resume.apart(verify_resume.contents(twin), verify_resume.contents(child))
    assert parting.differing_bytes > 0
    assert any(name.startswith("checkpoints/latest/state.safetensors") for name in parting.differing)


def refusing(workspace: Workspace, _: Observer) -> None:
    raise ValueError("no such thing")


def test_a_life_that_fails_says_why(begun: Workspace) -> None:
    life = lives.live(copy(begun, "refusing").root, None, 0, refusing)
    assert life.exitcode == 1 and not life.killed
    assert life.said == "ValueError: no such thing"


def napping(workspace: Workspace, _: Observer) -> None:
    (workspace.root / "began").touch()
    __import__("time").sleep(60)


def test_any_time_is_counted_in_seconds(begun: Workspace) -> None:
    child = copy(begun, "napping")
    assert lives.live(child.root, Moment("any time", 0.5), 0, napping).killed


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (".simic/work/abc/checkpoints/.000001.x.tmp/manifest.json", "checkpoint"),
        (".simic/work/abc/telemetry/000001.safetensors", "record"),
        (".simic/work/abc/run.json", "record"),
        ("checkpoints/best", "publication"),
        (".models.x1.tmp/policy/weights.safetensors", "publication"),
        ("reports/seals/.train.json.12.tmp", "publication"),
        (".simic/workspace.lock", None),
        (".simic/finished/abc", None),
        ("params.yaml", None),
        (".", None),
    ],
)
def test_changes_are_told_apart_by_their_place(place: str, kind: str | None) -> None:
    assert lives.kind_of(place) == kind


def test_a_life_without_a_trace_had_begun_nothing(tmp_path: Path) -> None:
    life = lives.Life(-9, tmp_path / "none", tmp_path / "none")
    assert life.killed and life.begun == [] and life.counts == {}
    (tmp_path / "trace").write_text("".join(json.dumps({"begun": each}) + "\n" for each in (3, 4)))
    assert lives.Life(0, tmp_path / "trace", tmp_path / "none").begun == [3, 4]
