"""`simic doctor`: a checkout that is fit or not; every stored piece that is damaged is named, with what the next start
then really does; asking changes nothing.
"""

import importlib.metadata
import json
import shutil
from pathlib import Path

import pytest
import yaml

from simic import durable
from simic.errors import SimicError
from simic.pipeline import doctor, mlflow_observer
from simic.pipeline.doctor import Answer
from simic.pipeline.mlflow_observer import Report
from simic.pipeline.paths import Workspace
from simic.training.session import open_session
from tests.conftest import Simic
from tests.helpers import ROOT
from tests.training.small_runs import small_params


def answers(root: Path) -> dict[str, Answer]:
    return {answer.question: answer for answer in doctor.examine(Workspace(root))}


def test_a_good_checkout_has_sound_packages_and_params_and_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = answers(ROOT)
    assert found["packages"].well and found["params.yaml"].well

    def version(name: str) -> str:
        if name == "dvc":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = answers(ROOT)
    assert not found["packages"].well and "dvc is not installed" in found["packages"].seen


def test_bad_params_are_named(tmp_path: Path) -> None:
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    values["train"]["envs"] = 0
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    found = answers(tmp_path)
    assert not found["params.yaml"].well and "train.envs = 0" in found["params.yaml"].seen


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bad(run: Path) -> dict[str, str]:
    """What is damaged, by its place; asked twice, without a change."""
    before = state(run)
    found = doctor.examine_stored(run)
    assert found == doctor.examine_stored(run) and state(run) == before
    return {answer.question.partition(", ")[2] or answer.question: answer.seen for answer in found if not answer.well}


def goes_on_after(work: Path, prepared: Path) -> int:
    """As the next start really does."""
    with open_session(small_params(), work, prepared) as session:
        return session.state.counters.iteration


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    """A finished training of four iterations, validated after two and four, in a work directory."""
    return Path(shutil.copytree(finished, tmp_path / ".simic" / "work" / "0123456789abcdef"))


def test_a_damaged_newest_checkpoint_costs_what_is_said(work: Path, prepared: Path) -> None:
    assert bad(work) == {}
    assert [answer.seen for answer in doctor.examine_stored(work)] == ["training goes on after 4 iterations"]
    flipped(work / "checkpoints" / "000004" / "state.safetensors")
    [(place, said)] = bad(work).items()
    assert place == "checkpoint 4" and "its sha256 is not the one in manifest.json" in said
    assert said.endswith("goes on after 3 iterations; nothing to do")
    assert goes_on_after(work, prepared) == 3


def test_a_lost_best_checkpoint_is_said(work: Path, prepared: Path) -> None:
    manifest = work / "checkpoints" / "000004" / "manifest.json"
    best = json.loads(manifest.read_bytes())["best_iteration"]
    assert best != 4  # else there is another reason to go on after 4
    flipped(work / "checkpoints" / f"{best:06d}" / "manifest.json")
    assert "takes the best of the others" in bad(work)[f"checkpoint {best}"]
    assert goes_on_after(work, prepared) == 4


def test_without_a_good_checkpoint_the_next_start_refuses(work: Path, prepared: Path) -> None:
    for checkpoint in (work / "checkpoints").iterdir():
        flipped(checkpoint / "state.safetensors")
    found = bad(work)
    assert len(found) == len(list((work / "checkpoints").iterdir()))
    assert all("the next start refuses" in said and "--fresh" in said for said in found.values())
    with pytest.raises(SimicError, match="start over with --fresh"):
        goes_on_after(work, prepared)


def test_a_damaged_file_of_the_log_takes_the_checkpoints_behind_it(work: Path, prepared: Path) -> None:
    flipped(work / "telemetry" / "000003.safetensors")
    assert "goes on after 3 iterations" in bad(work)["checkpoint 4"]
    assert goes_on_after(work, prepared) == 3


def test_a_damaged_recipe_and_another_format_are_named(work: Path) -> None:
    (work / "recipe.json").write_text("{}")
    assert "its checksum does not match" in bad(work)["recipe.json"]
    manifest = work / "checkpoints" / "000004" / "manifest.json"
    manifest.write_bytes(durable.with_checksum(durable.checked(manifest.read_bytes()) | {"format_version": 99}))
    assert "format version 99" in bad(work)["checkpoints"]


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("reports/seals/headroom.json", "headroom"),
        ("telemetry/timing.jsonl", "train"),
        ("reports/evaluation.json", "evaluate"),
    ],
)
def test_every_damaged_piece_of_a_project_is_named_with_its_remedy(file: str, stage: str, project: Workspace) -> None:
    assert bad(project.root) == {}
    path = project.root / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    [(place, said)] = bad(project.root).items()
    assert place == f"made by {stage}" and f"simic run does {stage} again" in said


def test_work_in_a_project_and_what_mlflow_lacks_are_looked_at_too(project: Workspace, work: Path) -> None:
    shutil.copytree(work, project.state / "work" / "0123456789abcdef")
    flipped(project.state / "work" / "0123456789abcdef" / "checkpoints" / "000004" / "state.safetensors")
    assert list(bad(project.root)) == ["checkpoint 4"]
    mlflow_observer.note(project, "abc", report=Report(tags={}, sound=True, sha256="0"))
    assert "MLflow, run abc" in {answer.question for answer in doctor.examine_stored(project.root)}


def test_a_project_is_known_by_what_it_holds_not_by_the_name_of_its_folder(project: Workspace, tmp_path: Path) -> None:
    inside = tmp_path / "work" / "mine"
    shutil.copytree(project.root, inside)
    flipped(inside / "data" / "prepared" / "trainval.safetensors")
    assert list(bad(inside)) == ["made by prepare"]


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimicError, match="neither a project nor a folder of"):
        doctor.examine_stored(tmp_path)


def test_the_command_ends_with_2_where_something_is_damaged(work: Path, simic: Simic) -> None:
    for expected, words in ((0, "ok   work "), (2, "checkpoint 4: damaged: ")):
        code, out, _ = simic("doctor", work)
        assert code == expected and words in out
        flipped(work / "checkpoints" / "000004" / "state.safetensors")
