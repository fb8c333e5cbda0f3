"""Files damaged at random between two commands: what reads them next says so or is as it would have been without, and
what a message advises ends well. ``make prove`` does 2,025 damages; each can be done again by its kind and number.
"""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from simic.pipeline.paths import Workspace
from tests.durability import damage, judging
from tests.durability.judging import READERS, UNREAD, Finished, Judgement, Opener, Unfinished

NO_TABLES = [kind for kind in damage.KINDS if not kind.startswith("rows")]
NO_LOG = [kind for kind in damage.KINDS if not kind.startswith("log files")]
# Of each kind so many: of the work directory, of what is published, of the prepared data.
KINDS = {"work": NO_TABLES, "published": NO_LOG, "data": [kind for kind in NO_TABLES if kind in NO_LOG]}
EACH = {"work": 85, "published": 40, "data": 40}
CASES = [(area, kind) for area, kinds in KINDS.items() for kind in kinds]
PUBLISHED = ("checkpoints", "models", "telemetry", "reports")
Judged = list[tuple[str, Judgement]]


def test_the_damages_of_make_prove_are_more_than_two_thousand() -> None:
    assert sum(EACH[area] for area, _ in CASES) == 2025


def spoilt_work(made: Unfinished, kind: str, number: int, folder: Path) -> tuple[Workspace, str]:
    workspace = Workspace(Path(shutil.copytree(made.workspace.root, folder / "project")))
    return workspace, str(damage.spoil(damage.Place(workspace.root, [made.place]), kind, number))


def opened(made: Unfinished, opener: Opener, kind: str, number: int, folder: Path) -> Judged:
    workspace, done = spoilt_work(made, kind, number, folder)
    return [(done, judging.judge_opened(made, workspace, opener))]


def read(made: Finished, places: tuple[str, ...], kind: str, number: int, folder: Path) -> Judged:
    """By each reader, of a copy of its own."""
    done = damage.spoil(damage.Place(copied(made.workspace.root, folder / "project"), places), kind, number)
    found = Judged()
    for name in READERS:
        workspace = Workspace(copied(folder / "project", folder / name))
        found.append((f"{done} {name}", judging.judge_reader(name, made, workspace)))
    return found


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(*UNREAD, ".simic")))


def assert_nothing_is_silent(found: Judged) -> None:
    print(Counter(each.word for _, each in found))  # of readers; pytest -rP shows it
    bad = [f"{done}\n{each.word}: {each.said}" for done, each in found if each.word not in ("found", "harmless")]
    assert bad == [], "\n\n".join(bad)


@pytest.mark.parametrize("kind", NO_TABLES)
def test_unfinished_training_with_one_damage_of_each_kind(
    kind: str, unfinished: Unfinished, opener: Opener, tmp_path: Path
) -> None:
    assert_nothing_is_silent(opened(unfinished, opener, kind, 0, tmp_path))


@pytest.mark.parametrize("kind", NO_LOG)
def test_a_finished_run_with_one_damage_of_each_kind(kind: str, finished: Finished, tmp_path: Path) -> None:
    assert_nothing_is_silent(read(finished, PUBLISHED, kind, 0, tmp_path))


@pytest.mark.prove
@pytest.mark.parametrize("kind", NO_TABLES)
def test_training_that_goes_on_to_its_end_with_damage(kind: str, unfinished: Unfinished, tmp_path: Path) -> None:
    workspace, done = spoilt_work(unfinished, kind, 1, tmp_path)
    assert_nothing_is_silent([(done, judging.judge_resume(unfinished, workspace))])


@pytest.mark.prove
@pytest.mark.parametrize(("area", "kind"), CASES)
def test_every_damage_is_found_or_harmless(
    area: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    found = Judged()
    for number in range(EACH[area]):
        folder = tmp_path / str(number)
        folder.mkdir()
        if area == "work":
            made, opener = request.getfixturevalue("unfinished"), request.getfixturevalue("opener")
            found += opened(made, opener, kind, number, folder)
        else:
            places = PUBLISHED if area == "published" else ("data/prepared",)
            found += read(request.getfixturevalue("parted"), places, kind, number, folder)
        shutil.rmtree(folder)
    assert_nothing_is_silent(found)
