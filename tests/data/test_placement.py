"""Samples and labels are loaded to one device, the one that was asked for."""

import pytest
import torch

from simic.data.batches import epoch_order, load_split, load_test
from simic.data.prepare import prepare
from simic.params import Prepare


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_inputs_and_targets_are_on_the_device_that_was_asked_for(tmp_path, device):
    prepare(Prepare(), 1, tmp_path / "prepared", tmp_path)
    loaded = [load_split(tmp_path / "prepared", split, device) for split in ("train", "val")]
    for data in (*loaded, load_test(tmp_path / "prepared", device)):
        assert data.x.device.type == data.y.device.type == "meta"


def test_every_host_gets_the_same_number_of_batches():
    """One tensor for all hosts: there is no host that a batch could be missing for."""
    order = epoch_order(1, 0, torch.tensor([3, 8, 2]), 1, samples=50, batch_size=8)
    assert order.shape == (3, 6, 8)
    assert order.min() >= 0 and order.max() < 50
