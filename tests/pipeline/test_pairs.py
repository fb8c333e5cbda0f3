"""Two commands at once in one workspace, at random moments: no output of an earlier run is lost or half-written, one of
them works at a time and the other is told so, and one more run leaves everything whole.

`make prove` has a hundred of them: `pytest -m prove tests/pipeline/test_pairs.py`. A pair is drawn from its number.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from simic import params
from simic.errors import EXIT_REFUSED
from simic.growth import load_grown
from simic.pipeline import dvc_record, mlflow_store, stages
from simic.pipeline.paths import Workspace
from simic.training import checkpoint
from simic.training.learned import Learned
from tests import helpers
from tests.flows.conftest import prefect_server  # noqa: F401
from tests.helpers import contents, made_once
from tests.pipeline import pairs
from tests.pipeline.pairs import CHANGES, OUTPUTS, Ended, Hold, Note, Pair, Watcher

NUMBERS = range(100)
CHOSEN = (  # the second in CI, all with -m slow
    Pair(-1, "run", "repro", "audit", 0.3),
    Pair(-2, "repro", "run", "audit", 0.4),
    Pair(-3, "audit", "grow", "audit", 0.0),
)
SOME = [pytest.param(pair, marks=[] if pair is CHOSEN[1] else [pytest.mark.slow]) for pair in CHOSEN]


@dataclass(frozen=True)
class Undisturbed:
    """What a run alone makes of an edit, and the seconds that it takes."""

    contents: dict[str, bytes]
    seconds: float


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, suite_run: Workspace, initialised: bytes) -> Path:
    """A project with a finished run that is recorded. MLflow knows nothing of it: its places are others in a copy."""

    def make(folder: Path) -> None:
        pairs.make_project(folder)
        for name in helpers.OUTPUTS:
            shutil.copytree(suite_run.root / name, folder / name)
        stages.audit(params.load(folder / "params.yaml"), Workspace(folder))  # by the params of this project
        (folder / "mlflow.db").write_bytes(initialised)
        dvc_record.adopt_scm(folder)
        for name in stages.STAGES:
            dvc_record.commit(folder, name)

    return made_once(tmp_path_factory, "finished-project", make)


@pytest.fixture(scope="session")
def undisturbed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    @cache
    def alone_with(change: str) -> Undisturbed:
        def make(folder: Path) -> None:
            folder.rmdir()
            workspace = pairs.copied(finished, folder)
            pairs.edit(workspace, CHANGES[change])
            folder.with_name(f"took-{change}").write_text(str(alone(workspace, "run").seconds))

        folder = made_once(tmp_path_factory, f"undisturbed-{change}", make)
        return Undisturbed(contents(folder), float(folder.with_name(f"took-{change}").read_text()))

    return alone_with


def alone(workspace: Workspace, name: str) -> Ended:
    """A command that must succeed."""
    ended = pairs.Command(workspace, name).end()
    assert ended.code == 0, ended.said
    return ended


def assert_one_at_a_time(notes: list[Note], holds: list[Hold]) -> None:
    """Outputs are changed by whoever holds the workspace, and by DVC alone beside that."""
    for one, other in pairwise(holds):
        assert one.end < other.start, (one, other)
    for note in notes:
        if note.program == "simic" and note.path.startswith(OUTPUTS):
            assert any(hold.pid == note.pid and hold.start <= note.at <= hold.end for hold in holds), note


def assert_nothing_was_away(watcher: Watcher, notes: list[Note]) -> None:
    """But while DVC, at the end of its stage, puts the very same file in its place again."""
    assert watcher.looks > 100
    relinked = {note.path for note in notes if note.program == "dvc" and note.kind == "os.remove"}
    assert [seen for seen in watcher.seen if seen.removesuffix(" is missing") not in relinked] == []


def assert_told(ended: Ended, other: Ended, holders: set[int]) -> None:
    """It did its work, or it was told who was at work; by DVC in words of its own."""
    if ended.code == 0:
        assert "Traceback" not in ended.said, ended.said
        return
    if ended.name == "grow":
        assert other.name == "grow" and ended.code == EXIT_REFUSED, ended.said
        return
    found = pairs.HELD.search(ended.said)
    if ended.name == "repro":
        assert found or pairs.DVC_BUSY.search(ended.said), ended.said
    else:
        assert found and ended.code == EXIT_REFUSED, ended.said
        assert ended.name == "flow" or "Traceback" not in ended.said, ended.said
    assert found is None or int(found[1]) in holders, (ended.said, holders)


def assert_readable(root: Path) -> None:
    """Outputs of one run or another, each whole."""
    for name in ("best", "latest"):
        checkpoint.read_published(root / "checkpoints", name)
    Learned.load(root / "models" / "policy")
    load_grown(root / "reports" / "grown")
    for name in ("headroom", "evaluation", "metrics", "findings"):
        json.loads((root / "reports" / f"{name}.json").read_bytes())


def assert_whole(workspace: Workspace, expected: dict[str, bytes]) -> None:
    """After one more run."""
    alone(workspace, "run")
    status = [pairs.PYTHON, "-m", "dvc", "status"]
    done = subprocess.run(status, cwd=workspace.root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Data and pipelines are up to date."
    found = contents(workspace.root)
    assert sorted(found) == sorted(expected)
    assert [name for name in found if found[name] != expected[name]] == []
    assert list((workspace.state / "work").glob("*")) == []


def assert_every_point_once(workspace: Workspace) -> None:
    client, experiment_id = mlflow_store.connect(workspace)
    for run in client.search_runs([experiment_id]):
        points = [point.step for point in client.get_metric_history(run.info.run_id, "iteration")]
        assert points == list(range(3)) and run.info.status == "FINISHED", run.info.run_name


def assert_law(
    pair: Pair, finished: Path, undisturbed: Callable[[str], Undisturbed], folder: Path, request: pytest.FixtureRequest
) -> None:
    more = {}
    if "flow" in (pair.first, pair.second):
        request.getfixturevalue("prefect_server")
        more["PREFECT_API_URL"] = str(PREFECT_API_URL.value())
    expected = undisturbed(pair.change)
    workspace = pairs.copied(finished, folder / "project")
    pairs.edit(workspace, CHANGES[pair.change])
    takes = undisturbed("everything").seconds if pair.first == "fresh" else expected.seconds
    with Watcher(workspace.root) as watcher:
        first, second = pairs.together(pair, workspace, folder / "notes", takes, **more)
    notes = pairs.read_notes(folder / "notes")
    holds = pairs.holds(notes)
    for mine, ended, other in (("first", first, second), ("second", second, first)):
        assert_told(ended, other, {hold.pid for hold in holds if hold.who != mine})
    assert 0 in (first.code, second.code), first.said + second.said
    assert_one_at_a_time(notes, holds)
    assert_nothing_was_away(watcher, notes)
    assert_readable(workspace.root)
    assert_whole(workspace, expected.contents)
    assert_every_point_once(workspace)
    shutil.rmtree(workspace.root)


@pytest.mark.parametrize("pair", SOME, ids=lambda pair: f"{pair.first}-{pair.second}")
def test_two_commands_at_once_lose_nothing(pair, finished, undisturbed, tmp_path, request) -> None:
    assert_law(pair, finished, undisturbed, tmp_path, request)


@pytest.mark.prove
@pytest.mark.parametrize("number", NUMBERS)
def test_any_two_commands_at_any_moment_lose_nothing(number, finished, undisturbed, tmp_path, request) -> None:
    assert_law(Pair.drawn(number), finished, undisturbed, tmp_path, request)
