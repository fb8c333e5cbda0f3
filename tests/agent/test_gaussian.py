"""Heads of real numbers: their formulas beside torch's own distributions, and gradients in closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.gaussian import LARGEST_SQUASHED, LEAST_SIGMA, Numbers
from simic.agent.losses import head_usage, losses
from simic.agent.ppo import normalized
from simic.agent.spec import ActionSpec, Head, Observation
from tests.standard import PPOParams

from .worlds import SMALL, TensorWorld, make_policy, make_rollout

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


SQUASHED = torch.tensor([True, False])


def drawn(
    noise: torch.Tensor | None = None,
    recorded: torch.Tensor | None = None,
    squashed: torch.Tensor | None = None,
) -> Numbers:
    mean = torch.tensor([[0.5, -2.0], [0.0, 3.0]], dtype=torch.float64, requires_grad=True)
    log_sigma = torch.tensor([-1.0, 0.5], dtype=torch.float64, requires_grad=True)
    return Numbers.decide(mean, log_sigma, torch.tensor([True, False]), noise, recorded, squashed)


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


def test_squashed_numbers_have_the_density_of_the_tanh_of_a_normal_number() -> None:
    noise = torch.tensor([[0.1, 0.9], [0.5, 0.5]])
    free, numbers = drawn(noise), drawn(noise, squashed=SQUASHED)
    # The second number of this head has no bounds.
    assert torch.equal(numbers.values[0, 1], free.values[0, 1])
    torch.testing.assert_close(numbers.values[0, 0], free.values[0, 0].tanh(), atol=1e-7, rtol=0)
    first, second = (Normal(free.mean[0, k], free.sigma[k]) for k in range(2))
    squashed = TransformedDistribution(first, TanhTransform())
    expected = squashed.log_prob(numbers.values[0, 0]) + second.log_prob(numbers.values[0, 1])
    torch.testing.assert_close(numbers.log_prob()[0], expected)
    assert numbers.values[1].tolist() == [0.0, 0.0] and numbers.log_prob()[1] == 0.0
    assert torch.equal(numbers.normalized_entropy(), free.normalized_entropy())
    # Greedily the tanh of the mean.
    greedy = drawn(squashed=SQUASHED).values[0]
    torch.testing.assert_close(greedy, torch.tensor([math.tanh(0.5), -2.0]).double())


@pytest.mark.parametrize(("mean", "log_sigma"), [(0.0, -0.7), (1.2, -1.5), (-0.3, 0.0)])
def test_the_density_of_squashed_numbers_integrates_to_one(mean: float, log_sigma: float) -> None:
    values = torch.linspace(-1.0, 1.0, 400_001, dtype=torch.float64)[1:-1, None]
    numbers = Numbers.decide(
        torch.full_like(values, mean),
        torch.tensor([log_sigma]),
        None,
        None,
        values,
        torch.tensor([True]),
    )
    assert float(torch.trapezoid(numbers.log_prob().exp(), values[:, 0])) == pytest.approx(
        1, abs=1e-4
    )


def test_gradients_of_squashed_numbers_are_those_of_the_number_before() -> None:
    """ln(1 − tanh²u) is the same whatever the policy, so the gradient is that of ln N(u; μ, σ²), u = artanh a."""
    values = torch.tensor([[-0.6, 1.5], [0.2, 9.0]], dtype=torch.float64)
    before = torch.tensor([[math.atanh(-0.6), 1.5], [0.0, 0.0]], dtype=torch.float64)
    gradients = []
    for recorded, squashed in ((values, SQUASHED), (before, None)):
        mean = torch.tensor([[0.5, -2.0], [0.0, 3.0]], dtype=torch.float64, requires_grad=True)
        log_sigma = torch.tensor([-1.0, 0.5], dtype=torch.float64, requires_grad=True)
        relevant = torch.tensor([True, False])
        numbers = Numbers.decide(mean, log_sigma, relevant, None, recorded, squashed)
        gradients.append(torch.autograd.grad(numbers.log_prob().sum(), (mean, log_sigma)))
    by_mean, by_sigma = gradients[0]
    torch.testing.assert_close(by_mean[0], ((before - mean) / numbers.sigma.square())[0])
    torch.testing.assert_close(by_sigma, gradients[1][1])
    assert by_mean[1].tolist() == [0.0, 0.0]


def test_squashed_numbers_at_their_bounds_are_finite() -> None:
    """In float32, where a tanh of 9 is 1: drawn far outside, and recorded at the very bound."""
    mean = torch.tensor([[30.0], [-30.0], [0.0]], requires_grad=True)
    squashed = torch.tensor([True])
    log_sigma = torch.zeros(1, requires_grad=True)
    numbers = Numbers.decide(mean, log_sigma, None, torch.full((3, 1), 0.5), None, squashed)
    assert numbers.values[:2, 0].tolist() == [LARGEST_SQUASHED, -LARGEST_SQUASHED]
    recorded = Numbers.decide(
        mean, log_sigma, None, None, torch.tensor([[1.0], [-1.0], [1.0]]), squashed
    )
    for decision in (numbers, recorded):
        log_prob = decision.log_prob()
        gradients = torch.autograd.grad(log_prob.sum(), (mean, log_sigma))
        assert log_prob.isfinite().all() and all(part.isfinite().all() for part in gradients)


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


@pytest.mark.parametrize("box", ["clipped", "squashed"])
def test_replay_is_what_acted_and_at_ratio_one_both_ratios_have_the_gradient_of_reinforce(
    box: str,
) -> None:
    """∇ of the objective at ratio 1 is the mean of A ∇ ln π, whatever the heads are."""
    for spec in (HYBRID, BOX):
        policy = make_policy("gru", spec, sizes=SMALL.model_copy(update={"box": box}))
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
            if spec is HYBRID:
                bounded, free = rollout.actions[..., 1:3].abs().max(), rollout.actions[..., 3].max()
                assert (bounded < 1) == (box == "squashed") and free > 1
            _, by_output = losses(rescoring, rollout, usage, settings, 0.0)
            parameters = [*policy.heads.parameters()]
            gradients.append(by_output.through(rescoring, parameters))
        rescoring = policy.rescore(
            rollout.observation(), rollout.actions, rollout.state, rollout.valid, rollout.starts
        )
        log_prob = torch.where(usage.relevant, rescoring.log_probs, 0).sum(dim=-1)
        reinforce = -(torch.where(rollout.valid, log_prob * advantages, 0)).sum() / usage.rows
        gradients.append(torch.autograd.grad(reinforce, parameters))
        for joint, per_head, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(joint, expected, rtol=1e-3, atol=1e-6)
            torch.testing.assert_close(per_head, expected, rtol=1e-3, atol=1e-6)


def test_an_agent_learns_with_squashed_numbers_and_from_actions_at_their_bounds() -> None:
    """Every update refuses a first ratio that is not 1."""
    agent = Agent("Pendulum-v1", envs=4, policy=sizes(box="squashed"), ppo=settings(epochs=1))
    agent.train(1024)
    action, _ = agent.predict(np.array([1.0, 0.0, 9.0], np.float32))
    assert -2 < action[0] < 2
    # As an expert pushes: with all its force.
    episode = np.eye(3, dtype=np.float32), np.array([[2.0], [-2.0], [2.0]], np.float32)
    log_probs = agent.imitate([episode], epochs=20)
    assert np.isfinite(log_probs).all() and log_probs[-1] > log_probs[0]


def test_what_the_environment_gets_is_in_its_units_and_within_its_bounds() -> None:
    actions = torch.tensor([[2.0, 1.0, -1.0, 7.0], [0.0, -3.0, 0.5, -7.0]])
    assert HYBRID.dtype == torch.float32 and HYBRID.width == 4
    assert HYBRID.column_names == ["op", "power", "place.0", "place.1"]
    own = HYBRID.to_env(actions)
    assert own.tolist() == [[2.0, 10.0, -1.0, 7.0], [0.0, 0.0, 2.0, -7.0]]
    assert HYBRID.from_env(own)[1].tolist() == [0.0, -1.0, 0.5, -7.0]
    assert math.isnan(HYBRID.to_env(torch.full((4,), math.nan))[1])
