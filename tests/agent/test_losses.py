"""The objective."""

from dataclasses import replace

import pytest
import torch

from simic import params
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, gae, normalized, policy_objective, surrogate, terms, usage
from simic.agent.rollout import Rollout
from simic.certify import ppo as reference
from simic.errors import SimicError
from tests import standard

from .worlds import episodes, make_policy, make_rollout, replay, weights


def gradients(
    policy: ActorCritic, rollout: Rollout, settings: params.PPOParams, entropy_coef: float = 0.0
) -> list[torch.Tensor]:
    found = terms(replay(policy, rollout), rollout, usage(policy, rollout, 1), settings, entropy_coef)
    return list(torch.autograd.grad(found.loss, list(policy.parameters()), allow_unused=True, materialize_grads=True))


def test_the_clipped_objective_by_hand() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    # min(r A, clip(r, 0.8, 1.2) A)
    assert torch.allclose(surrogate(log_ratio, advantages, 0.2), torch.tensor([1.2, -1.5, 0.5, -0.8, 2.2]))


def test_per_head_clips_each_head_by_itself() -> None:
    log_ratio = torch.tensor([[[0.0, 1.0, 3.0]]])
    relevant = torch.tensor([[[True, True, False]]])
    advantages = torch.ones(1, 1)
    # 1 · A + clip(e) · A; the third head does not matter
    found = policy_objective(log_ratio, relevant, advantages, standard.PPOParams(ratio="per_head"))
    assert found.item() == pytest.approx(1.0 + 1.2)
    joint = policy_objective(log_ratio * relevant, relevant, advantages, standard.PPOParams(ratio="joint"))
    assert joint.item() == pytest.approx(1.2)


def test_the_coefficients_of_params_are_those_of_the_named_heads() -> None:
    scales: list[dict[str, float]] = [{}, {"op": 1.0, "style": 1.0}, {"style": 50.0}]
    learners = [PPO(make_policy().double(), standard.PPOParams(entropy_scale=s), 1, total_updates=5) for s in scales]
    for ppo in learners:
        ppo.update(make_rollout(ppo.policy, episodes(6, 8), 8), 0)
    plain, same, other = map(weights, learners)
    assert torch.allclose(same, plain, rtol=0, atol=1e-12) and not torch.allclose(other, plain, atol=1e-4)
    with pytest.raises(SimicError, match=r"ppo.entropy_scale: there is no head 'ops'; the heads are op, slot"):
        PPO(make_policy(), standard.PPOParams(entropy_scale={"ops": 0.5}), 1, total_updates=5)


def test_rows_that_are_over_change_nothing() -> None:
    policy = make_policy().double()
    rollout = make_rollout(policy, episodes(4, 8), 8)
    settings = standard.PPOParams()
    reference = gradients(policy, rollout, settings, 0.1)
    over = ~rollout.valid
    spoiled = replace(
        rollout,
        actions=torch.where(over[..., None], 1, rollout.actions),
        advantages=torch.where(over, 1e6, rollout.advantages),
        returns=torch.where(over, -1e6, rollout.returns),
        log_probs=torch.where(over[..., None], 7.0, rollout.log_probs),
        masks={name: mask & rollout.valid.view(8, 4, *(1,) * (mask.ndim - 2)) for name, mask in rollout.masks.items()},
    )
    assert over.any()
    for one, other in zip(reference, gradients(policy, spoiled, settings, 0.1), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.995, 1.0])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95, 1.0])
def test_advantages_equal_the_reference_on_random_cases(gamma: float, decay: float) -> None:
    generator = torch.Generator().manual_seed(7)
    numbers = torch.randn(3, 8, 200, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 8, 200, generator=generator) < 0.15
    valid = torch.arange(8)[:, None] < torch.randint(0, 12, (200,), generator=generator)
    given = *numbers, terminated, truncated, valid, gamma, decay
    for own, expected in zip(gae(*given), reference.advantages(*given), strict=True):
        assert torch.allclose(own, expected, atol=1e-12) and own.any()


def test_a_terminal_state_may_have_no_value_at_all() -> None:
    one, flag = torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    advantages, _ = gae(one, 0 * one, torch.nan * one, flag, ~flag, flag, 0.9, 0.9)
    assert advantages.item() == 1.0


def test_noise_is_not_blown_up_to_unit_size() -> None:
    advantages = torch.tensor([[1e-6, -1e-6]])
    assert torch.allclose(normalized(advantages, torch.ones(1, 2, dtype=torch.bool)), advantages / 0.1)
    assert normalized(advantages, torch.zeros(1, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0]]
