"""The objective."""

import math
import random
from dataclasses import replace

import pytest
import torch
from gymnasium.vector import AutoresetMode

from simic import params
from simic.agent.losses import HeadUsage, head_usage, losses, policy_objective, surrogate
from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, Rescoring
from simic.agent.ppo import gae, normalized, with_advantages
from simic.agent.rollout import Rollout, collect
from simic.agent.spec import ActionSpec, Head, Observation, ObservationSpec
from tests import standard

from .worlds import (
    HIERARCHY,
    SMALL,
    WorldInfo,
    episodes,
    make_policy,
    make_rollout,
    rescore,
)

POLICY_ONLY = {"clip_range": 0.2, "value_coef": 0.0, "entropy_coef": 0.0, "entropy_coef_final": 0.0}


def gradients(
    policy: ActorCritic, rollout: Rollout, settings: params.PPOParams, entropy_coef: float = 0.0
) -> list[torch.Tensor]:
    rescored = rescore(policy, rollout)
    _, by_output = losses(rescored, rollout, head_usage(policy, rollout, 1), settings, entropy_coef)
    return list(by_output.through(rescored, list(policy.parameters())))


@pytest.fixture(scope="module")
def episode() -> tuple[ActorCritic, Rollout]:
    """A policy in double precision, and 8 steps of 6 environments of which the third ends after 5; read only."""
    policy = make_policy().double()
    return policy, make_rollout(policy, episodes(6, 8), 8)


def choices(rollout: Rollout, t: int, e: int, head: int) -> int:
    """Legal choices of a head of HIERARCHY in one row, 0 where it does not matter."""
    op, slot = rollout.actions[t, e, :2].tolist()
    masks = {name: mask[t, e] for name, mask in rollout.masks.items()}
    counts = (masks["op"].sum(), masks["slot"][op].sum(), masks["blueprint"][slot].sum(), 2)
    return int(counts[head]) if HIERARCHY.relevance[op][head] else 0


def test_the_clipped_objective_by_hand_of_the_whole_action_and_of_each_head() -> None:
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    # min(r A, clip(r, 0.8, 1.2) A)
    assert torch.allclose(
        surrogate(log_ratio, advantages, 0.2)[0], torch.tensor([1.2, -1.5, 0.5, -0.8, 2.2])
    )
    log_ratio = torch.tensor([[[0.0, 1.0, 3.0]]])
    relevant = torch.tensor([[[True, True, False]]])
    # 1 · A + clip(e) · A; the third head does not matter
    objective, _ = policy_objective(
        log_ratio, relevant, torch.ones(1, 1), standard.PPOParams(ratio="per_head")
    )
    assert objective.item() == pytest.approx(1.0 + 1.2)
    joint, _ = policy_objective(
        log_ratio * relevant, relevant, torch.ones(1, 1), standard.PPOParams(ratio="joint")
    )
    assert joint.item() == pytest.approx(1.2)


def loss_by_autograd(
    rescored: Rescoring, rollout: Rollout, usage: HeadUsage, ratio: str, coefficient: float
) -> torch.Tensor:
    """The whole loss, with limits of 20 and 30 on log-ratios and a range of 0.2, as a sum over rows."""
    difference = torch.where(usage.relevant, rescored.log_probs - rollout.log_probs, 0)
    log_ratio = difference.clamp(-20, 20)
    assert rollout.advantages is not None
    advantages = rollout.advantages[..., None]
    if ratio == "joint":
        log_ratio = log_ratio.sum(dim=-1, keepdim=True).clamp(-30, 30)
    terms = torch.minimum(
        log_ratio.exp() * advantages, log_ratio.exp().clamp(0.8, 1.2) * advantages
    )
    if ratio == "per_head":
        terms = torch.where(usage.relevant, terms, 0)
    errors = 0.5 * (rescored.values - rollout.returns).square()
    rows = torch.where(rollout.valid, 0.7 * errors - terms.sum(dim=-1), 0)
    entropies = torch.where(usage.choice, rescored.entropy, 0).sum(dim=(0, 1)) / usage.choice_rows
    return rows.sum() / usage.rows - coefficient * entropies.sum()


