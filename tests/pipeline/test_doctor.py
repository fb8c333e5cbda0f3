"""`simic doctor`: a checkout that is fit or not; every stored piece that is damaged is named, with what the next start
then really does; asking changes nothing.
"""

import importlib.metadata
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from simic import durable, seals
from simic.errors import SimicError
from simic.pipeline import doctor
from simic.pipeline.doctor import Answer
from simic.pipeline.paths import Workspace
from simic.training.session import open_session
from tests.conftest import Simic
from tests.durability.damage import KINDS, Place, spoil
from tests.helpers import OUTPUTS, ROOT
from tests.training.small_runs import small_params


def answers(root: Path) -> dict[str, Answer]:
    return {answer.question: answer for answer in doctor.examine(Workspace(root))}


def test_a_good_checkout_is_well_and_a_missing_package_and_bad_params_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answers(ROOT)
    assert answer["packages"].well and answer["params.yaml"].well

    def version(name: str) -> str:
        if name == "dvc":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    (tmp_path / "params.yaml").write_text(
        (ROOT / "params.yaml").read_text().replace("  envs: ", "  envs: -")
    )
    answer = answers(tmp_path)
    assert not answer["packages"].well and "dvc is not installed" in answer["packages"].seen
    assert not answer["params.yaml"].well and "train.envs = -" in answer["params.yaml"].seen


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def state(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def bad(run: Path) -> dict[str, str]:
    """What is damaged, by its place; asked twice, without a change."""
    before = state(run)
    checked = doctor.examine_stored(run)
    assert checked == doctor.examine_stored(run) and state(run) == before
    return {
        answer.question.partition(", ")[2] or answer.question: answer.seen
        for answer in checked
        if not answer.well
    }


def goes_on_after(work: Path, prepared: Path) -> int:
    """As the next start really does."""
    with open_session(small_params(), work, prepared) as session:
        return session.state.counters.iteration


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    """A finished training of four iterations, validated after two and four, in a work directory."""
    return Path(shutil.copytree(finished, tmp_path / ".simic" / "work" / "0123456789abcdef"))


@pytest.mark.parametrize(
    ("file", "place", "words", "start"),
    [
        (
            "checkpoints/000004/state.safetensors",
            "checkpoint 4",
            "goes on after 3 iterations; nothing to do",
            3,
        ),
        (
            "telemetry/000003.safetensors",
            "checkpoint 4",
            "goes on after 3 iterations; nothing to do",
            3,
        ),
        (
            "checkpoints/000002/manifest.json",
            "checkpoint 2",
            "takes the best of the others",
            4,
        ),  # it was the best
    ],
)
def test_a_damage_costs_what_is_said(
    file: str, place: str, words: str, start: int, work: Path, prepared: Path
) -> None:
    assert [answer.seen for answer in doctor.examine_stored(work)] == [
        "training goes on after 4 iterations"
    ]
    flipped(work / file)
    damages = bad(work)
    assert [*damages] == [place] and words in damages[place]
    assert goes_on_after(work, prepared) == start


def test_without_a_good_checkpoint_the_next_start_refuses(work: Path, prepared: Path) -> None:
    checkpoints = list((work / "checkpoints").iterdir())
    for checkpoint in checkpoints:
        flipped(checkpoint / "state.safetensors")
    damages = bad(work)
    assert len(damages) == len(checkpoints)
    assert all(
        "the next start refuses" in words and "--fresh" in words for words in damages.values()
    )
    with pytest.raises(SimicError, match="start over with --fresh"):
        goes_on_after(work, prepared)


def test_a_damaged_identity_and_another_format_are_named(work: Path) -> None:
    (work / "identity.json").write_text("{}")
    assert "its checksum does not match" in bad(work)["identity.json"]
    manifest = work / "checkpoints" / "000004" / "manifest.json"
    manifest.write_bytes(
        durable.with_checksum(durable.checked(manifest.read_bytes()) | {"format_version": 99})
    )
    assert "format version 99" in bad(work)["checkpoints"]


PIECES = {
    "headroom": "seals/headroom.json",
    "train": "../telemetry/timing.jsonl",
    "evaluate": "evaluation.json",
}


@pytest.mark.parametrize("stage", PIECES)
def test_every_damaged_piece_of_a_project_is_named_with_its_remedy(
    stage: str, project: Workspace
) -> None:
    assert bad(project.root) == {}
    path = project.reports / PIECES[stage]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (place, words), *_ = bad(project.root).items()  # who read it says so too
    assert place == f"made by {stage}" and f"simic run does {stage} again" in words


def remove_outputs(root: Path, *places: str) -> None:
    for place in places:
        shutil.rmtree(root / place) if (root / place).is_dir() else (root / place).unlink()


def forge(root: Path) -> None:
    """Another hash in a seal, and a checksum that fits."""
    path = seals.path_of(root, "prepare")
    content = durable.checked(path.read_bytes())
    content["params"]["rng_seed"] += 1
    path.write_bytes(durable.with_checksum(content))


def record(root: Path, stage: str) -> None:
    """As dvc.lock has a stage whose seal is another."""
    outs = [{"path": f"reports/seals/{stage}.json", "md5": "0" * 32}]
    (root / "dvc.lock").write_text(
        yaml.safe_dump({"schema": "2.0", "stages": {stage: {"outs": outs}}})
    )


def cache(root: Path) -> None:
    folder = root / ".dvc" / "cache" / "files" / "md5" / "00"
    folder.mkdir(parents=True)
    (folder / f"{'0' * 30}.dir").write_text("[]")


KINDS_OF_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "all of a stage is gone": (
        lambda root: remove_outputs(root, "data/prepared", "reports/seals/prepare.json"),
        "made by prepare",
    ),
    "an output is gone": (lambda root: remove_outputs(root, "models"), "made by train"),
    "the report is edited": (
        lambda root: (root / "reports" / "report.md").write_text("all is well"),
        "made by audit",
    ),
    "a seal is forged": (forge, "made by audit"),
    "a seal is not the recorded one": (lambda root: record(root, "audit"), "made by audit"),
    "what is recorded is gone": (
        lambda root: (
            record(root, "audit"),
            remove_outputs(root, "reports/seals/audit.json", *seals.STAGES["audit"].writes),
        ),
        "made by audit",
    ),
    "the record is damaged": (lambda root: (root / "dvc.lock").write_text("x"), "dvc.lock"),
    "the store is filled": (
        lambda root: (root / "mlflow.db").write_bytes(bytes(9999)),
        "mlflow.db",
    ),
    "the store is empty": (lambda root: (root / "mlflow.db").touch(), "mlflow.db"),
    "the cache is damaged": (cache, "DVC's cache"),
}


