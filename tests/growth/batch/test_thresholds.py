"""Tables of thresholds: what is read, what is refused."""

import pytest
import torch

from simic.errors import SimicError
from simic.growth.batch import thresholds

CPU = torch.device("cpu")


def test_without_a_table_the_shipped_ways_hold():
    assert thresholds.of("auto", CPU) == thresholds.of("vmap", CPU) == thresholds.SHIPPED["cpu"]
    assert thresholds.content("auto") is None


def test_a_table_decides_and_its_bytes_count(tmp_path):
    path = tmp_path / "own.json"
    own = thresholds.Thresholds(apart=None, dense_entries=7)
    path.write_text(thresholds.ThresholdTable(thresholds={"cpu": own}).model_dump_json())
    assert thresholds.of(str(path), CPU) == own
    assert thresholds.of(str(path), CPU).apart_from == float("inf")
    before = thresholds.content(str(path))
    path.write_text(path.read_text() + "\n")
    assert thresholds.content(str(path)) != before


def test_a_table_of_another_device_is_refused(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(thresholds.ThresholdTable(thresholds={"cuda": thresholds.SHIPPED["cuda"]}).model_dump_json())
    with pytest.raises(SimicError, match=r"own.json: has no thresholds for 'cpu', only for \['cuda'\]"):
        thresholds.of(str(path), CPU)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file: Invalid JSON"),
        ('{"thresholds": {"cpu": {"apart": -1, "dense_entries": 1}}}', "thresholds.cpu.apart: Input should be greater"),
        ('{"thresholds": {"cpu": {"apart": 1}}}', "thresholds.cpu.dense_entries: Field required"),
        ('{"thresholds": {}, "speed": 1}', "speed: Extra inputs"),
        ('{"format": 2, "thresholds": {}}', "format: Input should be 3"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, text, words):
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(SimicError, match=words):
        thresholds.content(str(path))


def test_a_missing_table_says_who_writes_one(tmp_path):
    with pytest.raises(SimicError, match=r"no such file; runtime\.backend names it; simic autotune writes one"):
        thresholds.of(str(tmp_path / "none.json"), CPU)
