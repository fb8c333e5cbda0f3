"""Columns are those of one table, and numbers are published as they were measured."""

import numpy as np
import pytest

from simic.telemetry.columns import STEPS, arranged, published
from tests.helpers import steps


def test_nan_has_one_bit_pattern():
    """Processors make NaN with either sign; equal tables need equal bytes."""
    for kind in (np.float32, np.float64):
        found = published(np.array([np.nan, -np.nan], dtype=kind))
        assert found[:1].tobytes() == found[1:].tobytes() == np.array([np.nan]).tobytes()


def test_values_are_published_as_they_are():
    assert published(np.array([0.1], dtype=np.float32)).tolist() == [float(np.float32(0.1))]
    assert published(np.array([0.1 + 0.2])).tolist() == [0.1 + 0.2]
    assert published(np.array([3], dtype=np.int16)).dtype == np.int64
    assert published(np.array([True])).dtype == bool


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns.pop("op"),
        lambda columns: columns.update(unheard=columns["op"]),
        lambda columns: columns.update(op=columns["op"].astype(np.int64)),
        lambda columns: columns.update(value=columns["flops"]),
        lambda columns: columns.update(alpha=columns["value"]),
    ],
)
def test_what_is_not_in_the_table_is_refused(change):
    columns = steps()
    change(columns)
    with pytest.raises(ValueError, match="telemetry: column"):
        arranged(columns, STEPS)
