"""A record is the same from live rows and from published tables, and says what is missing."""

import numpy as np
import pytest

from simic.audit.record import RunRecord, Table
from simic.errors import SimicError
from simic.telemetry.publish import publish
from simic.telemetry.recorder import Recorder
from simic.telemetry.rows import TimingRow

from .synthetic import ENVS, ITERATIONS, SLOTS, STEPS, params, rows


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with Recorder(folder / "log.jsonl") as log, Recorder(folder / "timing.jsonl") as timing:
        for row in rows():
            (timing if isinstance(row, TimingRow) else log).append(row)
    publish(folder / "log.jsonl", folder / "timing.jsonl", folder / "telemetry")
    return folder / "telemetry"


def test_published_tables_equal_the_rows_they_were_made_of(published, clean):
    loaded = RunRecord.from_published(params(), published)
    for name in ("updates", "steps", "episodes", "validations", "timing"):
        ours, theirs = getattr(clean, name), getattr(loaded, name)
        assert set(ours.columns) == set(theirs.columns), name
        for column, values in ours.columns.items():
            np.testing.assert_array_equal(values, theirs.column(column), err_msg=f"{name}.{column}")


def test_shapes_are_rows_hosts_slots(clean):
    assert clean.steps.column("iteration").shape == (ITERATIONS * STEPS,)
    assert clean.steps.column("reward").shape == (ITERATIONS * STEPS, ENVS)
    assert clean.steps.column("contribution").shape == (ITERATIONS * STEPS, ENVS, SLOTS)
    assert clean.episodes.column("return").shape == (ITERATIONS, ENVS)
    assert len(clean.validations) == ITERATIONS // 8
    assert set(clean.steps.below("components")) == {"shaping", "terminal"}


def test_measured_counts_rows_with_any_number():
    table = Table({"x": np.array([[1.0, np.nan], [np.nan, np.nan], [0.0, 0.0]]), "n": np.array([1, 2, 3])})
    assert table.measured("x") == 2
    assert table.measured("n") == 3


def test_missing_names_the_need_and_the_counts(clean):
    assert clean.missing(("updates.approx_kl", "evaluation"), 5) is None
    assert clean.missing(("updates.approx_kl",), 99) == f"needs 99 measured rows of updates.approx_kl, has {ITERATIONS}"
    assert "updates.nonsense, has 0" in clean.missing(("updates.nonsense",), 1)
    assert clean.missing(("evaluation",), 1) is None
    assert RunRecord(params()).missing(("evaluation",), 1) == "needs evaluation, which this run does not have"


def test_an_empty_run_is_an_empty_record(tmp_path):
    with Recorder(tmp_path / "log.jsonl"), Recorder(tmp_path / "timing.jsonl"):
        pass
    publish(tmp_path / "log.jsonl", tmp_path / "timing.jsonl", tmp_path / "telemetry")
    loaded = RunRecord.from_published(params(), tmp_path / "telemetry")
    assert len(loaded.updates) == len(loaded.steps) == len(loaded.episodes) == 0


@pytest.mark.parametrize("content", [None, b"", b"PAR1 not really"])
def test_a_missing_or_damaged_table_is_named(published, tmp_path, content):
    for file in published.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    target = tmp_path / "steps.parquet"
    target.unlink() if content is None else target.write_bytes(content)
    with pytest.raises(SimicError, match=r"steps\.parquet"):
        RunRecord.from_published(params(), tmp_path)


def test_rows_of_different_numbers_of_hosts_are_refused():
    first, *_ = rows()
    shorter = first.model_copy(update={"reward": [1.0]})
    with pytest.raises(SimicError, match=r"reward: rows have \[1, 4\]"):
        Table.from_rows([first, shorter])
