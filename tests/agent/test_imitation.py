"""Imitation by advantage: what twins won by weighs, and the heavier episodes become the likelier ones."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from simic.agent.imitation import LARGEST_EXPONENT, TEMPERATURE, Demonstrations, weights
from simic.agent.normalization import Normalizers
from simic.agent.ppo import PPO
from simic.agent.rollout import Rollout
from simic.params import PPOParams

from .worlds import episodes, in_processes, make_policy, make_rollout, replay

ENVS, STEPS = 8, 6


def shown(policy, won: Tensor, iteration: int = 0) -> Rollout:
    """Episodes that got ``won [E]`` more than their twins in their last step."""
    rollout = make_rollout(policy, episodes(ENVS, STEPS, None), STEPS, iteration)
    rewards = torch.zeros_like(rollout.rewards)
    rewards[-1] = won
    return replace(rollout, rewards=rewards)


def test_weights_by_hand() -> None:
    won = torch.tensor([10.0, -10.0] * 4)
    found = weights(shown(make_policy(), won))
    high, low = math.exp(1 / TEMPERATURE), math.exp(-1 / TEMPERATURE)  # the standard deviation is 10
    expected = torch.tensor([high, low] * 4) * 2 / (high + low)
    torch.testing.assert_close(found, expected.expand(STEPS, -1), rtol=1e-5, atol=1e-6)


def test_one_lucky_episode_has_a_largest_weight_and_equal_ones_weigh_alike() -> None:
    lucky = torch.zeros(ENVS)
    lucky[3] = 100.0
    found = weights(shown(make_policy(), lucky))[0]
    ratio = found[3] / found[0]
    assert ratio == pytest.approx(
        math.exp(min(LARGEST_EXPONENT, math.sqrt(ENVS**2 / (ENVS - 1)) / TEMPERATURE)), rel=1e-4
    )
    assert weights(shown(make_policy(), torch.zeros(ENVS))).eq(1).all()


def test_over_processes_weights_are_those_of_all_together() -> None:
    won = torch.arange(ENVS, dtype=torch.float32) - 3.5
    whole = shown(make_policy(), won)
    halves = [whole.select(torch.arange(rank * 4, rank * 4 + 4)) for rank in range(2)]
    parts = in_processes(2, lambda rank, reduce: weights(halves[rank], reduce))
    torch.testing.assert_close(torch.cat(parts, dim=1), weights(whole), rtol=1e-6, atol=0)


def likelihood(policy, rollout: Rollout) -> Tensor:
    with torch.no_grad():
        return replay(policy, rollout).log_probs.sum(dim=(0, 2))


def test_cloning_makes_the_winners_decisions_likelier_than_the_losers() -> None:
    policy = make_policy()
    ppo = PPO(policy, PPOParams(minibatches=1), 1, total_updates=4)
    demonstrations, rollouts = Demonstrations(), []
    for iteration in range(2):
        rollouts.append(shown(policy, torch.tensor([10.0, -10.0] * 4), iteration))
        demonstrations.add(rollouts[-1])
    before = [likelihood(policy, rollout) for rollout in rollouts]
    batch = demonstrations.batch(policy, Normalizers(), 0.9, ENVS, None)
    assert batch.env_ids.tolist() == list(range(2 * ENVS)) == demonstrations.rows(torch.arange(ENVS), ENVS).tolist()
    metrics = ppo.imitate(batch, batch.env_ids, 0, last=True)
    assert metrics.first_ratio_ok and math.isnan(metrics.approx_kl) and metrics.samples == 2 * ENVS * STEPS
    for rollout, at_first in zip(rollouts, before, strict=True):
        gained = likelihood(policy, rollout) - at_first
        assert gained[::2].mean() > 1.0 and gained[::2].mean() > gained[1::2].mean() + 1.0


def test_what_is_kept_comes_back_the_same() -> None:
    policy = make_policy()
    own, other = Demonstrations(), Demonstrations()
    for iteration in range(2):
        own.add(shown(policy, torch.arange(ENVS).float(), iteration))
    other.load_state_dict({name: tensor.clone() for name, tensor in own.state_dict().items()}, policy)
    batches = [each.batch(policy, Normalizers(), 0.9, ENVS, None) for each in (own, other)]
    for name in ("features", "actions", "weights", "returns", "advantages", "log_probs", "values", "env_ids"):
        assert torch.equal(*(getattr(batch, name) for batch in batches)), name
