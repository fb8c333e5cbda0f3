"""Replay under weights that have moved, and what an update may touch."""

import math
from dataclasses import replace

import pytest
import torch

from simic import params, rng
from simic.agent.ppo import PPO
from simic.agent.rollout import Rollout
from tests import standard

from .worlds import episodes, make_policy, make_rollout

ONE_STEP = standard.PPOParams(
    learning_rate=1e-3, epochs=1, minibatches=1, target_kl=None, clip_range=0.2,
    entropy_coef=0.0, entropy_coef_final=0.0,
)  # fmt: skip
SLOT = 1  # a head of HIERARCHY that only some ops use


def learner(settings: params.PPOParams = ONE_STEP) -> PPO:
    return PPO(make_policy(), settings, rng_seed=1, total_updates=3)


def moved(policy: torch.nn.Module, size: float = 0.1) -> None:
    with torch.no_grad():
        for index, parameter in enumerate(policy.parameters()):
            parameter += size * rng.normal(rng.key(4, rng.Purpose.BASELINE, index), tuple(parameter.shape))


def test_an_update_leaves_its_rollout_as_it_was() -> None:
    ppo = learner(ONE_STEP.model_copy(update={"epochs": 2, "minibatches": 2}))
    rollout = make_rollout(ppo.policy, episodes(4, 6), 6)
    tensors = {name: x for name, x in vars(rollout).items() if isinstance(x, torch.Tensor)} | rollout.masks
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    assert ppo.update(rollout, 0).steps == 4
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())


def slot_mattered(ppo: PPO, rollout: Rollout) -> torch.Tensor:
    return rollout.valid & ppo.policy.relevance[rollout.actions[..., 0], SLOT]


def shifted(ppo: PPO, rollout: Rollout, by: float) -> Rollout:
    """As if the slot had been less likely to be chosen than it is: ln r = ``by`` where it mattered."""
    log_probs = rollout.log_probs.clone()
    log_probs[..., SLOT] -= by * slot_mattered(ppo, rollout)
    return replace(rollout, log_probs=log_probs)


def test_the_reported_ratio_is_that_of_the_whole_action_and_not_of_the_op() -> None:
    ppo = learner()
    rollout = make_rollout(ppo.policy, episodes(6, 8), 8)
    share = slot_mattered(ppo, rollout).sum().item() / rollout.valid.sum().item()
    assert 0.1 < share < 0.9
    metrics = ppo.update(shifted(ppo, rollout, 0.5), 0)
    assert metrics.ratio_max == pytest.approx(math.exp(0.5), rel=1e-4)
    assert metrics.ratio_min == pytest.approx(1.0, rel=1e-4)
    assert metrics.ratio_mean == pytest.approx(1 + share * (math.exp(0.5) - 1), rel=1e-4)
    assert metrics.clip_fraction == pytest.approx(share, rel=1e-6)  # e^0.5 is outside of 1 ± 0.2


@pytest.mark.parametrize("ratio", ["joint", "per_head"])
@pytest.mark.parametrize("by", [-1000.0, 1000.0])
def test_log_ratios_beyond_all_measure_stay_numbers(by: float, ratio: str) -> None:
    """e^1000 overflows: loss, divergence and gradient are those of the limit."""
    ppo = learner(ONE_STEP.model_copy(update={"ratio": ratio}))
    rollout = make_rollout(ppo.policy, episodes(6, 8), 8)
    metrics = ppo.update(shifted(ppo, rollout, by), 0)
    assert (metrics.skipped_steps, metrics.steps) == (0, 1)
    for value in (metrics.approx_kl, metrics.policy_loss, metrics.grad_norm, metrics.ratio_mean):
        assert math.isfinite(value)
    assert not metrics.first_ratio_ok  # the self-test looks at the ratio before it is limited


def only_waits(ppo: PPO) -> Rollout:
    """A rollout in which op 0 alone was ever chosen: no other head mattered anywhere."""
    rollout = make_rollout(ppo.policy, episodes(6, 8), 8)
    actions = torch.zeros_like(rollout.actions)
    seen = ppo.policy.replay(rollout.observation(), actions, rollout.state, rollout.valid, None)
    return replace(rollout, actions=actions, log_probs=seen.log_probs.detach())


def test_a_head_that_never_mattered_has_no_weight_and_no_divergence() -> None:
    ppo = learner()
    rollout = only_waits(ppo)
    moved(ppo.policy, 0.02)
    metrics = ppo.update(rollout, 0)
    others = ("slot", "blueprint", "style")
    assert all(metrics.grad_norm_by_part[f"head_{name}"] == 0.0 for name in others)
    assert [metrics.samples_by_head[name] for name in others] == [0, 0, 0]
    assert metrics.approx_kl > 0


def test_a_rollout_without_valid_rows_moves_nothing() -> None:
    """All heads empty: the divergence is 0 and ends nothing."""
    ppo = learner(ONE_STEP.model_copy(update={"target_kl": 1e-6}))
    rollout = make_rollout(ppo.policy, episodes(4, 5), 5)
    before = {name: tensor.clone() for name, tensor in ppo.policy.state_dict().items()}
    metrics = ppo.update(replace(rollout, valid=torch.zeros_like(rollout.valid)), 0)
    assert not metrics.stopped_early
    assert all(torch.equal(tensor, before[name]) for name, tensor in ppo.policy.state_dict().items())