@pytest.mark.parametrize("ratio", ["joint", "per_head"])
def test_the_gradient_is_that_of_the_loss(episode, ratio: str) -> None:
    policy, rollout = episode
    # Ratios on both sides of the range, and of the limits of a head and of an action.
    generator = torch.Generator().manual_seed(1)
    shape = rollout.log_probs.shape
    moved = torch.randn(shape, generator=generator, dtype=torch.float64)
    moved *= torch.tensor([0.1, 1.0, 10.0, 30.0]).double()[
        torch.randint(4, shape, generator=generator)
    ]
    # Of two environments only the sum is beyond its limit.
    moved[:, :2] = -15.0
    rollout = replace(rollout, log_probs=rollout.log_probs + moved)
    usage = head_usage(policy, rollout, 1)
    rescored = rescore(policy, rollout)
    settings = standard.PPOParams(ratio=ratio, clip_range=0.2, value_coef=0.7)
    _, by_output = losses(rescored, rollout, usage, settings, 0.3)
    outputs = (rescored.log_probs, rescored.values, rescored.entropy)
    expected = torch.autograd.grad(loss_by_autograd(rescored, rollout, usage, ratio, 0.3), outputs)
    for actual, wanted in zip(by_output, expected, strict=True):
        assert wanted.any()
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-12)


def test_value_loss_is_half_the_mean_squared_error(episode) -> None:
    policy, rollout = episode
    rescored = rescore(policy, rollout)
    terms, _ = losses(rescored, rollout, head_usage(policy, rollout, 1), standard.PPOParams(), 0.0)
    value_loss = terms.sums["value_loss"]
    errors = (rescored.values - rollout.returns)[rollout.valid].tolist()
    assert value_loss.item() == pytest.approx(sum(0.5 * error**2 for error in errors) / len(errors))


def test_entropy_counts_a_head_only_where_it_had_a_choice(episode) -> None:
    policy, rollout = episode
    rescored = rescore(policy, rollout)
    usage = head_usage(policy, rollout, 1)
    terms, gradients = losses(rescored, rollout, usage, standard.PPOParams(), 0.5)
    sums = terms.sums
    for head in range(4):
        values = [
            rescored.entropy[t, e, head].item()
            for t in range(8)
            for e in range(6)
            if rollout.valid[t, e] and choices(rollout, t, e, head) > 1
        ]
        assert usage.choice_rows[head] == len(values)
        assert sums["choice"][head] == len(values)
        assert sums["entropy"][head].item() == pytest.approx(sum(values), rel=1e-9)
        expected = torch.where(usage.choice[..., head], -0.5 / len(values), 0.0)
        torch.testing.assert_close(gradients.entropy[..., head], expected, check_dtype=False)


def test_each_head_has_its_own_entropy_coefficient(episode) -> None:
    policy, rollout = episode
    usage = head_usage(policy, rollout, 1)
    coefficients = torch.tensor([0.1, 0.0, 0.2, 0.1]).double()
    _, by_output = losses(
        rescore(policy, rollout), rollout, usage, standard.PPOParams(), coefficients
    )
    assert torch.allclose(by_output.entropy.sum(dim=(0, 1)), -coefficients)


def test_rows_that_are_over_change_nothing(episode) -> None:
    policy, rollout = episode
    settings = standard.PPOParams()
    reference = gradients(policy, rollout, settings, 0.1)
    over = ~rollout.valid
    spoiled = replace(
        rollout,
        actions=torch.where(over[..., None], 1, rollout.actions),
        advantages=torch.where(over, 1e6, rollout.advantages),
        returns=torch.where(over, -1e6, rollout.returns),
        log_probs=torch.where(over[..., None], 7.0, rollout.log_probs),
        masks={
            name: mask & rollout.valid.view(8, 6, *(1,) * (mask.ndim - 2))
            for name, mask in rollout.masks.items()
        },
    )
    assert over.any()
    for gradient, spoiled_gradient in zip(
        reference, gradients(policy, spoiled, settings, 0.1), strict=True
    ):
        assert torch.equal(gradient, spoiled_gradient)


class RefusingBandit:
    """One decision. A pays 0.5. B is refused three times in four, and then it is as if nothing had been chosen: pays 0;
    else it pays 1. So B is worth 0.25 when chosen, although it is worth 1 when it happens.
    """

    SPEC = ActionSpec((Head("op", 2), Head("slot", 2)), ((True, False), (True, True)))

    def __init__(self, envs: int) -> None:
        self.env_ids = torch.arange(envs)
        self.num_envs = envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed=None, options=None):
        return self._observation(), None

    def _observation(self) -> Observation:
        return Observation(
            torch.ones(self.num_envs, 1), torch.zeros(self.num_envs, 0, dtype=torch.int64), {}
        )

    def step(self, actions: torch.Tensor, /):
        chose_b = actions[:, 0] == 1
        # Every fourth of those who chose B passes the gate.
        passed = chose_b & (chose_b.cumsum(dim=0) % 4 == 0)
        reward = torch.where(passed, 1.0, torch.where(chose_b, 0.0, 0.5))
        self.effective_op = torch.where(passed, 1, 0)
        ended = torch.ones(self.num_envs, dtype=torch.bool)
        return self._observation(), reward, ended, ~ended, WorldInfo(None)


