"""A record is the same from live columns and from published tables, and says what is missing."""

import numpy as np
import pyarrow as pa
import pytest

from simic.audit.record import RunRecord, Table
from simic.errors import SimicError

from .synthetic import ITERATIONS, params, recorded


def test_a_record_of_an_iteration_is_the_same_live_and_published(clean):
    everything = recorded()
    live = Table.from_rows([iteration.update for iteration in everything])
    assert set(live.columns) == set(clean.updates.columns)
    for name, values in live.columns.items():
        np.testing.assert_array_equal(values, clean.updates.column(name), err_msg=name)
    for number in (0, 7):
        steps = Table.of_steps(number, everything[number].steps)
        published = clean.steps.where(clean.steps.column("iteration") == number)
        assert set(steps.columns) == set(published.columns)
        for name, values in steps.columns.items():
            np.testing.assert_array_equal(values, published.column(name), err_msg=name)
            assert values.dtype == published.column(name).dtype, name


def test_episodes_are_told_apart_by_their_split(clean):
    assert clean.episodes.column("iteration").tolist() == list(range(ITERATIONS))
    assert clean.validations.column("iteration").tolist() == [7, 15, 23]
    for iteration in (7, 15):
        chosen = clean.episodes.where(clean.episodes.column("iteration") == iteration)
        np.testing.assert_array_equal(
            chosen.column("return")[0], recorded()[iteration].train["return"]
        )


@pytest.mark.parametrize("content", [None, b"", b"PAR1 not really"])
def test_a_missing_or_damaged_table_is_named(published, tmp_path, content):
    for file in published.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    target = tmp_path / "steps.parquet"
    target.unlink() if content is None else target.write_bytes(content)
    with pytest.raises(SimicError, match=r"steps\.parquet"):
        RunRecord.from_published(params(), tmp_path)


def test_rows_of_different_numbers_of_slots_are_refused():
    with pytest.raises(SimicError, match=r"alpha: rows have \[1, 4\]"):
        Table.from_arrow(pa.table({"alpha": [[1.0], [1.0, 2.0, 3.0, 4.0]]}))
