"""Loading verifies; the test split stays shut; batch order is a pure function of what it is for."""

import shutil

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

    def load_all():
        load_split(prepared, "train")
        load_held_out(prepared)

    load_all()
    end = len(content)
    truncated = [content[:length] for length in (0, 1, 7, 8, 20, end // 2, end - 2) if length < end]
    places = [at for at in (0, 9, end - 9) if 0 <= at < end]
    flipped = [content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :] for at in places]
    for damaged in truncated + flipped:
        path.write_bytes(damaged)
        with pytest.raises(SimicError) as error:
            load_all()
        assert name in str(error.value)
        assert "\n" not in str(error.value)


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
        steps = [
            epoch_order(1, 0, torch.arange(4), number * parts + part, samples, 8, limit)
            for part in range(parts)
        ]
        seen = torch.cat([step.flatten(1) for step in steps], 1)
        assert all(len(set(row.tolist())) == 48 for row in seen), (
            "48 of at most 50 samples, none of them twice"
        )
        whole = epoch_order(1, 0, torch.arange(4), number, samples, 8).flatten(
            1
        )  # the permutation of that pass
        assert torch.equal(seen, whole)


def test_the_last_pass_is_not_taken_for_another():
    """Passes are kept; asked again in any order, of any hosts and sizes, they are what they were, host by host."""
    asked = [
        (1, 0, 3, 0, 40),
        (1, 0, 3, 1, 40),
        (1, 0, 3, 0, 48),
        (1, 0, 2, 0, 40),
        (2, 0, 3, 0, 40),
        (1, 1, 3, 0, 40),
    ]
    first = {
        each: epoch_order(each[0], each[1], torch.arange(each[2]), each[3], each[4], 8, 2)
        for each in asked
    }
    assert len({str(order.tolist()) for order in first.values()}) == len(asked)
    for each in (*reversed(asked), *asked, *asked[::2]):
        again = epoch_order(each[0], each[1], torch.arange(each[2]), each[3], each[4], 8, 2)
        assert torch.equal(again, first[each]), each
    for seed, iteration, hosts, step, samples in asked:
        alone = [
            epoch_order(seed, iteration, torch.tensor([host]), step, samples, 8, 2)
            for host in range(hosts)
        ]
        assert torch.equal(torch.cat(alone), first[seed, iteration, hosts, step, samples])


@pytest.mark.parametrize(("samples", "limit"), [(7, "all"), (40, 6)])
def test_more_batches_than_there_are_samples_for_is_refused(samples, limit):
    with pytest.raises(SimicError, match=f"the training split has {samples} samples"):
        epoch_order(1, 0, torch.arange(2), 1, samples, 8, limit)