@pytest.mark.parametrize("damage", KINDS_OF_DAMAGE)
def test_every_kind_of_damage_is_bad(damage: str, project: Workspace) -> None:
    do, place = KINDS_OF_DAMAGE[damage]
    do(project.root)
    assert place in bad(project.root)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_at_random_is_bad(kind: str, project: Workspace) -> None:
    words = spoil(Place(project.root, OUTPUTS), kind, 1)
    assert bad(project.root), words


def test_a_file_of_the_package_that_is_missing_or_another_is_bad(
    project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the seals where there is no git, by the commit where there is."""
    assert answers(project.root)["code"].well
    monkeypatch.setattr(seals, "PACKAGE", tmp_path)
    assert "edited, or files are missing" in answers(project.root)["code"].seen
    git = ["git", "-C", str(project.root), "-c", "user.name=x", "-c", "user.email=x@y"]
    (project.root / "simic").mkdir()
    (project.root / "simic" / "x.py").touch()
    for words in (["init", "-q"], ["add", "simic"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    assert answers(project.root)["code"].well
    (project.root / "simic" / "x.py").unlink()
    code = answers(project.root)["code"]
    assert not code.well and "missing: simic/x.py; git checkout" in code.seen


def test_work_in_a_project_is_looked_at_too(project: Workspace, work: Path) -> None:
    """A project is known by what it holds, not by the name of its folder."""
    inside = Workspace(work.with_name("mine"))
    shutil.copytree(project.root, inside.root)
    shutil.copytree(work, inside.work("0123456789abcdef"))
    flipped(inside.work("0123456789abcdef") / "checkpoints" / "000004" / "state.safetensors")
    flipped(inside.prepared / "trainval.safetensors")
    assert list(bad(inside.root)) == ["made by prepare", "checkpoint 4"]
    with pytest.raises(SimicError, match="neither a project nor a folder of"):
        doctor.examine_stored(work.parent)


def test_the_command_ends_with_2_where_something_is_damaged(work: Path, simic: Simic) -> None:
    for expected, words in ((0, "ok   work "), (2, "checkpoint 4: damaged: ")):
        code, out, _ = simic("doctor", work)
        assert code == expected and words in out
        flipped(work / "checkpoints" / "000004" / "state.safetensors")
