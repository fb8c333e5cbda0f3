"""`simic doctor RUN`: every stored piece that is damaged is named, with what the next start then really does; asking
changes nothing.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from simic import cli, durable
from simic.errors import SimicError
from simic.pipeline import doctor, mlflow_debts
from simic.pipeline.answers import Answer
from simic.pipeline.mlflow_debts import Owed, Report
from simic.pipeline.paths import Workspace
from simic.telemetry.naming import run_name
from simic.training.session import open_session
from tests.pipeline.small_suite import tree
from tests.training.small_runs import small_params

NAME = run_name("0123456789abcdef")
Spoil = Callable[[Path], None]


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bad(run: Path) -> dict[str, str]:
    """What is damaged, by its place; asked twice, without a change."""
    before = state(run)
    answers = doctor.stored(run)
    assert answers == doctor.stored(run) and state(run) == before
    return {answer.question.partition(", ")[2] or answer.question: answer.seen for answer in answers if not answer.well}


def goes_on_after(work: Path, prepared: Path) -> int:
    """As the next start really does."""
    with open_session(small_params(), work, prepared) as session:
        return session.state.counters.iteration


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    """A finished training of four iterations, validated after two and four, in a work directory."""
    return Path(shutil.copytree(finished, tmp_path / ".simic" / "work" / "0123456789abcdef"))


@pytest.fixture
def project(suite_run: Workspace, tmp_path: Path) -> Workspace:
    """A published run that may be spoilt."""
    found = Workspace(Path(shutil.copytree(suite_run.root, tmp_path / "project")))
    found.params.write_text(yaml.safe_dump(tree().model_dump(mode="json"), sort_keys=False))
    return found


def test_a_sound_training_has_no_damage_and_it_says_where_it_goes_on(work: Path, prepared: Path) -> None:
    answers = {answer.question.partition(", ")[2]: answer.seen for answer in doctor.stored(work)}
    assert bad(work) == {}
    assert answers["checkpoint 4"].startswith("sound: training goes on from it")
    assert answers["telemetry"] == "sound: 4 files"
    assert goes_on_after(work, prepared) == 4


def test_a_damaged_newest_checkpoint_costs_what_is_said(work: Path, prepared: Path) -> None:
    flipped(work / "checkpoints" / "000004" / "state.safetensors")
    found = bad(work)
    assert list(found) == ["checkpoint 4"]
    assert "its sha256 is not the one in manifest.json" in found["checkpoint 4"]
    assert found["checkpoint 4"].endswith("goes on after 3 iterations and trains 1 again; nothing to do")
    assert goes_on_after(work, prepared) == 3


def test_a_checkpoint_under_another_number_is_named(work: Path, prepared: Path) -> None:
    shutil.rmtree(work / "checkpoints" / "000004")
    shutil.copytree(work / "checkpoints" / "000002", work / "checkpoints" / "000004")
    assert "holds the state after 2 iterations, not after 4" in bad(work)["checkpoint 4"]
    assert goes_on_after(work, prepared) == 3


def test_an_earlier_checkpoint_is_missed_by_nobody(work: Path, prepared: Path) -> None:
    earliest = min(path for path in (work / "checkpoints").iterdir())
    flipped(earliest / "manifest.json")
    best = json.loads((work / "checkpoints" / "000004" / "manifest.json").read_bytes())["best_iteration"]
    [(place, said)] = bad(work).items()
    assert place == f"checkpoint {int(earliest.name)}"
    expected = "takes the best of the others" if int(earliest.name) == best else "does not need it"
    assert expected in said
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
    found = bad(work)
    assert found["telemetry"] == "damaged: 000003.safetensors is changed; the next start makes it again; nothing to do"
    assert "goes on after 3 iterations" in found["checkpoint 4"]
    assert goes_on_after(work, prepared) == 3


def test_rows_that_no_checkpoint_is_from_before_are_lost(work: Path, prepared: Path) -> None:
    (work / "telemetry" / "000000.safetensors").unlink()
    found = bad(work)
    assert list(found) == ["telemetry"] and "000000.safetensors is missing; its rows are lost" in found["telemetry"]
    assert goes_on_after(work, prepared) == 4


@pytest.mark.parametrize(
    ("file", "said"),
    [("timing.jsonl", "leaves lost times out"), ("run.json", "puts it aside and begins a new one")],
)
def test_times_and_starts_are_read(file: str, said: str, work: Path, prepared: Path) -> None:
    (work / file).write_bytes((work / file).read_bytes()[:-9])
    assert said in bad(work)[file]
    assert goes_on_after(work, prepared) == 4


def test_a_damaged_recipe_is_named(work: Path) -> None:
    (work / "recipe.json").write_text("{}")
    assert "its checksum does not match" in bad(work)["recipe.json"]


def test_a_checkpoint_of_another_format_is_not_usable(work: Path) -> None:
    manifest = work / "checkpoints" / "000004" / "manifest.json"
    content = durable.checked(manifest.read_bytes()) | {"format_version": 99}
    manifest.write_bytes(durable.with_checksum(content))
    assert "format version 99" in bad(work)["checkpoints"]


def test_what_killed_processes_left_is_no_damage(work: Path) -> None:
    (work / "checkpoints" / ".000005.x.tmp").mkdir()
    (work / "lock").write_text("process 1 on here")
    (work / "checkpoints" / "damaged-000001").mkdir()
    said = {answer.question.partition(", ")[2]: answer for answer in doctor.stored(work)}
    assert all(said[name].well for name in ("leftovers", "lock", "damaged-000001"))


PIECES: dict[str, tuple[str, str]] = {
    "data/prepared": ("data/prepared/trainval.safetensors", "simic prepare makes it again"),
    "checkpoints/best": ("checkpoints/best/state.safetensors", "dvc checkout checkpoints"),
    "checkpoints/latest": ("checkpoints/latest/manifest.json", "dvc checkout checkpoints"),
    "telemetry/updates.parquet": ("telemetry/updates.parquet", "dvc checkout telemetry"),
    "telemetry/timing.jsonl": ("telemetry/timing.jsonl", "dvc checkout telemetry"),
    "telemetry/run.json": ("telemetry/run.json", "dvc checkout telemetry"),
    "seal of train": ("models/policy/weights.safetensors", "X6"),
    "seal of evaluate": ("reports/evaluation.json", "X6"),
    "seal of headroom": ("reports/seals/headroom.json", "X6"),
}


def test_a_sound_project_has_no_damage(project: Workspace) -> None:
    assert bad(project.root) == {}
    asked = {answer.question for answer in doctor.stored(project.root)}
    assert asked >= PIECES.keys() - {"seal of headroom"}


@pytest.mark.parametrize("place", PIECES)
def test_every_damaged_piece_of_a_project_is_named_with_its_remedy(place: str, project: Workspace) -> None:
    file, remedy = PIECES[place]
    path = project.root / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert remedy in bad(project.root)[place]


def test_a_lost_file_of_prepared_data_is_named(project: Workspace) -> None:
    (project.prepared / "test.safetensors").unlink()
    assert "test.safetensors is missing" in bad(project.root)["data/prepared"]


def test_what_mlflow_is_owed_is_told_and_a_damaged_debt_is_named(project: Workspace) -> None:
    mlflow_debts.write(project, "abc", Owed(report=Report(tags={}, sound=True, sha256="0")))
    said = {answer.question: answer for answer in doctor.stored(project.root)}
    assert said["owed to MLflow of run abc"] == Answer(
        "owed to MLflow of run abc", True, "sound: its audit; told at the next start, or when MLflow is back"
    )
    flipped(mlflow_debts.file_of(project, "abc"))
    assert "the next start puts it aside" in bad(project.root)["owed to MLflow of run abc"]
    mlflow_debts.read(mlflow_debts.file_of(project, "abc"))
    assert "put aside" in bad(project.root)["owed to MLflow of run abc"]


def test_work_in_a_project_is_looked_at_too(project: Workspace, work: Path) -> None:
    shutil.copytree(work, project.state / "work" / "0123456789abcdef")
    flipped(project.state / "work" / "0123456789abcdef" / "checkpoints" / "000004" / "state.safetensors")
    assert list(bad(project.root)) == ["checkpoint 4"]


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimicError, match="neither a project nor a folder of"):
        doctor.stored(tmp_path)


def test_the_command_says_it_line_by_line_and_ends_with_2_where_something_is_damaged(
    work: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def call() -> tuple[int | str | None, str]:
        monkeypatch.setattr(sys, "argv", ["simic", "doctor", str(work)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, capfd.readouterr().out

    code, said = call()
    assert code == 0 and f"ok   work {NAME}, checkpoint 4: sound: training goes on from it" in said
    flipped(work / "checkpoints" / "000004" / "state.safetensors")
    code, said = call()
    assert code == 2 and f"BAD  work {NAME}, checkpoint 4: damaged: " in said
