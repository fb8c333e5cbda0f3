"""Prepared data: disjoint, stratified, standardised, and never half-written."""

from pathlib import Path

import numpy as np
import pytest
import torch

from simic.data import sources, tasks
from simic.data.batches import load_held_out, load_split, read_meta
from simic.data.prepare import prepare, split_indices, subsample
from simic.data.sources import Source, drop_duplicates, equal_rows, read_bundled
from simic.errors import SimicError
from simic.params import Split
from tests import standard
from tests.data.refusals import refused
from tests.helpers import contents
from tests.standard import Prepare


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "prepared"
    prepare(standard.Prepare(), 1, folder, folder.parent)
    return folder


def write_npz(folder: Path, name: str = "mine.npz", **arrays: np.ndarray) -> Prepare:
    np.savez(folder / name, **arrays)
    return standard.Prepare(task="npz", source=name)


def sample_arrays(
    shape: tuple[int, ...],
) -> dict[str, np.ndarray]:
    """Thirty samples of three classes."""
    x = np.sin(np.arange(30 * np.prod(shape)) * 1.37).reshape(30, *shape)
    return {"x": x, "y": np.arange(30) % 3}


def test_splits_of_digits_are_disjoint_and_complete_by_content(digits):
    splits = load_split(digits, "train"), load_split(digits, "val"), load_held_out(digits).test
    samples = [x.numpy().tobytes() for data in splits for x in data.x]
    assert len(set(samples)) == len(samples) == 1797


def test_a_data_set_alone_is_a_bank_of_one_task_with_its_samples_standardised_and_in_order(digits):
    """Byte for byte, as an oracle makes them: per class a shuffled cut, the places sorted, one mean and deviation."""
    source = read_bundled("digits")
    parts = split_indices(source, Split(), 1)
    raw = source.x[parts["train"]].numpy().astype(np.float64)
    mean = np.float32(raw.mean())
    std = np.float32(raw.std())
    train = load_split(digits, "train")
    val = load_split(digits, "val")
    held_out = load_held_out(digits)
    for split, data in (("train", train), ("val", val), ("test", held_out.test)):
        expected = (source.x[parts[split]].numpy() - mean) / std
        assert data.x.numpy().tobytes() == expected.astype(np.float32).tobytes()
        assert torch.equal(data.y, source.y[parts[split]])
        assert (data.tasks, data.lacking, data.task_classes) == (1, None, ())
    assert torch.equal(held_out.train.x, train.x) and torch.equal(held_out.val.x, val.x)
    meta = read_meta(digits)
    assert [(task.name, task.kind, task.classes) for task in meta.tasks] == [
        ("digits", "digits", 10)
    ]
    assert held_out.tasks == meta.tasks and meta.of_group("train") == meta.of_group("val") == [0]
    assert meta.licence.startswith("CC BY 4.0") and meta.samples == {
        "train": 1079,
        "val": 359,
        "test": 359,
    }


@pytest.mark.parametrize("pixels", [(), (2, 5)], ids=["features", "channels"])
def test_features_and_channels_are_standardised_one_by_one_and_a_constant_one_stays_finite(
    tmp_path, pixels
):
    arrays = sample_arrays((*pixels, 3))
    x = arrays["x"] * [1.0, 1000.0, 0.0] + [0.0, 5.0, 7.0]
    arrays["x"] = np.moveaxis(x, -1, 1)
    prepare(write_npz(tmp_path, **arrays), 1, tmp_path / "out", tmp_path)
    x = load_split(tmp_path / "out", "train").x
    columns = (x.movedim(1, -1) if pixels else x).flatten(0, -2)
    expected = torch.tensor([1.0, 1.0, 0.0])
    torch.testing.assert_close(columns.std(0, correction=0), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(columns.mean(0), torch.zeros(3), rtol=0, atol=1e-5)


def test_copies_of_a_sample_stay_and_lie_in_one_split(tmp_path):
    arrays = sample_arrays((4,))
    arrays = {name: np.concatenate([value, value[:9]]) for name, value in arrays.items()}
    prepare(write_npz(tmp_path, **arrays), 1, tmp_path / "out", tmp_path)
    meta = read_meta(tmp_path / "out")
    held_out = load_held_out(tmp_path / "out")
    assert meta.duplicates_dropped == 0 and sum(meta.samples.values()) == 39
    splits = (held_out.train, held_out.val, held_out.test)
    rows = [set(map(tuple, data.x.flatten(1).tolist())) for data in splits]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 30


def test_of_equal_samples_the_first_stays_and_the_order_is_kept():
    x = torch.tensor([[3.0], [0.0], [3.0], [2.0], [-0.0]])
    source, dropped = drop_duplicates(Source("s", "", "", x, torch.tensor([0, 1, 1, 0, 0])))
    assert dropped == 2
    assert source.x.flatten().tolist() == [3.0, 0.0, 2.0]
    assert source.y.tolist() == [0, 1, 0]


def test_rows_of_equal_sums_of_words_are_told_apart(monkeypatch):
    """The sums find candidates; rows that share one by chance stay different."""
    x = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [-0.0, 3.0], [0.0, 3.0]], dtype=np.float32)
    expected = [0, 1, 0, 3, 3]
    assert equal_rows(x).tolist() == expected
    monkeypatch.setattr(
        sources, "bits", lambda stream, shape: torch.zeros(shape, dtype=torch.int64)
    )
    assert equal_rows(x).tolist() == expected


