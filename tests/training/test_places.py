"""What stands in the place of a part of a work directory is put aside."""

from pathlib import Path

import pytest

from simic.training.run_layout import make_room


@pytest.mark.parametrize("name", ["checkpoints", "partial", "telemetry"])
def test_a_file_in_the_place_of_a_folder_is_put_aside(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    make_room(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"damaged-{name}"]


@pytest.mark.parametrize("name", ["recipe.json", "run.json", "timing.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_put_aside(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    make_room(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"damaged-{name}"]


def test_what_is_in_its_place_stays(tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    (tmp_path / "run.json").write_text("{}")
    make_room(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"partial", "run.json"}
