"""The exported greedy policy."""

import json
from pathlib import Path

import pytest
import torch

from simic.agent.export import DESCRIPTION, PROGRAM, export_policy, masked_heads
from simic.agent.normalization import Normalizers, ObservationNormalizer
from simic.agent.spec import ObservationSpec

from .worlds import FEATURES, TensorWorld, make_policy


@pytest.mark.parametrize("core", ["lstm", "transformer"])
def test_the_program_decides_like_the_policy_over_a_whole_episode(
    core: str, tmp_path: Path
) -> None:
    """Without memory: test_border.py."""
    envs = 5
    policy = make_policy(core)
    normalizer = ObservationNormalizer(ObservationSpec(FEATURES, raw=(False, True) + (False,) * 3))
    rows = 0.5 + 0.05 * torch.randn(40, FEATURES, generator=torch.Generator().manual_seed(1))
    normalizer.update(rows, torch.ones(40, dtype=torch.bool))
    description = export_policy(policy, normalizer, tmp_path)
    program = torch.export.load(tmp_path / PROGRAM).module()
    world = TensorWorld(
        list(range(envs)), {}
    )  # features of unit size, so some lie on the clip and some do not
    observation, _ = world.reset()
    state = policy.initial_state(envs)
    h, c = state
    for _ in range(12):
        expected = policy.act(Normalizers(normalizer).see(observation), state, noise=None)
        masks = tuple(observation.masks[name] for name in masked_heads(policy.action_spec))
        actions, logits, value, h, c = program(
            observation.features, observation.categories, masks, h, c
        )
        assert torch.equal(actions, expected.actions)
        assert torch.allclose(value, expected.value, atol=1e-5)
        assert torch.allclose(h, expected.state.h, atol=1e-5)
        assert logits.shape == (envs, 4)
        state = expected.state
        observation, *_ = world.step(expected.actions)
    assert json.loads((tmp_path / DESCRIPTION).read_text()) == description


def test_a_row_that_cannot_be_decided_has_no_action_and_keeps_its_memory(tmp_path: Path) -> None:
    """A number that is not finite, or a mask of a relevant head without a choice; other rows are as ever."""
    policy = make_policy()
    export_policy(policy, None, tmp_path)
    program = torch.export.load(tmp_path / PROGRAM).module()
    observation, _ = TensorWorld(list(range(6)), {}).reset()
    masks = [observation.masks[name].clone() for name in masked_heads(policy.action_spec)]
    features, categories = observation.features, observation.categories
    usual = policy.initial_state(6)
    expected = program(features, categories, tuple(masks), *usual)
    h, c = (part.clone() for part in usual)
    features[0, 1] = torch.nan
    features[1, 0] = -torch.inf
    h[2, 3] = torch.nan
    masks[0][3] = False
    actions, _, _, h_after, c_after = program(features, categories, tuple(masks), h, c)
    assert (actions[:4] == -1).all() and torch.equal(actions[4:], expected[0][4:])
    assert torch.equal(h_after[:4].nan_to_num(9.0), h[:4].nan_to_num(9.0))
    assert torch.equal(h_after[4:], expected[3][4:]) and torch.equal(c_after[4:], expected[4][4:])
    assert not c_after[:4].any()
