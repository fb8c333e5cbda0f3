"""A user's samples are split, encoded and standardised as a network outside would do it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from simic.data.own.own_data import OwnData, layout_of, own_data
from simic.data.own.readers import of_python
from simic.data.own.table_columns import codes, labels
from simic.data.raw_inputs import InputEncoder
from simic.errors import SimicError

SHARES = {"val": 0.2, "test": 0.2}
WINE = load_wine(as_frame=True)


def mixed(n: int = 178) -> pd.DataFrame:
    """Wine with strings, booleans and missing values."""
    frame = WINE.data[["alcohol", "hue", "proline"]].copy()
    frame["shade"] = pd.cut(
        WINE.data["color_intensity"], [0, 3, 5, 7, 20], labels=["pale", "red", "deep", "black"]
    )
    frame["shade"] = frame["shade"].astype(object)
    frame.loc[::9, "shade"] = np.nan
    frame.loc[5:6, "shade"] = "green"  # rare
    frame["strong"] = frame["alcohol"] > 13
    frame.loc[::7, "hue"] = np.nan
    return frame[:n]


def prepared(x: object, y: object, **options: object) -> OwnData:
    return own_data(of_python(x, y), SHARES, 1, **options)  # type: ignore[arg-type]


def splits_of(data: OwnData, axis: str = "x") -> dict[str, torch.Tensor]:
    arrays = data.bank.arrays | data.bank.held_out_arrays
    return {split: arrays[f"{axis}_{split}"] for split in ("train", "val", "test")}


def test_numbers_strings_booleans_and_missing_values_become_features_as_pandas_makes_them() -> None:
    data = prepared(mixed(), WINE.target)
    columns = {
        column.name: (column.levels, column.other, column.missing) for column in data.inputs.columns
    }
    numbers = {
        name: (None, False, name == "hue") for name in ("alcohol", "hue", "proline", "strong")
    }
    assert columns == numbers | {"shade": (("black", "deep", "pale", "red"), True, True)}
    # The features of the training split, standardised by numpy.
    raw = torch.from_numpy(data.raw["train"])
    features = InputEncoder(data.inputs).features(raw).numpy()
    assert (features[:, 4:10].sum(1) == 1.0).all()
    oracle = (features - np.nanmean(features, 0)) / np.nanstd(features, 0)
    oracle = np.nan_to_num(oracle).clip(-5, 5)
    x = splits_of(data)
    np.testing.assert_allclose(x["train"].numpy(), oracle[:, None, None], atol=1e-6)
    assert all(samples.isfinite().all() for samples in x.values())
    notes = " ".join(data.notes)
    for words in (
        "178 rows, 5 columns, 11 features",
        "rare ones as one",
        "value is missing",
        "target: 3 classes, 1 (40 %), 0 (33 %), 2 (27 %)",
    ):
        assert words in notes


def test_a_level_that_is_new_is_any_other_and_a_column_that_is_absent_is_named() -> None:
    columns = prepared(mixed(), WINE.target).inputs.columns
    frame = mixed().iloc[:3].assign(shade=["violet", None, "red"])
    np.testing.assert_equal(codes(frame, columns)[:, 3], [4, np.nan, 3])
    with pytest.raises(SimicError, match="column 'hue': not in the data; there are alcohol"):
        codes(frame.drop(columns="hue"), columns)
    with pytest.raises(SimicError, match="column 'hue': 'dark' is no number"):
        codes(frame.assign(hue=["dark", "1", "2"]), columns)


@pytest.mark.parametrize(
    ("values", "names", "places"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        ([3.0, 7.0, 3.0], ("3", "7"), [0, 1, 0]),
        ([-1, 10, 2], ("-1", "2", "10"), [0, 2, 1]),
        (pd.Categorical(["x", "y", "x"], categories=["y", "x", "z"]), ("x", "y"), [0, 1, 0]),
    ],
)
def test_labels_of_any_kind_are_classes_that_keep_their_names(
    values: object, names: tuple[str, ...], places: list[int]
) -> None:
    classes, class_names = labels(pd.Series(values), "y")
    assert (classes.tolist(), class_names) == (places, names)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.5, 1.0, 2.0], "0.5 is no class: simic classifies; cut a number into bands"),
        ([0.0, 1e300, 0.0], r"1e\+300 is no class"),  # as int64 it was -9223372036854775808
        ([0.0, np.inf, 0.0], "inf is no class"),
        (["a", None, "b"], "1 rows have no value"),
        (["a", "a", "a"], r"1 class\(es\): must be 2 to"),
    ],
)
def test_labels_that_are_none_are_refused(values: list[object], words: str) -> None:
    with pytest.raises(SimicError, match=f"target 'y': {words}"):
        labels(pd.Series(values), "y")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pd.date_range("2024-01-01", periods=178), "holds dates"),
        ([f"2024-01-{1 + k % 28:02}" for k in range(178)], "holds dates .*year, month"),
        ([[1]] * 178, "holds list"),
        ([np.inf, *[1.0] * 177], "infinite or beyond float64 in row 0"),
        ([1j] * 178, "complex"),
        ([10**400 + k for k in range(178)], "infinite or beyond float64 in row 0"),
    ],
    ids=["dates", "strings of dates", "lists", "infinite", "complex", "huge"],
)
def test_columns_that_cannot_be_used_are_named(column: object, words: str) -> None:
    with pytest.raises(SimicError, match=f"column 'when': {words}"):
        prepared(WINE.data.assign(when=column), WINE.target)


def test_equal_samples_are_too_few_to_split_and_that_is_said() -> None:
    # One of 178 equal rows is in training: validation would have none that training has not seen.
    with pytest.raises(SimicError, match="class class_0 has 1 different samples"):
        prepared(WINE.data * 0, pd.Series(WINE.target_names[WINE.target]))


def test_names_of_columns_may_be_of_any_kind() -> None:
    frame = WINE.data.set_axis([("wine", k) for k in range(13)], axis=1)
    assert prepared(frame, WINE.target).inputs.columns[1].name == "('wine', 1)"


def test_a_column_that_says_nothing_is_left_out_and_said() -> None:
    names = [f"bottle {k}" for k in range(178)]
    data = prepared(WINE.data.assign(one=7, name=names), WINE.target)
    assert len(data.inputs.columns) == 13
    assert data.notes[-2:] == (
        "left out, since all training rows are equal there: one",
        "left out, since no text there is in 3 training rows: name",
    )


def test_equal_rows_stay_and_never_lie_on_both_sides() -> None:
    """A survey: few questions with few answers each."""
    x = (load_iris().data[:, :2]).round()
    data = prepared(np.repeat(x, 4, axis=0), np.repeat(load_iris().target, 4))
    splits = splits_of(data).values()
    rows = [set(map(tuple, samples.flatten(1).tolist())) for samples in splits]
    assert sum(map(len, splits)) == 600
    assert sum(map(len, rows)) == len(set.union(*rows))
    assert any("samples that equal an earlier one: " in note for note in data.notes)


def test_classes_keep_their_shares_and_every_sample_its_label() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    data = prepared(x, y)
    label_of = {tuple(row): label for row, label in zip(x.tolist(), y.tolist(), strict=True)}
    sizes = {"train": 343, "val": 113, "test": 113}
    for split, labels_of_split in splits_of(data, "y").items():
        assert len(labels_of_split) == sizes[split]
        assert abs(float(labels_of_split.float().mean()) - y.mean()) < 0.01
        rows = map(tuple, data.raw[split].tolist())
        assert [label_of[row] for row in rows] == labels_of_split.tolist()


def test_parts_that_were_given_are_kept_and_missing_ones_cut_from_training() -> None:
    x, y = load_digits(return_X_y=True)
    x[1500] = x[3]  # a test sample in training: it leaves there
    part = np.where(np.arange(1797) < 1500, 0, 2)
    data = own_data(replace(of_python(x, y), part=part), SHARES, 1)
    assert np.array_equal(data.raw["test"], x[1500:, x[:1500].std(0) > 0])
    val = len(data.raw["val"])
    assert len(data.raw["train"]) + val == 1499 and 270 < val < 320
    assert "training samples that equal one of validation or test: 1" in " ".join(data.notes)


def test_a_large_offset_costs_no_digits() -> None:
    """Seconds since 1970 in a column: float32 knows them to 128 seconds."""
    x, y = load_iris(return_X_y=True)
    near, far = (splits_of(prepared(values, y)) for values in (x, x + 1.7e9))
    torch.testing.assert_close(far, near, atol=1e-5, rtol=0)


def test_the_axis_of_channels_is_told_by_its_length_or_asked_for_with_both_readings() -> None:
    shapes = {
        (9, 28, 28): "hw",
        (9, 28, 28, 3): "nhwc",
        (9, 3, 28, 28): "nchw",
        (9, 28, 28, 1): "nhwc",
    }
    assert {shape: layout_of(shape, "mine") for shape in shapes} == shapes
    for shape in ((9, 3, 28, 3), (9, 5, 28, 7), (9, 1, 8, 4)):
        _, a, b, c = shape
        message = f"nchw: {a} channels of {b} × {c} pixels; --layout nhwc: {c} ch"
        with pytest.raises(SimicError, match=message):
            layout_of(shape, "mine")
        for layout in ("nchw", "nhwc"):
            assert layout_of(shape, "mine", layout) == layout


def test_images_are_standardised_by_channel_wherever_channels_are() -> None:
    x, y = load_digits(return_X_y=True)
    grey = x.reshape(-1, 8, 8)
    colour = np.stack([grey, grey * 3 + 1, grey[:, ::-1]], axis=-1)
    channels_last, channels_first = (
        splits_of(prepared(images, y)) for images in (colour, colour.transpose(0, 3, 1, 2))
    )
    torch.testing.assert_close(channels_first, channels_last, rtol=0, atol=0)
    std, mean = torch.std_mean(channels_last["train"], (0, 2, 3))
    torch.testing.assert_close(mean, torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(std, torch.ones(3), atol=1e-4, rtol=0)


def test_few_rows_are_taken_with_a_warning() -> None:
    data = prepared(pd.DataFrame({"column": range(12)}), [0, 1, 2] * 4)
    assert {split: len(x) for split, x in data.raw.items()} == {"train": 6, "val": 3, "test": 3}
    assert "12 samples: a network can be grown, but so few" in " ".join(data.notes)


def shops(rows: int = 24_000, shops: int = 1500) -> tuple[pd.DataFrame, np.ndarray]:
    """Every second shop sells what is of class 1, nine times of ten; nothing else says anything."""
    draws = np.random.default_rng(5)
    shop = draws.integers(0, shops, rows)
    frame = pd.DataFrame({"shop": [f"shop {k}" for k in shop], "noise": draws.normal(size=rows)})
    return frame, (shop % 2) ^ (draws.random(rows) < 0.1)


def test_very_many_levels_are_rates_of_classes_that_say_nothing_of_a_rows_own_answer() -> None:
    frame, y = shops()
    frame.loc[::50, "shop"] = None
    data = prepared(frame, y)
    [column, _] = data.inputs.columns
    assert len(column.levels or ()) > 1400 and np.shape(column.rates) == (
        len(column.levels or ()) + 2,
        1,
    )
    assert "24000 rows, 2 columns, 2 features" in data.notes[0]
    assert any(
        "rates of the classes stand for them, of a training row" in note for note in data.notes
    )
    # Numbers come first, then rates: of classes 0 and 1 that of the latter.
    x = {split: samples[:, 0, 0, 1] for split, samples in splits_of(data).items()}
    answers = {split: labels == 1 for split, labels in splits_of(data, "y").items()}
    for split, rates in x.items():
        right = ((rates > 0) == answers[split]).double().mean()
        assert 0.8 < right < 0.93, split
    # Outside of training a network finds the same by the table alone.
    raw = torch.from_numpy(data.raw["test"])
    assert torch.equal(InputEncoder(data.inputs)(raw), splits_of(data)["test"])
    new = codes(pd.DataFrame({"shop": ["nowhere", None], "noise": 0.0}), data.inputs.columns)
    assert new[0, 0] == len(column.levels or ()) and np.isnan(new[1, 0])
    assert InputEncoder(data.inputs)(torch.from_numpy(new)).abs()[:, 0, 0, 1].max() < 1


def test_rates_know_no_answer_of_validation_or_test_and_of_training_not_a_rows_own() -> None:
    """The parts are given: another answer would fall into another split."""
    frame, y = shops(12000, 1100)

    def encoded(y: np.ndarray) -> tuple[OwnData, dict[str, torch.Tensor]]:
        part = np.repeat([0, 1, 2], [9000, 1500, 1500])
        data = own_data(replace(of_python(frame, y), part=part), SHARES, 1)
        return data, splits_of(data)

    data, before = encoded(y)
    assert np.size(data.inputs.columns[0].rates) > 1000
    elsewhere = y.copy()
    elsewhere[9000:] ^= 1
    other, after = encoded(elsewhere)
    assert other.inputs == data.inputs
    assert all(torch.equal(before[split], after[split]) for split in before)
    # Another answer of one training row changes rates of others, in the units of before, not its own.
    changed = y.copy()
    changed[17] ^= 1
    other, after = encoded(changed)

    def rates(data: OwnData, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, 0, 1].double() * data.inputs.std[1] + data.inputs.mean[1]

    difference = (rates(data, before["train"]) - rates(other, after["train"])).abs()
    assert difference[17] < 1e-6 < difference.max()


def test_levels_that_are_kept_have_a_feature_each_as_ever() -> None:
    frame, y = shops(6000, 900)
    data = prepared(frame, y)
    column = data.inputs.columns[0]
    assert column.rates == () and len(column.codes) == len(column.levels or ()) + column.other
    raw = torch.from_numpy(data.raw["train"])
    assert torch.equal(InputEncoder(data.inputs)(raw), splits_of(data)["train"])
