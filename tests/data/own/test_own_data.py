"""A user's samples are split, encoded and standardised as a network outside would do it."""

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


def everything(own: OwnData) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    arrays = own.bank.arrays | own.bank.held_out_arrays
    return tuple(
        {split: arrays[f"{axis}_{split}"] for split in ("train", "val", "test")} for axis in "xy"
    )


def test_numbers_strings_booleans_and_missing_values_become_features_as_pandas_makes_them() -> None:
    own = prepared(mixed(), WINE.target)
    x, _ = everything(own)
    columns = {
        column.name: (column.levels, column.other, column.missing) for column in own.inputs.columns
    }
    numbers = {
        name: (None, False, name == "hue") for name in ("alcohol", "hue", "proline", "strong")
    }
    assert columns == numbers | {"shade": (("black", "deep", "pale", "red"), True, True)}
    raw = torch.from_numpy(own.raw["train"])
    features = InputEncoder(own.inputs).features(raw).numpy()
    assert features[:, 4:10].sum(1).tolist() == [1.0] * len(raw)
    oracle = (features - np.nanmean(features, 0)) / np.nanstd(features, 0)
    oracle = np.where(np.isnan(oracle), 0.0, oracle).clip(-5, 5)
    np.testing.assert_allclose(x["train"][:, 0, 0].numpy(), oracle, atol=1e-6)
    assert x["train"].shape[1:] == (1, 1, 11) and all(each.isfinite().all() for each in x.values())
    said = " ".join(own.notes)
    assert (
        "178 rows, 5 columns, 11 features" in said
        and "rare ones as one" in said
        and "value is missing" in said
    )
    assert "target: 3 classes, 1 (40 %), 0 (33 %), 2 (27 %)" in said


def test_a_level_that_is_new_is_any_other_and_a_column_that_is_absent_is_named() -> None:
    own = prepared(mixed(), WINE.target)
    frame = mixed().iloc[:3].assign(shade=["violet", None, "red"])
    found = codes(frame, own.inputs.columns)
    assert found[:, 3][0] == 4 and np.isnan(found[1, 3]) and found[2, 3] == 3
    with pytest.raises(SimicError, match="column 'hue': not in the data; there are alcohol"):
        codes(frame.drop(columns="hue"), own.inputs.columns)
    with pytest.raises(SimicError, match="column 'hue': 'dark' is no number"):
        codes(frame.assign(hue=["dark", "1", "2"]), own.inputs.columns)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([True, False, True], ("False", "True")),
        ([3.0, 7.0, 3.0], ("3", "7")),
        ([-1, 10, 2], ("-1", "2", "10")),
        (pd.Categorical(["x", "y", "x"], categories=["y", "x", "z"]), ("x", "y")),
    ],
)
def test_labels_of_any_kind_are_classes_that_keep_their_names(
    given: object, names: tuple[str, ...]
) -> None:
    series = pd.Series(given)
    places, found = labels(series, "y")
    assert found == names and sorted(set(places)) == list(range(len(names)))
    whole = series.astype(int) if isinstance(series.iloc[0], float) else series
    assert [found[k] for k in places] == [str(each) for each in whole]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([0.5, 1.0, 2.0], "0.5 is no class: simic classifies; cut a number into bands"),
        (["a", None, "b"], "1 rows have no value"),
        (["a", "a", "a"], r"1 class\(es\): must be 2 to"),
    ],
)
def test_labels_that_are_none_are_refused(given: list[object], words: str) -> None:
    with pytest.raises(SimicError, match=f"target 'y': {words}"):
        labels(pd.Series(given), "y")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pd.date_range("2024-01-01", periods=178), "holds dates"),
        ([f"2024-01-{1 + k % 28:02}" for k in range(178)], "holds dates .*year, month"),
        ([[1]] * 178, "holds list"),
        ([np.inf, *[1.0] * 177], "infinite in row 0"),
        ([1j] * 178, "complex"),
    ],
    ids=["dates", "strings of dates", "lists", "infinite", "complex"],
)
def test_columns_that_cannot_be_used_are_named(column: object, words: str) -> None:
    with pytest.raises(SimicError, match=f"column 'when': {words}"):
        prepared(WINE.data.assign(when=column), WINE.target)


def test_a_column_that_says_nothing_is_left_out_and_said() -> None:
    own = prepared(WINE.data.assign(one=7, name=[f"bottle {k}" for k in range(178)]), WINE.target)
    assert len(own.inputs.columns) == 13
    assert own.notes[-1].startswith("left out, since all training rows") and own.notes[-1].endswith(
        ": one, name"
    )


