"""Files damaged at random between two commands: what reads them next says so or is as it would have been without, and
what a message advises ends well. ``make prove`` does 1,155 damages; each can be done again by its kind and number.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from simic import seals
from simic.errors import SimicError
from simic.pipeline.paths import Workspace
from tests.durability import damage, judging
from tests.durability.judging import READERS, UNREAD, Finished

PLACES = {
    "published": ("checkpoints", "models", "telemetry", "reports"),
    "data": ("data/prepared",),
}
# The number of every damage of the work directory, of what is published, of the prepared data: of one kind.
EVERY = {"work": range(85), "published": range(40), "data": range(40)}
FEW = [pytest.param(area, range(1), id=area) for area in ("work", "published")]
ALL = [
    pytest.param(area, numbers, id=f"every {area}", marks=pytest.mark.prove)
    for area, numbers in EVERY.items()
]


def judged(
    area: str, kind: str, number: int, request: pytest.FixtureRequest, folder: Path
) -> Iterator[tuple]:
    """What was done and what becomes of it: of a finished run by each reader, of a copy of its own."""
    if area == "work":
        run, opener = request.getfixturevalue("unfinished"), request.getfixturevalue("opener")
        workspace = Workspace(Path(shutil.copytree(run.workspace.root, folder / "project")))
        words = damage.spoil(damage.Place(workspace.root, [run.place]), kind, number)
        yield words, judging.judge_opened(run, workspace, opener)
        return
    run = request.getfixturevalue("finished")
    project = copied(run.workspace.root, folder / "project")
    words = damage.spoil(damage.Place(project, PLACES[area]), kind, number)
    for name in READERS:
        yield (
            f"{words} {name}",
            judging.judge_reader(name, run, Workspace(copied(project, folder / name))),
        )


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(*UNREAD, ".simic")))


@pytest.mark.parametrize("kind", damage.KINDS)
@pytest.mark.parametrize(("area", "numbers"), [*FEW, *ALL])
def test_a_damage_is_found_or_harmless(
    area: str, numbers: range, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    words, bad = Counter[str](), list[str]()
    for number in numbers:
        folder = tmp_path / str(number)
        folder.mkdir()
        for case, judgement in judged(area, kind, number, request, folder):
            words[judgement.word] += 1
            bad += (
                []
                if judgement.word in ("found", "harmless")
                else [f"{case}\n{judgement.word}: {judgement.detail}"]
            )
        shutil.rmtree(folder)
    print(words)  # of readers; pytest -rP shows it
    assert bad == [], "\n\n".join(bad)


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("evaluate", "checkpoints/latest/manifest.json", "checkpoints: is not what train made"),
        ("evaluate", "reports/headroom.json", "headroom.json: is not what headroom made"),
        ("explain", "reports/evaluation.json", "evaluation.json: is not what evaluate made"),
        ("grow", "models/README.md", "models: is not what train made"),
        (
            "told",
            "reports/findings.json",
            "findings.json: not findings of this version of simic: its checksum",
        ),
    ],
)
def test_who_reads_what_another_stage_made_holds_it_against_its_seal(
    name: str, file: str, words: str, finished: Finished, tmp_path: Path
) -> None:
    workspace = Workspace(copied(finished.workspace.root, tmp_path / "project"))
    content = (workspace.root / file).read_text()
    (workspace.root / file).write_text(content.replace("1", "2", 1))
    judgement = judging.judge_reader(name, finished, workspace)
    assert judgement.word == "found" and words in judgement.detail, judgement


@pytest.mark.parametrize(
    ("sealed", "words"), [(True, "models: is not what train made"), (False, "no such file")]
)
def test_no_other_policy_takes_the_place_of_one_that_is_lost(
    sealed: bool, words: str, finished: Finished, tmp_path: Path
) -> None:
    workspace = Workspace(copied(finished.workspace.root, tmp_path / "project"))
    shutil.rmtree(workspace.models)
    if not sealed:
        seals.path_of(workspace.root, "train").unlink()
        workspace.models.mkdir()
    judgement = judging.judge_reader("grow", finished, workspace)
    assert judgement.word == "found" and words in judgement.detail, judgement


def test_what_no_report_can_be_made_of_is_told_as_damage_and_a_defect_is_not(
    finished: Finished, tmp_path: Path
) -> None:
    with pytest.raises(KeyError), seals.explain_damage(finished.workspace.root, finished.params):
        raise KeyError("a defect of ours")
    workspace = Workspace(copied(finished.workspace.root, tmp_path / "project"))
    (workspace.reports / "metrics.json").write_text("{}")
    refusal = r"metrics\.json has changed since, and no report can be made .* dvc checkout"
    with (
        pytest.raises(SimicError, match=refusal),
        seals.explain_damage(workspace.root, finished.params),
    ):
        raise KeyError("missing")
