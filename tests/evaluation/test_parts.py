"""Parts of a measurement that are kept until the whole is done."""

import numpy as np
import pytest

from simic.evaluation.parts import Parts
from simic.evaluation.schedules import Grid

TABLE = np.array([[0.1, np.nan], [1 / 3, -2.0]])


def again():
    raise AssertionError("what was kept is made again")


@pytest.fixture
def parts(tmp_path):
    return Parts(tmp_path / "stage" / "recipe")


def test_a_part_is_made_once_and_has_the_very_numbers(parts):
    grids = {length: Grid(TABLE, TABLE, TABLE, TABLE + length) for length in (12, 6)}
    parts.of("grids", dict[int, Grid], lambda: grids)
    kept = parts.of("grids", dict[int, Grid], again)
    assert list(kept) == [12, 6]
    for length, grid in kept.items():
        for name, table in vars(grids[length]).items():
            np.testing.assert_array_equal(getattr(grid, name), table)


def test_a_damaged_part_is_made_again_and_others_stay(parts, tmp_path):
    parts.of("a", int, lambda: 1)
    parts.of("b", int, lambda: 2)
    file = tmp_path / "stage" / "recipe" / "a.json"
    file.write_bytes(file.read_bytes().replace(b"1", b"7", 1))
    assert parts.of("a", int, lambda: 3) == 3 and parts.of("b", int, again) == 2


def test_parts_go_when_the_whole_is_done_and_without_a_folder_nothing_is_kept(parts, tmp_path):
    parts.of("a", int, lambda: 1)
    Parts(tmp_path / "stage" / "other recipe").of("a", int, lambda: 1)
    parts.drop()
    assert not (tmp_path / "stage").exists()
    nothing = Parts()
    assert nothing.of("a", int, lambda: 1) == 1 and nothing.of("a", int, lambda: 2) == 2
    nothing.drop()
