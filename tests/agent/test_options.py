"""What can be switched on: each does what it says, and nothing else."""

import math
from dataclasses import replace

import pytest
import torch

from simic import params
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, floor_pull, mean_entropy, terms, usage
from simic.agent.rollout import Rollout
from simic.errors import SimicError
from tests import standard

from .worlds import HIERARCHY, episodes, make_policy, make_rollout, replay, weights

STEPS, ENVS = 8, 6


def rollout_of(policy: ActorCritic, iteration: int = 0) -> Rollout:
    return make_rollout(policy, episodes(ENVS, STEPS), STEPS, iteration)


def settings(**changes) -> params.PPOParams:
    return standard.PPOParams(**({"learning_rate": 1e-2, "epochs": 2, "minibatches": 2, "target_kl": None} | changes))


def make_ppo(policy: ActorCritic | None = None, **changes) -> PPO:
    return PPO(policy or make_policy().double(), settings(**changes), rng_seed=1, total_updates=5)


# --- entropy by head ---


def gradients(policy: ActorCritic, loss: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found])


def test_each_head_has_its_own_entropy_coefficient() -> None:
    policy = make_policy().double()
    rollout = rollout_of(policy)
    used, seen = usage(policy, rollout, 1, None), replay(policy, rollout)
    base = settings(value_coef=0.0)
    with_bonus = terms(seen, rollout, used, base, 0.1 * torch.tensor([1.0, 0.0, 2.0, 1.0]).double()).loss
    plain = terms(seen, rollout, used, base, 0.0).loss
    entropy = mean_entropy(seen, used)
    assert (plain - with_bonus).item() == pytest.approx(0.1 * (entropy[0] + 2 * entropy[2] + entropy[3]).item())


def test_unnamed_heads_keep_the_common_coefficient() -> None:
    scaled, plain = make_ppo(entropy_scale={"op": 1.0, "style": 1.0}), make_ppo()
    for ppo in (scaled, plain):
        ppo.update(rollout_of(ppo.policy), 0)
    assert torch.allclose(weights(scaled), weights(plain), rtol=0, atol=1e-12)
    other = make_ppo(entropy_scale={"style": 50.0})
    other.update(rollout_of(other.policy), 0)
    assert not torch.allclose(weights(other), weights(plain), atol=1e-4)


def test_a_floor_is_a_penalty_with_the_gradient_of_its_formula() -> None:
    policy = make_policy().double()
    rollout = rollout_of(policy)
    used, seen = usage(policy, rollout, 1, None), replay(policy, rollout)
    floors, coefficient = torch.tensor([0.99, 0.0, 0.97, 1.0]).double(), 0.3
    entropy = mean_entropy(seen, used)
    penalty = (coefficient * (floors - entropy).clamp(min=0).square()).sum()
    expected = gradients(policy, penalty)
    pulled = -(floor_pull(entropy.detach(), floors, coefficient) * mean_entropy(replay(policy, rollout), used)).sum()
    assert expected.norm() > 1e-4
    assert torch.allclose(gradients(policy, pulled), expected, rtol=1e-9, atol=1e-15)


def test_a_floor_lifts_the_entropy_of_its_head_and_leaves_a_high_one_alone() -> None:
    def entropy_after(**changes) -> float:
        ppo = make_ppo(entropy_coef=0.0, entropy_coef_final=0.0, **changes)
        for iteration in range(6):
            metrics = ppo.update(rollout_of(ppo.policy, iteration), iteration)
        return metrics.entropy_by_head["style"]

    plain = entropy_after()
    assert entropy_after(entropy_floor={"style": 1.0}, entropy_floor_coef=20.0) > plain + 0.02
    assert entropy_after(entropy_floor={"style": 0.01}, entropy_floor_coef=20.0) == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize("name", ["entropy_scale", "entropy_floor"])
def test_a_head_that_does_not_exist_is_refused_by_name(name: str) -> None:
    with pytest.raises(SimicError, match=rf"ppo.{name}: there is no head 'ops'; the heads are op, slot"):
        make_ppo(**{name: {"ops": 0.5}})


# --- weight of a head ---


def test_head_weight_mean_is_the_mean_over_the_rows_where_the_head_mattered() -> None:
    policy = make_policy().double()
    rollout = rollout_of(policy)
    with torch.no_grad():
        rollout = replace(rollout, log_probs=replay(policy, rollout).log_probs - 0.05)  # ratio e^0.05, not clipped
    used = usage(policy, rollout, 1, None)
    chosen = settings(ratio="per_head", head_weight="mean", value_coef=0.0)
    found = terms(replay(policy, rollout), rollout, used, chosen, 0.0).loss.item()
    expected = 0.0
    for head in range(4):
        rows = [
            math.exp(0.05) * rollout.advantages[t, e].item()
            for t in range(STEPS)
            for e in range(ENVS)
            if rollout.valid[t, e] and HIERARCHY.relevance[int(rollout.actions[t, e, 0])][head]
        ]
        expected -= sum(rows) / len(rows)
    assert found == pytest.approx(expected, rel=1e-5)


# --- gradient accumulation ---


@pytest.mark.parametrize("pieces", [2, 3, 7])
@pytest.mark.parametrize("changes", [{}, {"ratio": "per_head", "head_weight": "mean", "entropy_floor": {"op": 1.0}}])
def test_accumulated_gradients_are_those_of_the_whole_minibatch(pieces: int, changes: dict) -> None:
    whole, split = make_ppo(**changes), make_ppo(gradient_accumulation=pieces, **changes)
    for iteration in range(2):
        one, other = (ppo.update(rollout_of(ppo.policy, iteration), iteration) for ppo in (whole, split))
        assert other.approx_kl == pytest.approx(one.approx_kl, rel=1e-9)
        assert other.policy_loss == pytest.approx(one.policy_loss, rel=1e-9)
        assert other.steps == one.steps
    assert torch.allclose(weights(split), weights(whole), rtol=0, atol=1e-12)


# --- params ---


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="head_weight must be rows when ratio is joint"):
        standard.PPOParams(head_weight="mean", ratio="joint")
