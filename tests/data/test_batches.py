"""Loading verifies; the test split stays shut; batch order is a pure function of what it is for."""

import shutil
from itertools import product

import numpy as np
import pytest
import torch

from simic import durable
from simic.data.batches import data_hash, epoch_order, load_held_out, load_split, read_meta
from simic.data.prepare import prepare
from simic.errors import SimicError
from tests.standard import Prepare


@pytest.fixture
def prepared(tmp_path):
    x = np.sin(np.arange(30 * 4) * 1.37).reshape(30, 4)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(30) % 3)
    prepare(Prepare(task="npz", source="mine.npz"), 1, tmp_path / "out", tmp_path)
    return tmp_path / "out"


def test_what_is_held_out_cannot_be_loaded_by_name(prepared):
    for split in ("test", "held_out", "held_out_kinds", "", "Train"):
        with pytest.raises(SimicError, match="opened by evaluation alone"):
            load_split(prepared, split)


def test_training_and_validation_load_without_the_test_file(prepared):
    (prepared / "test.safetensors").unlink()
    assert len(load_split(prepared, "train")) == 18
    assert len(load_split(prepared, "val")) == 6
    with pytest.raises(
        SimicError, match=r"test\.safetensors: no such file; run simic prepare first"
    ):
        load_held_out(prepared)


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_inputs_and_targets_are_on_the_device_that_was_asked_for(prepared, device):
    held_out = load_held_out(prepared, device)
    for data in (
        *(load_split(prepared, split, device) for split in ("train", "val")),
        held_out.test,
    ):
        assert data.x.device.type == data.y.device.type == "meta"


@pytest.mark.parametrize(
    "name", ["trainval.safetensors", "test.safetensors", "held_out.json", "meta.json"]
)
def test_every_damaged_or_truncated_file_is_named(prepared, name):
    path = prepared / name
    content = path.read_bytes()
    damaged = [content[:length] for length in (0, 1, len(content) // 2, -2)]
    for place in (0, len(content) // 2):
        flipped = bytearray(content)
        flipped[place] ^= 16
        damaged.append(bytes(flipped))
    for file in damaged:
        path.write_bytes(file)
        with pytest.raises(SimicError, match=rf"\A[^\n]*{name}[^\n]*\Z"):
            _ = load_split(prepared, "train"), load_held_out(prepared)


def test_another_schema_version_is_refused(prepared):
    path = prepared / "meta.json"
    path.write_bytes(
        durable.with_checksum(durable.checked(path.read_bytes()) | {"schema_version": 3})
    )
    with pytest.raises(SimicError, match="schema version 3, this one reads 5"):
        read_meta(prepared)


def test_the_data_hash_changes_with_the_data_and_not_with_the_place(prepared, tmp_path):
    first = data_hash(prepared)
    assert data_hash(shutil.copytree(prepared, tmp_path / "elsewhere")) == first
    prepare(Prepare(task="npz", source="mine.npz"), 2, tmp_path / "out", tmp_path)
    assert data_hash(prepared) != first


@pytest.mark.parametrize(("samples", "limit"), [(50, 2), (50, 3), (48, 1), (50, 6), (50, "all")])
def test_epochs_that_share_a_pass_show_every_sample_once_before_any_comes_again(samples, limit):
    """50 samples are 6 batches of 8: three epochs of 2, two of 3, one of 6; a rest that makes no epoch is left out."""
    parts = 6 // (6 if limit == "all" else limit)
    for number in range(3):
        epochs = range(number * parts, (number + 1) * parts)
        orders = [epoch_order(1, 0, torch.arange(4), epoch, samples, 8, limit) for epoch in epochs]
        order = torch.cat(orders, 1).flatten(1)
        # 48 of at most 50 samples, none of them twice: the permutation of that pass.
        assert all(row.unique().numel() == 48 for row in order)
        assert torch.equal(order, epoch_order(1, 0, torch.arange(4), number, samples, 8).flatten(1))


def test_the_last_pass_is_not_taken_for_another():
    """Passes are kept; in any order, of any hosts and sizes, they are what they were, host by host."""
    cases = list(product((1, 2), (0, 1), (0, 1), (40, 48)))

    def order(case: tuple, *hosts: int) -> torch.Tensor:
        seed, iteration, step, samples = case
        return epoch_order(seed, iteration, torch.tensor(hosts), step, samples, 8, 2)

    orders = {case: order(case, 0, 1, 2) for case in cases}
    assert len({str(values.tolist()) for values in orders.values()}) == len(cases)
    for case in (*reversed(cases), *cases[::2]):
        assert torch.equal(order(case, 0, 1, 2), orders[case]), case
        assert torch.equal(order(case, 2), orders[case][2:]), case


@pytest.mark.parametrize(("samples", "limit"), [(7, "all"), (40, 6)])
def test_more_batches_than_there_are_samples_for_is_refused(samples, limit):
    with pytest.raises(SimicError, match=f"the training split has {samples} samples"):
        epoch_order(1, 0, torch.arange(2), 1, samples, 8, limit)