def test_split_sizes_follow_the_fractions_per_class():
    y = torch.tensor([0] * 10 + [1] * 20)
    source = Source("s", "", "", torch.arange(30.0)[:, None], y)
    parts = split_indices(source, Split(train=0.5, val=0.3, test=0.2), 7)
    counts = {split: torch.bincount(y[places]).tolist() for split, places in parts.items()}
    assert counts == {"train": [5, 10], "val": [3, 6], "test": [2, 4]}
    assert torch.cat(list(parts.values())).sort().values.tolist() == list(range(30))


def test_a_subsample_keeps_the_shares_and_the_order_and_is_chosen_by_the_seed():
    y = torch.tensor([0, 1, 1, 2, 1, 2] * 50)  # 50, 150, 100
    source = Source("s", "", "", torch.arange(300.0)[:, None], y)
    sample = subsample(source, 100, 1)
    # 16⅔, 50, 33⅓: the largest remainder is that of class 0
    assert torch.bincount(sample.y).tolist() == [17, 50, 33]
    places = sample.x.flatten().long()
    assert (places.diff() > 0).all() and torch.equal(sample.y, y[places])
    assert torch.equal(sample.x, subsample(source, 100, 1).x)
    assert not torch.equal(sample.x, subsample(source, 100, 2).x)
    assert torch.equal(subsample(source, 300, 1).x, source.x)
    with pytest.raises(
        SimicError, match=r"prepare.samples = 301: must be at most 300, all that s has"
    ):
        subsample(source, 301, 1)


@pytest.mark.parametrize(
    ("shape", "prepared"), [((5,), (1, 1, 5)), ((4, 6), (1, 4, 6)), ((2, 4, 6), (2, 4, 6))], ids=str
)
def test_arrays_of_any_shape_become_images_and_bytes_are_prepared_like_the_same_numbers(
    tmp_path, shape, prepared
):
    x = (sample_arrays(shape)["x"] * 100 + 100).astype(np.uint8)
    for name, values in (("bytes", x), ("floats", x.astype(np.float32))):
        prepare(write_npz(tmp_path, x=values, y=np.arange(30) % 3), 1, tmp_path / name, tmp_path)
    for file in ("trainval.safetensors", "test.safetensors"):
        assert (tmp_path / "bytes" / file).read_bytes() == (tmp_path / "floats" / file).read_bytes()
    data = load_split(tmp_path / "bytes", "train")
    assert (data.shape, data.classes, len(data)) == (prepared, 3, 18)


BAD_ARRAYS = {
    "label gap": ({"y": np.array([0, 1, 3] * 10)}, "no sample has label 2"),
    "label too large": ({"y": np.array([0, 1, 10**6] * 10)}, "labels reach from 0 to 1000000"),
    "one class": ({"y": np.zeros(30, dtype=np.int64)}, "no sample has label 1"),
    "float labels": ({"y": np.linspace(0, 2, 30)}, "y is float64"),
    "too few labels": ({"y": np.arange(29) % 3}, "y is int64 [29]"),
    "beyond float32": ({"x": np.full((30, 4), 1e300)}, "sample 0 of x"),
    "text": ({"x": np.full((30, 4), "a")}, "x is <U1"),
    "empty": ({"x": np.zeros((0, 4)), "y": np.zeros(0, dtype=np.int64)}, "x is float64 [0, 4]"),
    "empty split": ({"y": np.array([0] * 28 + [1] * 2)}, "class 1 has 2 different samples"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_unusable_arrays_are_refused_in_one_line_naming_the_file(tmp_path, case):
    changes, message = BAD_ARRAYS[case]
    refusal = refused(write_npz(tmp_path, **sample_arrays((4,)) | changes), tmp_path)
    assert "mine.npz" in refusal and message in refusal


@pytest.mark.parametrize(
    ("task", "example"), [("npz", ""), ("text", r" \(any UTF-8 text; for example https://.*\)")]
)
def test_a_missing_file_says_where_to_put_it_and_where_there_is_one(tmp_path, task, example):
    with pytest.raises(
        SimicError, match=f"absent: no such file; put it there{example}, or set SIMIC_DATA_DIR"
    ):
        prepare(standard.Prepare(task=task, source="absent"), 1, tmp_path / "out", tmp_path)


def test_a_failed_run_leaves_the_earlier_one_as_it_was(tmp_path):
    params = write_npz(tmp_path, **sample_arrays((4,)))
    prepare(params, 1, tmp_path / "out", tmp_path)
    before = contents(tmp_path, ["out"])
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 broken")
    refused(params, tmp_path)
    assert contents(tmp_path, ["out"]) == before


def test_what_a_users_reader_returns_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("mine", "", "none", torch.ones(60, 4), torch.tensor([-1, 0, 1] * 20))
    monkeypatch.setitem(tasks.TASKS, "digits", lambda *_: source)
    assert refused(Prepare(), tmp_path).startswith("mine: labels reach from -1")
