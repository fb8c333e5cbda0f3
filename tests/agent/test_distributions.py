"""Hierarchical masked categoricals. Their probabilities and entropies are held against the reference: tests/certify."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from simic import rng
from simic.agent import distributions
from simic.agent.policy import ActorCritic
from simic.agent.ppo import k3
from simic.agent.spec import Observation
from simic.errors import SimicError

from .worlds import BLUEPRINTS, FEATURES, HIERARCHY, SLOTS, SMALL, make_policy, random_masks

STATES = 6


def grammar() -> list[tuple[int, ...]]:
    """Every distinct action of HIERARCHY, heads that an op does not use at 0."""
    rows = []
    for op, used in enumerate(HIERARCHY.relevance):
        sizes = [range(head.size) if use else (0,) for head, use in zip(HIERARCHY.heads, used, strict=True)]
        rows += [(op, *rest) for rest in product(*sizes[1:])]
    return rows


@pytest.fixture
def states() -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    # Heads read the encoder's output beside the core's, and what is known of blueprints.
    width = SMALL.encoder_units + SMALL.core_units + BLUEPRINTS
    return torch.randn(STATES, width, generator=generator).double(), random_masks(3, STATES)


@pytest.fixture
def policies() -> tuple[ActorCritic, ActorCritic]:
    old, new = make_policy().double(), make_policy().double()
    with torch.no_grad():
        for index, parameter in enumerate(new.parameters()):
            parameter += 0.2 * rng.normal(rng.key(2, rng.Purpose.BASELINE, index), tuple(parameter.shape))
    return old, new


def log_probs(policy: ActorCritic, z: Tensor, masks: dict[str, Tensor], actions: Tensor) -> Tensor:
    choices = policy.choose(z, masks, actions=actions)
    return torch.stack([choice.log_prob() for choice in choices], dim=-1)


def test_k3_summed_over_heads_is_the_joint_divergence_in_expectation(states, policies) -> None:
    """And that is exactly what the sum over all actions says."""
    z, masks = states
    divergence = policies[0].joint(z, masks).kl(policies[1].joint(z, masks))
    actions = torch.tensor(grammar())
    for row in range(STATES):
        rows = {name: mask[row].expand(len(actions), *mask.shape[1:]) for name, mask in masks.items()}
        old, new = (log_probs(policy, z[row].expand(len(actions), -1), rows, actions) for policy in policies)
        p = old.sum(dim=-1).exp()
        legal, exact = p > 0, divergence[row].item()
        assert p.sum().item() == pytest.approx(1.0, rel=1e-9) and exact > 1e-4  # the two policies do differ
        assert (p * (old - new).sum(dim=-1))[legal].sum().item() == pytest.approx(exact, rel=1e-8)
        assert (p[:, None] * k3(new - old))[legal].sum().item() == pytest.approx(exact, rel=1e-8)


def test_k3_of_samples_estimates_the_divergence(states, policies) -> None:
    """1e5 actions of one state, drawn as acting draws them: within 4 standard errors, and nowhere negative."""
    z, masks = states
    draws, row = 100_000, 1
    old, new = policies
    rows = {name: mask[row].expand(draws, *mask.shape[1:]) for name, mask in masks.items()}
    noise = rng.uniform(rng.key(11, rng.Purpose.BASELINE, torch.arange(draws)), (4,))
    with torch.no_grad():
        choices = old.choose(z[row].expand(draws, -1), rows, noise=noise)
        actions = torch.stack([choice.index for choice in choices], dim=-1)
        difference = log_probs(new, z[row].expand(draws, -1), rows, actions) - log_probs(
            old, z[row].expand(draws, -1), rows, actions
        )
        exact = old.joint(z, masks).kl(new.joint(z, masks))[row]
    for estimate in (k3(difference).sum(dim=-1), k3(difference.sum(dim=-1))):  # by head, and of the whole action
        assert estimate.min() >= 0
        assert abs(estimate.mean() - exact) < 4 * estimate.std() / math.sqrt(draws)
    assert exact > 1e-3


def test_irrelevant_heads_contribute_exactly_nothing(states, policies) -> None:
    z, masks = states
    policy = policies[0]
    choices = policy.choose(z, masks, actions=torch.zeros(STATES, 4, dtype=torch.int64))  # op 0 uses no other head
    for choice in choices[1:]:
        assert torch.equal(choice.log_prob(), torch.zeros(STATES, dtype=torch.float64))
        assert torch.equal(choice.normalized_entropy(), torch.zeros(STATES, dtype=torch.float64))
    loss = sum((choice.log_prob() + choice.normalized_entropy()).sum() for choice in choices)
    loss.backward()
    for name, parameter in policy.named_parameters():
        if name.startswith(("heads.1", "heads.2", "heads.3", "given")):
            assert parameter.grad is not None
            assert not parameter.grad.any(), name
        if name.startswith("heads.0"):
            assert parameter.grad is not None
            assert parameter.grad.any(), name


def test_a_refused_combination_is_named(states, policies) -> None:
    z, masks = states
    masks["slot"][2] = False
    masks["op"][2] = torch.tensor([False, False, True, False])  # op 2 needs a slot and has none
    choices = policies[0].choose(z, masks)
    with pytest.raises(SimicError, match=r"'slot'.*forbids every choice"):
        distributions.refuse_faults(HIERARCHY, choices)


def test_acting_on_an_empty_mask_or_a_broken_policy_raises_naming_the_head() -> None:
    policy, masks = make_policy(), random_masks(1, 2)
    observation = Observation(torch.zeros(2, FEATURES), torch.zeros(2, SLOTS, dtype=torch.int64), masks)
    masks["op"][1] = False
    with pytest.raises(SimicError, match=r"'op'.*forbids every choice"):
        policy.act(observation, policy.initial_state(2), torch.zeros(2, 4))
    policy.act(observation, policy.initial_state(2), torch.zeros(2, 4), valid=torch.tensor([True, False]))
    masks["op"][1] = True
    observation.features[0, 0] = torch.nan
    with pytest.raises(SimicError, match=r"'op'.*not finite"):
        policy.act(observation, policy.initial_state(2), torch.zeros(2, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1400])
def test_masked_probability_is_exactly_zero_for_any_logits(dtype: torch.dtype, size: int) -> None:
    """Twenty thousand random cases, whatever stands where a choice is forbidden; no NaN anywhere."""
    generator = torch.Generator().manual_seed(size)
    for scale, forbidden in product((0.0, 1e-3, 1.0, 30.0, 100.0, 1e3, 6e4), (torch.inf, -torch.inf, None)):
        logits = (scale * torch.randn(40, size, generator=generator)).clamp(-6.5e4, 6.5e4).to(dtype)
        mask = torch.rand(40, size, generator=generator) < torch.rand(40, 1, generator=generator)
        mask[torch.arange(40), torch.randint(size, (40,), generator=generator)] = True
        if forbidden is not None:
            logits = logits.masked_fill(~mask, forbidden)
        logits.requires_grad_()
        found = distributions.masked_log_softmax(logits, mask)
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        probabilities = found.exp()
        assert not found.isnan().any() and not probabilities[~mask].any()
        assert torch.allclose(probabilities.sum(dim=-1), torch.ones(40, dtype=found.dtype), atol=1e-5)
        entropy = distributions.entropy(found)
        assert entropy.isfinite().all() and not entropy[mask.sum(dim=-1) == 1].any()
        assert not distributions.divergence(found, found.roll(1, dims=0)).isnan().any()
        (entropy.sum() + found[mask].clamp(min=-50).sum()).backward()
        assert logits.grad is not None
        assert logits.grad.isfinite().all() and not logits.grad[~mask].any()
        noise = torch.rand(40, generator=generator)
        assert mask[torch.arange(40), distributions.sample(found.detach(), noise)].all()


def test_samples_are_the_inverse_of_the_cumulative_distribution() -> None:
    probabilities = torch.tensor([0.2, 0.0, 0.5, 0.3])
    grid = (torch.arange(1000) + 0.5) / 1000
    chosen = distributions.sample(probabilities.log().expand(1000, -1), grid)
    assert torch.equal(chosen, torch.cat((torch.zeros(200), torch.full((500,), 2), torch.full((300,), 3))).long())
    edges = distributions.sample(probabilities.log().expand(2, -1), torch.tensor([0.0, 1 - 2.0**-24]))
    assert edges.tolist() == [0, 3]
