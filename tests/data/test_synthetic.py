"""Planted tasks are what they say by construction; that the plant is found in the environment: tests/envs."""

import pytest
import torch

from simic.data.batches import load_split, read_meta
from simic.data.prepare import prepare
from simic.data.synthetic import PLANTED
from tests.data.refusals import refused
from tests.standard import Prepare


@pytest.mark.parametrize("name", PLANTED)
def test_samples_are_a_hash_of_seed_and_number_and_prepared_like_any_other_data(name, no_global_rng, tmp_path):
    with no_global_rng():
        x, y = PLANTED[name].generate(3, 50)
    more, other = (PLANTED[name].generate(seed, n) for seed, n in ((3, 80), (4, 50)))
    assert torch.equal(x, more[0][:50]) and torch.equal(y, more[1][:50])
    assert not torch.equal(x, other[0])
    prepare(Prepare(task="synthetic", source=name, samples=300), 1, tmp_path / "out", tmp_path)
    meta, train = read_meta(tmp_path / "out"), load_split(tmp_path / "out", "train")
    assert meta.source == f"planted: {name}"
    assert sum(meta.samples.values()) + meta.duplicates_dropped == 300 and meta.duplicates_dropped <= 5
    assert 177 <= meta.samples["train"] <= 180
    assert (train.classes, train.shape) == (PLANTED[name].classes, (1, 8, 8))
    said = refused(Prepare(task="synthetic", source="xor"), tmp_path)
    assert said == "prepare.source = 'xor': must be a planted task: orientation"
