"""What can be switched on: each does what it says, and nothing else."""

import math
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from simic import params
from simic.agent.losses import floor_pull, mean_entropy, terms, usage
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO
from simic.agent.rollout import Rollout
from simic.errors import SimicError

from .worlds import HIERARCHY, SMALL, episodes, make_policy, make_rollout, replay, weights

STEPS, ENVS = 8, 6


def rollout_of(policy: ActorCritic, iteration: int = 0) -> Rollout:
    return make_rollout(policy, episodes(ENVS, STEPS), STEPS, iteration)


def settings(**changes) -> params.PPOParams:
    return params.PPOParams(**({"learning_rate": 1e-2, "epochs": 2, "minibatches": 2, "target_kl": None} | changes))


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


# --- learning rate ---


def test_the_learning_rate_follows_the_divergence() -> None:
    """÷ 1.5 where it ended the update, above 1.5 × the target; × 1.5 below half of the target."""
    ppo = make_ppo(learning_rate_schedule="adaptive", target_kl=0.01)
    rate, expected = ppo.learning_rate, []
    for kl in (0.021, 0.0151, 0.0149, 0.006, 0.004, 0.0):
        ppo._adapt(torch.tensor(kl))
        expected.append(ppo.learning_rate.item() / rate.item())
        rate = ppo.learning_rate
    assert expected == pytest.approx([1 / 1.5, 1 / 1.5, 1.0, 1.0, 1.5, 1.5])
    for _ in range(40):
        ppo._adapt(torch.tensor(1.0))
    assert ppo.learning_rate == 1e-5
    for _ in range(40):
        ppo._adapt(torch.tensor(0.0))
    assert ppo.learning_rate == 1e-2
    ppo._adapt(torch.tensor(torch.nan))
    assert ppo.learning_rate == 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True])
def test_the_adaptive_rate_lets_updates_run_to_their_end(early: bool) -> None:
    """From a rate far too high it falls until the early stop no longer ends every update, and stays there."""
    adaptive = settings(learning_rate_schedule="adaptive", target_kl=0.01, epochs=4)
    ppo = PPO(make_policy().double(), adaptive, rng_seed=1, total_updates=30)
    ppo.reads_are_free = early
    steps, rates = [], []
    for iteration in range(30):
        metrics = ppo.update(rollout_of(ppo.policy, iteration), iteration)
        steps.append(metrics.steps)
        rates.append(metrics.learning_rate)
    assert sum(steps[:2]) < 8 and max(b / a for a, b in pairwise(rates)) <= 1.5 + 1e-6
    assert sum(steps[-20:]) > 0.8 * 20 * 8


def test_an_adaptive_rate_is_used_reported_and_resumed() -> None:
    changes = {"learning_rate_schedule": "adaptive", "target_kl": 0.5, "learning_rate": 1e-4}
    ppo, constant = make_ppo(**changes), make_ppo(learning_rate=1e-4, target_kl=0.5)
    for each in (ppo, constant):
        metrics = each.update(rollout_of(each.policy), 0)
        assert metrics.steps == 4
    assert metrics.learning_rate == pytest.approx(1e-4)
    assert ppo.learning_rate.item() == pytest.approx(1e-4 * 1.5)
    assert torch.equal(weights(ppo), weights(constant))  # the first update was made with what was asked for
    other = make_ppo(**changes)
    other.load_state_dict(ppo.state_dict())
    results = [asdict(each.update(rollout_of(each.policy, 1), 1)) for each in (ppo, other)]
    np.testing.assert_equal(*results)  # NaN, of what nobody watched, is NaN
    constant.update(rollout_of(constant.policy, 1), 1)
    assert not torch.equal(weights(ppo), weights(constant))
    assert "counter.learning_rate" not in constant.state_dict()


# --- bfloat16 ---


def coarse_policy() -> ActorCritic:
    policy = make_policy(sizes=SMALL.model_copy(update={"precision": "bfloat16"}))
    assert policy.coarsest == torch.bfloat16
    return policy


@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_reduced_precision_acts_and_replays_alike(core: str) -> None:
    policy = make_policy(core, sizes=SMALL.model_copy(update={"precision": "bfloat16"}))
    rollout = rollout_of(policy)
    exact = make_policy(core).replay(rollout.observation(), rollout.actions, rollout.state, rollout.valid, None)
    assert rollout.log_probs.dtype == rollout.values.dtype == torch.float32
    assert rollout.state.h.dtype == torch.float32
    assert 1e-4 < (exact.log_probs - rollout.log_probs).abs().max() < 0.1  # it is another precision
    metrics = PPO(policy, settings(), rng_seed=1, total_updates=5).update(rollout, 0)
    assert metrics.first_ratio_ok
    assert metrics.steps == 4
    assert all(parameter.dtype == torch.float32 for parameter in policy.parameters())


def test_a_cast_made_while_acting_does_not_cut_the_gradient() -> None:
    policy = coarse_policy()
    with policy.rounding():  # newer versions of torch do not cache without gradients; torch 2.11 may
        assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_cache_enabled()
    with torch.autocast("cpu", torch.bfloat16):  # the outermost context keeps the cache alive
        rollout = rollout_of(policy)
        seen = replay(policy, rollout)
        loss = terms(seen, rollout, usage(policy, rollout, 1, None), settings(), 0.01).loss
    gradient = dict(
        zip(
            dict(policy.named_parameters()),
            torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True),
            strict=True,
        )
    )
    for name in ("actor.encoder.weight", "heads.0.hidden.weight", "heads.0.out.weight", "value_head.out.weight"):
        assert gradient[name] is not None, name
        assert gradient[name].any(), name


# --- params ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate_schedule": "adaptive", "target_kl": None}, "target_kl must be set"),
        ({"head_weight": "mean", "ratio": "joint"}, "head_weight must be rows when ratio is joint"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        params.PPOParams(**changes)
