"""Text: every window predicts the next byte, the parts share no byte, other files are refused."""

from itertools import pairwise

import pytest
import torch

from simic.data.batches import Dataset, load_held_out, load_split, read_meta
from simic.data.prepare import prepare
from simic.params import Prepare, Split
from tests import standard
from tests.data.refusals import refused

TEXT = " ".join(f"{n} × {n} = {n * n}," for n in range(400)).encode()


def text(folder, content: bytes = TEXT, **changes) -> Prepare:
    (folder / "mine.txt").write_bytes(content)
    return standard.Prepare(task="text", source="mine.txt", **{"context": 16, **changes})


def windows_of(folder) -> dict[str, torch.Tensor]:
    """``[N, L + 1]`` bytes of each split."""
    return {
        name: torch.cat((data.x, data.y[:, -1:]), 1)
        for name, data in vars(load_held_out(folder)).items()
        if isinstance(data, Dataset)
    }


def test_targets_are_the_next_bytes_and_the_parts_are_the_text_in_its_order_and_share_no_byte(
    tmp_path,
):
    """Put together again by an oracle that walks the file: each part is one stretch, none overlaps the next."""
    prepare(text(tmp_path), 1, tmp_path / "out", tmp_path)
    data = load_split(tmp_path / "out", "train")
    meta = read_meta(tmp_path / "out")
    assert data.x.dtype == data.y.dtype == torch.int64
    assert data.shape == meta.shape == (16,) and data.y.shape == data.x.shape
    assert data.classes == meta.classes == 256
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])
    assert meta.tasks[0].mean == meta.tasks[0].std == [] and meta.source == "mine.txt"
    place = 0
    sizes = {}
    for name, windows in windows_of(tmp_path / "out").items():
        stretch = windows[0].tolist()
        for previous, following in pairwise(windows):
            assert previous[-1] == following[0], "windows share the byte between them"
            stretch += following[1:].tolist()
        assert bytes(stretch) == TEXT[place : place + len(stretch)]
        place += len(stretch)
        sizes[name] = len(windows)
    assert len(TEXT) - 16 < place <= len(TEXT)
    assert sizes["val"] == sizes["test"] == round(0.2 * sum(sizes.values()))


def test_some_samples_are_one_contiguous_piece_chosen_by_the_seed(tmp_path):
    starts = []
    for seed in (1, 1, 2, 3):
        params = text(tmp_path, samples=40, split=Split(train=0.5, val=0.25, test=0.25))
        prepare(params, seed, tmp_path / "out", tmp_path)
        train, val, test = windows_of(tmp_path / "out").values()
        assert (len(train), len(val), len(test)) == (20, 10, 10)
        first, last = (TEXT.index(bytes(piece.tolist())) for piece in (train[0], test[-1]))
        assert last + 17 - first == 40 * 16 + 3
        starts.append(first)
    assert starts[0] == starts[1] and len(set(starts)) == 3


def test_copies_are_dropped_across_parts(tmp_path):
    once = bytes(range(32, 127)) * 4
    prepare(text(tmp_path, once + TEXT[:200], context=19), 1, tmp_path / "out", tmp_path)
    windows = torch.cat(list(windows_of(tmp_path / "out").values()))[:, :-1]
    assert len(windows.unique(dim=0)) == len(windows)
    assert read_meta(tmp_path / "out").duplicates_dropped > 0


BAD = {
    "invalid UTF-8": (b"abc \xff" + TEXT, {}, "byte 4 is 0xff"),
    "too short": (TEXT[:40], {}, "of training, validation and test; give more text"),
    "too many samples": (TEXT, {"samples": 10**6}, "lower prepare.context or prepare.samples"),
    "a part of copies": (b"a" * 1000, {}, "distinct sequences, must have at least 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_text_is_refused_in_one_line_naming_the_file(tmp_path, case):
    content, changes, message = BAD[case]
    refusal = refused(text(tmp_path, content, **changes), tmp_path)
    assert "mine.txt" in refusal and message in refusal
