"""Hierarchical masked categoricals against enumeration in plain Python."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from simic import rng
from simic.agent import distributions
from simic.agent.losses import k3
from simic.agent.policy import ActorCritic
from simic.agent.spec import ActionSpec, Head, Observation, ObservationSpec
from simic.errors import SimicError

from .worlds import BLUEPRINTS, FEATURES, HIERARCHY, SLOTS, SMALL, make_policy, random_masks

STATES = 6


def grammar() -> list[tuple[int, ...]]:
    """Every distinct action of HIERARCHY, heads that an op does not use at 0."""
    rows = []
    for op, relevant in enumerate(HIERARCHY.relevance):
        sizes = [
            range(head.size) if use else (0,)
            for head, use in zip(HIERARCHY.heads, relevant, strict=True)
        ]
        rows += [(op, *rest) for rest in product(*sizes[1:])]
    return rows


def head_probabilities(
    policy: ActorCritic, z: Tensor, masks: dict[str, Tensor], action: tuple[int, ...]
) -> list[dict]:
    """Softmax over the legal choices only, head by head, of one state; heads that do not matter are left out."""
    op, slot = action[:2]
    given_op, given_slot = policy.choice_embeddings
    uses_slot = HIERARCHY.relevance[op][1]
    inputs = [z, z + given_op[op], z + given_op[op] + (given_slot[slot] if uses_slot else 0)]
    legal = [
        masks["op"],
        masks["slot"][op],
        masks["blueprint"][slot],
        torch.ones(2, dtype=torch.bool),
    ]
    result = []
    for k, relevant in enumerate(HIERARCHY.relevance[op]):
        if not relevant:
            continue
        head = policy.heads[k]
        read = inputs[min(k, 2)]
        [logits] = head(read[None]).tolist()
        if k == 2:
            query = head.query(head.hidden(read).tanh()).item()
            logits = [
                logit + about * query
                for logit, about in zip(logits, z[-BLUEPRINTS:].tolist(), strict=True)
            ]
        exponents = {i: math.exp(logits[i]) for i in range(len(logits)) if legal[k][i]}
        total = sum(exponents.values())
        result.append(
            {i: value / total for i, value in exponents.items()} | {"taken": action[k], "head": k}
        )
    return result


def enumerate_actions(
    policy: ActorCritic, z: Tensor, masks: dict[str, Tensor]
) -> dict[tuple[int, ...], float]:
    """Probability of every legal action."""
    table = {}
    for action in grammar():
        probability = 1.0
        for head in head_probabilities(policy, z, masks, action) if masks["op"][action[0]] else []:
            probability *= head.get(head["taken"], 0.0)
        if masks["op"][action[0]] and probability > 0:
            table[action] = probability
    return table


@pytest.fixture
def states() -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    # Heads read the encoder's output beside the core's, and what is known of blueprints.
    width = SMALL.encoder_units + SMALL.core_units + BLUEPRINTS
    return torch.randn(STATES, width, generator=generator).double(), random_masks(3, STATES)


@pytest.fixture
def policies() -> tuple[ActorCritic, ActorCritic]:
    old = make_policy().double()
    new = make_policy().double()
    with torch.no_grad():
        for index, parameter in enumerate(new.parameters()):
            parameter += 0.2 * rng.normal(
                rng.key(2, rng.Purpose.BASELINE, index), tuple(parameter.shape)
            )
    return old, new


def log_probs(policy: ActorCritic, z: Tensor, masks: dict[str, Tensor], actions: Tensor) -> Tensor:
    choices = policy.choose(z, masks, actions=actions)
    return torch.stack([choice.log_prob() for choice in choices], dim=-1)


def at(masks: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: mask[row] for name, mask in masks.items()}


def repeated(
    states: tuple[Tensor, dict[str, Tensor]], row: int, times: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """One state for many actions."""
    z, masks = states
    return z[row].expand(times, -1), {
        name: mask[row].expand(times, *mask.shape[1:]) for name, mask in masks.items()
    }


def test_joint_log_probability_equals_enumeration(states, policies) -> None:
    for row in range(STATES):
        table = enumerate_actions(policies[0], states[0][row], at(states[1], row))
        assert math.isclose(sum(table.values()), 1.0, rel_tol=1e-9)
        joint = log_probs(
            policies[0], *repeated(states, row, len(table)), torch.tensor(list(table))
        ).sum(dim=-1)
        assert torch.allclose(
            joint.exp(), torch.tensor(list(table.values()), dtype=torch.float64), rtol=1e-9
        )


def test_k3_summed_over_heads_is_the_joint_divergence_in_expectation(states, policies) -> None:
    for row in range(STATES):
        p, q = (
            enumerate_actions(policy, states[0][row], at(states[1], row)) for policy in policies
        )
        exact = sum(p[a] * math.log(p[a] / q[a]) for a in p)
        rows = repeated(states, row, len(p))
        actions = torch.tensor(list(p))
        old, new = (log_probs(policy, *rows, actions) for policy in policies)
        expected = (
            torch.tensor(list(p.values()), dtype=torch.float64)[:, None] * k3(new - old)
        ).sum()
        assert math.isclose(expected.item(), exact, rel_tol=1e-8)
        assert exact > 1e-4  # the two policies do differ


def test_k3_of_samples_estimates_the_divergence(states, policies) -> None:
    """1e5 actions of one state, drawn as acting draws them: within 4 standard errors, and nowhere negative."""
    draws = 100_000
    row = 1
    old, new = policies
    rows = repeated(states, row, draws)
    noise = rng.uniform(rng.key(11, rng.Purpose.BASELINE, torch.arange(draws)), (4,))
    with torch.no_grad():
        actions = torch.stack([choice.index for choice in old.choose(*rows, noise=noise)], dim=-1)
        difference = log_probs(new, *rows, actions) - log_probs(old, *rows, actions)
    p, q = (enumerate_actions(policy, states[0][row], at(states[1], row)) for policy in policies)
    exact = sum(p[a] * math.log(p[a] / q[a]) for a in p)
    for estimate in (
        k3(difference).sum(dim=-1),
        k3(difference.sum(dim=-1)),
    ):  # by head, and of the whole action
        assert estimate.min() >= 0
        assert abs(estimate.mean() - exact) < 4 * estimate.std() / math.sqrt(draws)
    assert exact > 1e-3


def test_normalized_entropy_is_that_of_each_head_over_the_log_of_its_legal_choices(
    states, policies
) -> None:
    z, masks = states
    for action in ((1, 0, 0, 0), (2, 1, 0, 0), (3, 0, 0, 1)):
        for row in range(STATES):
            row_masks = at(masks, row)
            choices = policies[0].choose(z[row], row_masks, actions=torch.tensor(action))
            heads = {
                head["head"]: head
                for head in head_probabilities(policies[0], z[row], row_masks, action)
            }
            for k, choice in enumerate(choices):
                table = [p for i, p in heads[k].items() if isinstance(i, int)] if k in heads else []
                expected = (
                    -sum(p * math.log(p) for p in table) / math.log(len(table))
                    if len(table) > 1
                    else 0.0
                )
                entropy = choice.normalized_entropy()
                if table or k not in heads:  # an empty relevant mask is refused elsewhere
                    assert math.isclose(entropy.item(), expected, rel_tol=1e-9, abs_tol=1e-15)


def test_irrelevant_heads_contribute_exactly_nothing(states, policies) -> None:
    z, masks = states
    policy = policies[0]
    choices = policy.choose(
        z, masks, actions=torch.zeros(STATES, 4, dtype=torch.int64)
    )  # op 0 uses no other head
    for choice in choices[1:]:
        assert torch.equal(choice.log_prob(), torch.zeros(STATES, dtype=torch.float64))
        assert torch.equal(choice.normalized_entropy(), torch.zeros(STATES, dtype=torch.float64))
    loss = sum((choice.log_prob() + choice.normalized_entropy()).sum() for choice in choices)
    loss.backward()
    for name, parameter in policy.named_parameters():
        if name.startswith(("heads.1", "heads.2", "heads.3", "choice_embeddings")):
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
    policy = make_policy()
    masks = random_masks(1, 2)
    observation = Observation(
        torch.zeros(2, FEATURES), torch.zeros(2, SLOTS, dtype=torch.int64), masks
    )
    masks["op"][1] = False
    with pytest.raises(SimicError, match=r"'op'.*forbids every choice"):
        policy.act(observation, policy.initial_state(2), torch.zeros(2, 4))
    policy.act(
        observation, policy.initial_state(2), torch.zeros(2, 4), valid=torch.tensor([True, False])
    )
    masks["op"][1] = True
    policy.heads[0].out.bias.data[1] = torch.nan  # one logit of each row
    with pytest.raises(SimicError, match=r"'op'.*not finite"):
        policy.act(observation, policy.initial_state(2), torch.zeros(2, 4))


@pytest.mark.parametrize("masks", [{}, {"action": torch.ones(2, 3, dtype=torch.bool)}])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_policy_with_one_head_is_named_too(masks: dict, value: float) -> None:
    spec = ActionSpec((Head("action", 3),), ((True,),) * 3)
    policy = ActorCritic(spec, ObservationSpec(2), SMALL)
    observation = Observation(torch.zeros(2, 2), torch.zeros(2, 0, dtype=torch.int64), masks)
    policy.act(observation, policy.initial_state(2), torch.zeros(2, 1))
    policy.heads[0].out.bias.data[1] = value
    with pytest.raises(SimicError, match=r"'action'.*not finite"):
        policy.act(observation, policy.initial_state(2), torch.zeros(2, 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 3, 1400])
def test_masked_probability_is_exactly_zero_for_any_logits(dtype: torch.dtype, size: int) -> None:
    """Ten thousand random cases, whatever stands where a choice is forbidden; no NaN anywhere."""
    generator = torch.Generator().manual_seed(size)
    for scale, forbidden in product(
        (0.0, 1e-3, 1.0, 30.0, 100.0, 1e3, 6e4), (torch.inf, -torch.inf, None)
    ):
        logits = (scale * torch.randn(40, size, generator=generator)).clamp(-6.5e4, 6.5e4).to(dtype)
        mask = torch.rand(40, size, generator=generator) < torch.rand(40, 1, generator=generator)
        mask[torch.arange(40), torch.randint(size, (40,), generator=generator)] = True
        if forbidden is not None:
            logits = logits.masked_fill(~mask, forbidden)
        logits.requires_grad_()
        log_probabilities = distributions.masked_log_softmax(logits, mask)
        assert log_probabilities.dtype == (
            torch.float64 if dtype == torch.float64 else torch.float32
        )
        probabilities = log_probabilities.exp()
        assert not log_probabilities.isnan().any() and not probabilities[~mask].any()
        assert torch.allclose(
            probabilities.sum(dim=-1), torch.ones(40, dtype=log_probabilities.dtype), atol=1e-5
        )
        entropy = distributions.entropy(log_probabilities)
        assert entropy.isfinite().all() and not entropy[mask.sum(dim=-1) == 1].any()
        (entropy.sum() + log_probabilities[mask].clamp(min=-50).sum()).backward()
        assert logits.grad is not None
        assert logits.grad.isfinite().all() and not logits.grad[~mask].any()
        noise = torch.rand(40, generator=generator)
        assert mask[torch.arange(40), distributions.sample(log_probabilities.detach(), noise)].all()


def test_samples_are_the_inverse_of_the_cumulative_distribution() -> None:
    log_probs = torch.tensor([0.2, 0.0, 0.5, 0.3]).log()
    noise = torch.tensor([0.0, 0.199, 0.201, 0.699, 0.701, 1 - 2.0**-24])
    chosen = distributions.sample(log_probs.expand(len(noise), -1), noise)
    assert chosen.tolist() == [0, 0, 2, 2, 3, 3]
