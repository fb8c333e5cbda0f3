"""Columns are those of one table, and numbers are published with the digits that tell them apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from simic.telemetry.columns import STEPS, arranged, published, shortened
from tests.helpers import steps


@given(arrays.arrays(np.float32, 20, elements=st.floats(width=32)))
def test_a_published_float32_is_what_formatting_nine_digits_gives(values):
    expected = np.array([float(f"{value:.9g}") for value in values.astype(np.float64).tolist()])
    assert published(values).tobytes() == expected.tobytes()


@pytest.mark.parametrize("power", range(-12, 12))
def test_shortened_is_exact_around_powers_of_ten_and_at_halves(power):
    edge = np.float32(10.0**power)
    near = [np.nextafter(edge, np.float32(side), dtype=np.float32) for side in (0, np.inf)]
    # m · 2^-15 with odd m is a half in the ninth digit between 1 and 10.
    halves = (2.0**power * np.arange(32769, 32969, 2)).astype(np.float32) / np.float32(2**15)
    values = np.array([edge, *near, *halves, 0.1 * edge, 5 * edge], dtype=np.float32)
    for sign in (1, -1):
        expected = [float(f"{value:.9g}") for value in (sign * values).astype(np.float64).tolist()]
        assert shortened(sign * values).tolist() == expected


@pytest.mark.parametrize("error", [1e-6, -1e-6])
def test_a_logarithm_that_is_a_little_off_changes_nothing(error, monkeypatch):
    """Around powers of ten it decides how many digits there are."""
    values = np.array([9.9999990e3, 1e4, 1.0000001e4, 0.099999994, 0.1, 0.10000001, 123.0], dtype=np.float32)
    expected = shortened(values).tolist()
    log10 = np.log10
    monkeypatch.setattr(np, "log10", lambda size, where, out: log10(size, where=where, out=out) + error)
    assert shortened(values).tolist() == expected == [float(f"{value:.9g}") for value in values.tolist()]


def test_shortening_tells_any_two_float32_apart():
    one = np.arange(1_000_000, dtype=np.uint32).view(np.float32) + np.float32(1)
    assert np.array_equal(shortened(one).astype(np.float32), one)


def test_nan_has_one_bit_pattern():
    """Processors make NaN with either sign; equal tables need equal bytes."""
    for kind in (np.float32, np.float64):
        found = published(np.array([np.nan, -np.nan], dtype=kind))
        assert found[:1].tobytes() == found[1:].tobytes() == np.array([np.nan]).tobytes()


def test_what_is_no_float32_is_published_as_it_is():
    assert published(np.array([0.1 + 0.2])).tolist() == [0.1 + 0.2]
    assert published(np.array([3], dtype=np.int16)).dtype == np.int64
    assert published(np.array([True])).dtype == bool


def test_columns_come_in_the_order_of_the_table_with_the_components_in_theirs():
    columns = steps()
    found = arranged(dict(reversed(columns.items())), STEPS)
    names = [name for name in found if not name.startswith("components")]
    assert names == [name for name in STEPS if name != "components"]
    assert list(found)[list(found).index("reward") + 1 :][:2] == ["components/death", "components/rent"]


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
