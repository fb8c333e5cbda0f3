"""Heads of real numbers: their formulas beside torch's own distributions, and gradients in closed form."""

import math
from dataclasses import replace

import torch
from torch.distributions import Normal

from simic.agent.gaussian import LEAST_SIGMA, Numbers
from simic.agent.losses import head_usage, losses
from simic.agent.ppo import normalized
from simic.agent.spec import ActionSpec, Head, Observation
from tests.standard import PPOParams

from .worlds import TensorWorld, make_policy, make_rollout

# Op 0 uses nothing, 1 both Boxes, 2 the second alone.
HYBRID = ActionSpec(
    (
        Head("op", 3),
        Head("power", 1, continuous=True, bounds=((0.0, 10.0),)),
        Head("place", 2, continuous=True, bounds=((-1.0, 3.0), (None, None))),
    ),
    ((True, False, False), (True, True, True), (True, False, True)),
)
BOX = ActionSpec.trivial([Head("force", 2, continuous=True), Head("spin", 1, continuous=True)])


class Free(TensorWorld):
    """Masks nothing; episodes end after three steps in the second row, and go on anew."""

    def __init__(self) -> None:
        super().__init__([0, 1, 2, 3], {1: {3: (True, False)}}, same_step=True)

    def observation(self, shift: int = 0) -> Observation:
        return replace(super().observation(shift), masks={})


def drawn(noise: torch.Tensor | None = None, recorded: torch.Tensor | None = None) -> Numbers:
    mean = torch.tensor([[0.5, -2.0], [0.0, 3.0]], dtype=torch.float64, requires_grad=True)
    log_sigma = torch.tensor([-1.0, 0.5], dtype=torch.float64, requires_grad=True)
    return Numbers.decide(mean, log_sigma, torch.tensor([True, False]), noise, recorded)


def test_probabilities_entropies_and_draws_are_those_of_a_normal_distribution() -> None:
    noise = torch.tensor([[0.1, 0.9], [0.5, 0.5]])
    numbers = drawn(noise)
    normal = Normal(numbers.mean, numbers.sigma)
    torch.testing.assert_close(
        numbers.sigma, torch.tensor([-1.0, 0.5]).double().exp() + LEAST_SIGMA
    )
    torch.testing.assert_close(numbers.values[0], normal.icdf(noise.double())[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(numbers.log_prob()[0], normal.log_prob(numbers.values)[0].sum())
    torch.testing.assert_close(numbers.normalized_entropy()[0], normal.entropy()[0].mean())
    # Where the head is irrelevant everything is exactly 0.
    assert numbers.values[1].tolist() == [0.0, 0.0]
    assert [numbers.log_prob()[1].item(), numbers.normalized_entropy()[1].item()] == [0.0, 0.0]
    # Greedily the mean; the least and the largest noise give finite numbers.
    assert torch.equal(drawn().values[0], numbers.mean[0])
    ends = drawn(torch.tensor([[0.0, 1 - 2**-24], [0.0, 0.0]])).values
    assert ends.isfinite().all() and (ends - numbers.mean)[0].abs().max() < 6 * 2


def test_gradients_are_those_in_closed_form() -> None:
    """d ln π/dμ = (x − μ)/σ², d ln π/dp = ((x − μ)²/σ² − 1)/σ · eᵖ, dH/dp = eᵖ/σ/n, where σ = eᵖ + least."""
    x = torch.tensor([[1.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    numbers = drawn(recorded=x)
    log_sigma = torch.tensor([-1.0, 0.5], dtype=torch.float64, requires_grad=True)
    numbers = Numbers.decide(numbers.mean, log_sigma, numbers.relevant, None, x)
    by_mean, by_sigma = torch.autograd.grad(numbers.log_prob().sum(), (numbers.mean, log_sigma))
    distance = ((x - numbers.mean) / numbers.sigma)[0]
    torch.testing.assert_close(by_mean[0], distance / numbers.sigma)
    assert by_mean[1].tolist() == [0.0, 0.0]
    slope = log_sigma.exp() / numbers.sigma
    torch.testing.assert_close(by_sigma, (distance.square() - 1) * slope)
    numbers = Numbers.decide(numbers.mean, log_sigma, numbers.relevant, None, x)
    (of_entropy,) = torch.autograd.grad(numbers.normalized_entropy().sum(), log_sigma)
    torch.testing.assert_close(of_entropy, slope / 2)


def test_heads_that_the_op_does_not_use_have_no_part_in_an_action() -> None:
    for core in ("none", "gru"):
        policy = make_policy(core, HYBRID)
        rollout = make_rollout(policy, Free(), 16)
        usage = head_usage(policy, rollout, 1)
        op = rollout.actions[..., 0]
        assert set(op.unique().tolist()) == {0.0, 1.0, 2.0}
        assert torch.equal(usage.relevant[..., 1], (op == 1) & rollout.valid)
        assert torch.equal(usage.relevant[..., 2], (op > 0) & rollout.valid)
        assert torch.equal(usage.choice, usage.relevant)
        for head, unused in ((1, op != 1), (2, op == 0)):
            assert not rollout.actions[..., HYBRID.columns[head]][unused].any()
            assert not rollout.log_probs[..., head][unused].any()


def test_replay_is_what_acted_and_at_ratio_one_both_ratios_have_the_gradient_of_reinforce() -> None:
    """∇ of the objective at ratio 1 is the mean of A ∇ ln π, whatever the heads are."""
    for spec in (HYBRID, BOX):
        policy = make_policy("gru", spec)
        rollout = make_rollout(policy, Free(), 16)
        usage = head_usage(policy, rollout, 1)
        assert rollout.advantages is not None
        advantages = normalized(rollout.advantages, rollout.valid)
        rollout.advantages.copy_(advantages)
        gradients = []
        for ratio in ("joint", "per_head"):
            settings = PPOParams(ratio=ratio, value_coef=0.0)
            rescoring = policy.rescore(
                rollout.observation(),
                rollout.actions,
                rollout.state,
                rollout.valid,
                rollout.starts,
            )
            difference = torch.where(usage.relevant, rescoring.log_probs - rollout.log_probs, 0)
            assert difference.abs().max() < 1e-5
            loss = losses(rescoring, rollout, usage, settings, 0.0).loss
            parameters = [*policy.heads.parameters()]
            gradients.append(torch.autograd.grad(loss, parameters, retain_graph=True))
        log_prob = torch.where(usage.relevant, rescoring.log_probs, 0).sum(dim=-1)
        reinforce = -(torch.where(rollout.valid, log_prob * advantages, 0)).sum() / usage.rows
        gradients.append(torch.autograd.grad(reinforce, parameters))
        for joint, per_head, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(joint, expected, rtol=1e-3, atol=1e-6)
            torch.testing.assert_close(per_head, expected, rtol=1e-3, atol=1e-6)


def test_what_the_environment_gets_is_in_its_units_and_within_its_bounds() -> None:
    actions = torch.tensor([[2.0, 1.0, -1.0, 7.0], [0.0, -3.0, 0.5, -7.0]])
    assert HYBRID.dtype == torch.float32 and HYBRID.width == 4
    assert HYBRID.column_names == ["op", "power", "place.0", "place.1"]
    own = HYBRID.to_env(actions)
    assert own.tolist() == [[2.0, 10.0, -1.0, 7.0], [0.0, 0.0, 2.0, -7.0]]
    assert HYBRID.from_env(own)[1].tolist() == [0.0, -1.0, 0.5, -7.0]
    assert math.isnan(HYBRID.to_env(torch.full((4,), math.nan))[1])