@pytest.mark.parametrize("ratio", ["joint", "per_head"])
def test_credit_belongs_to_the_op_that_was_sampled_not_to_the_one_that_happened(ratio: str) -> None:
    policy = ActorCritic(RefusingBandit.SPEC, ObservationSpec(1), SMALL, rng_seed=1).double()
    with torch.no_grad():
        policy.heads[0].out.weight.zero_()  # π(A) = π(B) = 1/2, wherever z is
    env = RefusingBandit(4000)
    rollout, _ = collect(env, policy, Normalizers(), 0, rng_seed=1, steps=1)
    rollout = with_advantages(rollout, rollout.rewards, 0.9, 0.9)
    chose_b = rollout.actions[0, :, 0] == 1
    assert (env.effective_op[chose_b] == 0).float().mean() == pytest.approx(0.75, abs=0.01)
    assert rollout.advantages is not None
    rollout = replace(rollout, advantages=rollout.rewards - 0.3)
    settings = standard.PPOParams(ratio=ratio, **POLICY_ONLY)
    rescored = rescore(policy, rollout)
    _, by_output = losses(rescored, rollout, head_usage(policy, rollout, 1), settings, 0.0)
    (gradient,) = by_output.through(rescored, [policy.heads[0].out.bias])
    # Of −E[A] with respect to the logit of B: −Σ_a π(a) (1[a = B] − π(B)) (Q(a) − 0.3), here with the share of B drawn.
    share = chose_b.double().mean().item()
    paid_b = rollout.rewards[0, chose_b].mean().item()
    expected = -(share * 0.5 * (paid_b - 0.3) - (1 - share) * 0.5 * (0.5 - 0.3))
    assert expected > 0.02  # the logit of B must fall; credit to the effective op would raise it
    assert gradient[1].item() == pytest.approx(expected, rel=1e-6)
    assert gradient[0].item() == pytest.approx(-expected, rel=1e-6)


def oracle(row: list[dict], gamma: float, lam: float) -> list[float]:
    """Σ_l (γ λ)^l δ_{t+l}, summed forward from every step until something ends; one environment, Python floats."""
    advantages = []
    for t in range(len(row)):
        total = 0.0
        weight = 1.0
        for step in row[t:]:
            if not step["valid"]:
                break
            worth = 0.0 if step["terminated"] else step["next"]
            total += weight * (step["reward"] + gamma * worth - step["value"])
            if step["terminated"] or step["truncated"]:
                break
            weight *= gamma * lam
        advantages.append(total)
    return advantages


def random_case(source: random.Random) -> tuple[list[list[dict]], float, float]:
    rows: list[list[dict]] = []
    for _ in range(source.randint(1, 4)):
        cut = source.choice([None, None, 0, 1, 3])
        rows.append([])
        for t in range(8):
            numbers = {name: source.gauss(0, 1) for name in ("reward", "value", "next")}
            ends = {name: source.random() < 0.15 for name in ("terminated", "truncated")}
            if ends["terminated"]:  # a terminal state may have no value at all
                numbers["next"] = math.nan
            rows[-1].append({**numbers, **ends, "valid": cut is None or t < cut})
    return rows, source.choice([0.0, 0.9, 0.995, 1.0]), source.choice([0.0, 0.5, 0.95, 1.0])


def test_advantages_equal_the_scalar_oracle_on_random_cases() -> None:
    source = random.Random(7)
    for _ in range(300):
        rows, gamma, lam = random_case(source)

        def column(name: str, rows: list[list[dict]] = rows) -> torch.Tensor:
            values = torch.tensor([[step[name] for step in row] for row in rows]).t()
            return values if values.dtype == torch.bool else values.double()

        columns = [
            column(name) for name in ("reward", "value", "next", "terminated", "truncated", "valid")
        ]
        advantages, returns = gae(*columns, gamma, lam)
        expected = torch.tensor([oracle(row, gamma, lam) for row in rows]).t().double()
        assert torch.allclose(advantages, expected, atol=1e-5)
        assert torch.allclose(
            returns, torch.where(columns[5], expected + columns[1], 0.0), atol=1e-5
        )


def test_normalised_over_valid_rows_alone_and_noise_is_not_blown_up_to_unit_size() -> None:
    advantages = torch.tensor([[1.0, 2.0], [3.0, 1e9]])
    valid = torch.tensor([[True, True], [True, False]])
    # mean 2, population deviation sqrt(2/3)
    expected = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) / (2 / 3) ** 0.5
    assert torch.allclose(normalized(advantages, valid), expected)
    advantages = torch.tensor([[1e-6, -1e-6]])
    assert torch.allclose(
        normalized(advantages, torch.ones(1, 2, dtype=torch.bool)), advantages / 0.1
    )
    assert normalized(advantages, torch.zeros(1, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0]]
