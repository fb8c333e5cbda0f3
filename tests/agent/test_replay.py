"""Rescore under weights that have moved, and what an update may touch."""

import math
from dataclasses import replace

import pytest
import torch

from simic import rng
from simic.agent.normalization import Normalizers, RewardNormalizer
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import Rollout
from simic.agent.spec import Observation
from tests import standard

from .worlds import episodes, learner, make_policy, make_rollout, rescore, weights

ONE_STEP = standard.PPOParams(
    learning_rate=1e-3, epochs=1, minibatches=1, target_kl=None, clip_range=0.2,
    entropy_coef=0.0, entropy_coef_final=0.0,
)  # fmt: skip
SLOT = 1  # a head of HIERARCHY that only some ops use


def moved(policy: torch.nn.Module, size: float = 0.1) -> None:
    with torch.no_grad():
        for index, parameter in enumerate(policy.parameters()):
            parameter += size * rng.normal(
                rng.key(4, rng.Purpose.BASELINE, index), tuple(parameter.shape)
            )


@pytest.mark.parametrize("core", ["lstm", "gru", "transformer"])
def test_after_a_step_the_memory_is_that_of_the_new_weights(core: str) -> None:
    """Every epoch recomputes the row from its first memory; what the old weights remembered is not used."""
    policy = make_policy(core)
    rollout = make_rollout(policy, episodes(4, 7, None), 7)
    moved(policy)
    rescored = rescore(policy, rollout)
    state = rollout.state
    hidden = []
    values = []
    for t in range(7):
        masks = {name: mask[t] for name, mask in rollout.masks.items()}
        readings, state = policy.step(
            Observation(rollout.features[t], rollout.categories[t], masks), state
        )
        hidden.append(readings.actor.hidden)
        values.append(policy.state_value(readings.value))
    assert torch.allclose(rescored.hidden, torch.stack(hidden), atol=1e-5)
    assert torch.allclose(rescored.values, torch.stack(values), atol=1e-5)
    assert not torch.allclose(rescored.log_probs, rollout.log_probs, atol=1e-2)


def test_an_update_leaves_its_rollout_as_it_was() -> None:
    ppo, rollout = learner(ONE_STEP.model_copy(update={"epochs": 2, "minibatches": 2}))
    tensors = {
        name: x for name, x in vars(rollout).items() if isinstance(x, torch.Tensor)
    } | rollout.masks
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
    ppo, rollout = learner(ONE_STEP)
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
    ppo, rollout = learner(ONE_STEP.model_copy(update={"ratio": ratio}))
    metrics = ppo.update(shifted(ppo, rollout, by), 0)
    assert (metrics.skipped_steps, metrics.steps) == (0, 1)
    for value in (metrics.approx_kl, metrics.policy_loss, metrics.grad_norm, metrics.ratio_mean):
        assert math.isfinite(value)
    assert not metrics.first_ratio_ok  # the self-test looks at the ratio before it is limited


def test_a_head_that_never_mattered_has_no_weight_and_no_divergence() -> None:
    """Where op 0 alone was ever chosen."""
    ppo, rollout = learner(ONE_STEP)
    waited = replace(rollout, actions=torch.zeros_like(rollout.actions))
    waited = replace(waited, log_probs=rescore(ppo.policy, waited).log_probs.detach())
    moved(ppo.policy, 0.02)
    metrics = ppo.update(waited, 0)
    unused_heads = ("slot", "blueprint", "style")
    assert all(metrics.grad_norm_by_part[f"head_{name}"] == 0.0 for name in unused_heads)
    assert [metrics.samples_by_head[name] for name in unused_heads] == [0, 0, 0]
    assert metrics.approx_kl > 0


def test_a_rollout_without_valid_rows_moves_nothing() -> None:
    """All heads empty: the divergence is 0 and ends nothing. As a minibatch that lies behind rollbacks altogether."""
    ppo, rollout = learner(ONE_STEP.model_copy(update={"target_kl": 1e-6}))
    before = weights(ppo)
    metrics = ppo.update(replace(rollout, valid=torch.zeros_like(rollout.valid)), 0)
    assert not metrics.stopped_early
    assert (metrics.update_kl, metrics.hidden_saturated, metrics.hidden_growth) == (0.0, 0.0, 0.0)
    assert torch.equal(weights(ppo), before)


def test_equal_rewards_of_one_rollout_are_scaled_alike() -> None:
    """One σ for the rollout: who came first in it does not matter."""
    normalizers = Normalizers(None, RewardNormalizer(3, 0.9))
    rewards = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    rewards[0, 0] = rewards[5, 2] = rewards[3, 1] = 0.75
    starts = torch.zeros(6, 3, dtype=torch.bool)
    valid = torch.ones(6, 3, dtype=torch.bool)
    scaled = normalizers.update(torch.zeros(6, 3, 2), rewards, starts, valid)
    assert scaled[0, 0] == scaled[5, 2] == scaled[3, 1]
    assert torch.allclose(scaled / rewards, (scaled / rewards)[0, 0].expand(6, 3), rtol=1e-5)


def test_a_group_of_environments_does_not_change_the_advantages_of_another() -> None:
    """Never one stream of interleaved environments."""
    policy = make_policy()
    rollout = make_rollout(policy, episodes(4, 6), 6)
    single = rollout.select(torch.tensor([1]))
    again = with_advantages(single, single.rewards, 0.9, 0.8)
    assert rollout.advantages is not None
    assert again.advantages is not None
    assert torch.equal(again.advantages[:, 0], rollout.advantages[:, 1])