def test_equal_rows_stay_and_never_lie_on_both_sides() -> None:
    """A survey: few questions with few answers each."""
    x = (load_iris().data[:, :2]).round()
    own = prepared(np.repeat(x, 4, axis=0), np.repeat(load_iris().target, 4))
    found, _ = everything(own)
    rows = {
        split: {tuple(row) for row in each.flatten(1).tolist()} for split, each in found.items()
    }
    assert sum(len(each) for each in found.values()) == 600
    assert not (
        rows["train"] & rows["val"] or rows["train"] & rows["test"] or rows["val"] & rows["test"]
    )
    assert any("samples that equal an earlier one: " in note for note in own.notes)


def test_classes_keep_their_shares_and_every_sample_its_label() -> None:
    data = load_breast_cancer()
    own = prepared(data.data, data.target)
    _, y = everything(own)
    assert {split: len(each) for split, each in y.items()} == {
        "train": 343,
        "val": 113,
        "test": 113,
    }
    assert all(abs(float(each.float().mean()) - data.target.mean()) < 0.01 for each in y.values())
    of_row = {
        tuple(row): label
        for row, label in zip(data.data.tolist(), data.target.tolist(), strict=True)
    }
    for split, raw in own.raw.items():
        assert [of_row[tuple(row)] for row in raw.tolist()] == y[split].tolist()


def test_parts_that_were_given_are_kept_and_missing_ones_cut_from_training() -> None:
    x, y = load_digits(return_X_y=True)
    given = of_python(x, y)
    part = np.where(np.arange(1797) < 1500, 0, 2)
    object.__setattr__(given, "part", part)
    given.x[1500] = given.x[3]  # seen in training: it leaves there
    own = own_data(given, SHARES, 1)
    assert np.array_equal(own.raw["test"], given.x[1500:, given.x[part == 0].std(0) > 0])
    assert len(own.raw["train"]) + len(own.raw["val"]) == 1499 and 270 < len(own.raw["val"]) < 320
    assert any(
        "training samples that equal one of validation or test: 1" in note for note in own.notes
    )


def test_a_large_offset_costs_no_digits() -> None:
    """Seconds since 1970 in a column: float32 knows them to 128 seconds."""
    x = load_iris().data
    own, far = prepared(x, load_iris().target), prepared(x + 1.7e9, load_iris().target)
    for split, each in everything(own)[0].items():
        torch.testing.assert_close(everything(far)[0][split], each, atol=1e-5, rtol=0)


def test_the_axis_of_channels_is_told_by_its_length_or_asked_for_with_both_readings() -> None:
    shapes = {
        (9, 28, 28): "hw",
        (9, 28, 28, 3): "nhwc",
        (9, 3, 28, 28): "nchw",
        (9, 28, 28, 1): "nhwc",
    }
    assert {shape: layout_of(shape, "mine") for shape in shapes} == shapes
    for shape in ((9, 3, 28, 3), (9, 5, 28, 7), (9, 1, 8, 4)):
        _, high, wide, deep = shape
        with pytest.raises(
            SimicError,
            match=f"nchw: {high} channels of {wide} × {deep} pixels; --layout nhwc: {deep} ch",
        ):
            layout_of(shape, "mine")
        assert [layout_of(shape, "mine", each) for each in ("nchw", "nhwc")] == ["nchw", "nhwc"]


def test_images_are_standardised_by_channel_wherever_channels_are() -> None:
    x, y = load_digits(return_X_y=True)
    grey = x.reshape(-1, 8, 8)
    colour = np.stack([grey, grey * 3 + 1, grey[:, ::-1]], axis=-1)
    last, first = prepared(colour, y), prepared(colour.transpose(0, 3, 1, 2), y)
    for split, each in everything(last)[0].items():
        assert torch.equal(each, everything(first)[0][split]) and each.shape[1:] == (3, 8, 8)
    train = everything(last)[0]["train"]
    torch.testing.assert_close(train.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std((0, 2, 3)), torch.ones(3), atol=1e-4, rtol=0)


def test_few_rows_are_taken_with_a_warning() -> None:
    own = prepared(pd.DataFrame({"alone": range(12)}), [0, 1, 2] * 4)
    assert {split: len(x) for split, x in own.raw.items()} == {"train": 6, "val": 3, "test": 3}
    assert any(
        note.startswith("12 samples: a network can be grown, but so few") for note in own.notes
    )
