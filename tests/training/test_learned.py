"""A trained policy taken out of its run decides as it did inside."""

import json

import pytest
import torch
from safetensors.torch import load, save
from small_runs import small_params

from simic import durable
from simic.errors import SimicError
from simic.training.checkpoint import read
from simic.training.learned import Learned
from simic.training.session import open_session


@pytest.fixture
def learned(finished) -> Learned:
    return Learned.of(read(finished / "checkpoints" / "000004"))


def test_it_decides_as_the_policy_in_the_run(learned, copied, prepared, tmp_path):
    learned.save(tmp_path / "policy")
    loaded = Learned.load(tmp_path / "policy")
    with open_session(small_params(), copied, prepared) as session:
        observation, _ = session.env.reset(options={"iteration": 77})
        noise = torch.linspace(0, 0.99, 4 * 8).reshape(4, 8)
        policies = (
            (session.policy, session.state.normalizers),
            (learned.policy, learned.normalizers),
            (loaded.policy, loaded.normalizers),
        )
        steps = [
            policy.act(scales.see(observation), policy.initial_state(4), noise)
            for policy, scales in policies
        ]
    for step in steps[1:]:
        assert torch.equal(step.actions, steps[0].actions)
        assert torch.equal(step.log_probs, steps[0].log_probs)
        assert torch.equal(step.value, steps[0].value)
    assert steps[0].actions.unique().numel() > 1
    assert learned.iteration == loaded.iteration == 4
    assert loaded.train == small_params().train


@pytest.mark.parametrize("file", ["weights.safetensors", "policy.json"])
def test_a_damaged_or_missing_file_is_named(learned, tmp_path, file):
    learned.save(tmp_path)
    content = (tmp_path / file).read_bytes()
    for damaged in (b"", content[:50] + b"\x00" + content[51:]):
        (tmp_path / file).write_bytes(damaged)
        with pytest.raises(SimicError, match=str(tmp_path)):
            Learned.load(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(SimicError, match=f"{file}: no such file"):
        Learned.load(tmp_path)


@pytest.mark.parametrize("size", ["features", "cardinality", "privileged_cardinality"])
def test_a_description_that_asks_for_gigabytes_is_refused_without_them(learned, tmp_path, size):
    learned.save(tmp_path)
    card = durable.checked((tmp_path / "policy.json").read_bytes())
    card["specs"]["observation"] |= {"categories": 1, "privileged": 1, size: 10**11}
    (tmp_path / "policy.json").write_bytes(durable.with_checksum(card))
    with pytest.raises(SimicError, match="the policy after 4 iterations: tensor"):
        Learned.load(tmp_path)


@pytest.mark.parametrize("name", ["policy.actor.encoder.bias", "observation.mean"])
def test_numbers_that_are_not_finite_are_refused(learned, tmp_path, name):
    """Of the right hashes: whoever writes a file can write those too."""
    learned.save(tmp_path)
    tensors = load((tmp_path / "weights.safetensors").read_bytes())
    tensors[name][0] = torch.nan
    content = save(tensors)
    card = durable.checked((tmp_path / "policy.json").read_bytes())
    card["sha256"] = durable.sha256_of(content)
    (tmp_path / "policy.json").write_bytes(durable.with_checksum(card))
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(SimicError, match=f"tensor '{name.split('policy.')[-1]}' holds numbers"):
        Learned.load(tmp_path)


def test_another_format_is_refused(learned, tmp_path):
    learned.save(tmp_path)
    card = json.loads((tmp_path / "policy.json").read_bytes()) | {"format_version": 1}
    (tmp_path / "policy.json").write_text(json.dumps(card))
    with pytest.raises(SimicError, match="format version 1: must be 5; run simic train again"):
        Learned.load(tmp_path)
