"""The actor-critic."""

import math
from dataclasses import replace

import pytest
import torch

from simic.agent.core import CELL, Core, GatedRows, RecurrentState
from simic.agent.policy import ActorCritic
from simic.agent.spec import ActionSpec, Observation

from .worlds import (
    FEATURES,
    HIERARCHY,
    SEEN,
    SLOTS,
    SMALL,
    TensorWorld,
    episodes,
    make_policy,
    make_rollout,
    random_masks,
    rescore,
)


def observe(rows: int, seed: int = 0) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    categories = torch.randint(-1, 4, (rows, SLOTS), generator=generator)
    return Observation(
        torch.randn(rows, FEATURES, generator=generator), categories, random_masks(seed, rows)
    )


def test_sampled_actions_are_always_legal_and_unused_heads_zero() -> None:
    policy = make_policy()
    generator = torch.Generator().manual_seed(2)
    observation = observe(500, seed=3)
    step = policy.act(
        observation, policy.initial_state(500), torch.rand(500, 4, generator=generator)
    )
    row = torch.arange(500)
    op, slot, blueprint, style = step.actions.unbind(dim=1)
    assert observation.masks["op"][row, op].all()
    uses_slot = (op == 1) | (op == 2)
    assert observation.masks["slot"][row, op, slot][uses_slot].all()
    assert observation.masks["blueprint"][row, slot, blueprint][op == 1].all()
    assert not slot[~uses_slot].any() and not blueprint[op != 1].any()
    assert not style[(op != 1) & (op != 3)].any() and (torch.bincount(op, minlength=4) > 0).all()
    assert torch.allclose(step.joint, step.log_probs.sum(dim=1))


def test_nobody_acts_greedily_by_leaving_the_noise_out() -> None:
    policy = make_policy()
    with pytest.raises(TypeError, match="noise"):
        policy.act(observe(2, seed=3), policy.initial_state(2))  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_no_weight_is_without_effect(heads: int) -> None:
    policy = make_policy(spec=ActionSpec.discrete(*(3,) * heads))
    readings, _ = policy.step(observe(2, seed=3), policy.initial_state(2))
    logits = [choice.logits.sum() for choice in policy.choose(readings.actor.z, {})]
    outputs = [*logits, policy.state_value(readings.value).sum()]
    for name, parameter in policy.named_parameters():
        gradients = [
            torch.autograd.grad(output, parameter, retain_graph=True, allow_unused=True)[0]
            for output in outputs
        ]
        assert any(gradient is not None for gradient in gradients), name


def test_weights_are_orthogonal_with_the_documented_gains_and_memories_uniform() -> None:
    policy = ActorCritic(HIERARCHY, SEEN, SMALL, rng_seed=1)
    for gain, layer in (
        (math.sqrt(2), policy.actor.encoder),
        (math.sqrt(2), policy.critic.encoder),
        (math.sqrt(2), policy.heads[0].hidden),
        (0.01, policy.heads[2].out),
        (1.0, policy.value_head.out),
        (math.sqrt(2), policy.value_head.hidden),
    ):
        weight = layer.weight.detach()
        gram = weight @ weight.t() if weight.shape[0] <= weight.shape[1] else weight.t() @ weight
        assert (
            torch.allclose(gram, gain**2 * torch.eye(len(gram)), atol=1e-5) and not layer.bias.any()
        )
    bound = SMALL.core_units**-0.5
    for tensor in policy.actor.core.rnn.parameters():
        assert 0.8 * bound < tensor.abs().max() <= bound
        assert tensor.mean().abs() < 0.3 * bound
    assert torch.equal(policy.actor.core_norm.weight, torch.ones(SMALL.core_units))
    assert not policy.choice_embeddings[0].any() and not policy.choice_embeddings[1].any()


@pytest.mark.parametrize("core", ["lstm", "gru", "transformer", "none"])
@pytest.mark.parametrize("critic", ["own", "detached"])
def test_replay_of_a_rollout_gives_the_log_probabilities_of_acting(critic: str, core: str) -> None:
    """And the values; and no critic pulls at the actor."""
    policy = make_policy(core, sizes=SMALL.model_copy(update={"critic": critic}))
    rollout = make_rollout(policy, episodes(6, 8), 8)
    rescored = rescore(policy, rollout)
    assert torch.allclose(rescored.log_probs, rollout.log_probs, atol=1e-5)
    torch.testing.assert_close(
        rescored.values[rollout.valid], rollout.values[rollout.valid], rtol=0, atol=1e-5
    )
    assert rollout.log_probs.count_nonzero() > 20

    def reached(loss: torch.Tensor) -> set[str]:
        gradients = torch.autograd.grad(
            loss, list(policy.parameters()), retain_graph=True, allow_unused=True
        )
        pairs = zip(dict(policy.named_parameters()), gradients, strict=True)
        return {
            name.partition(".")[0]
            for name, gradient in pairs
            if gradient is not None and gradient.any()
        }

    assert reached(rescored.values.sum()) == (
        {"critic", "value_head"} if critic == "own" else {"value_head"}
    )
    assert reached(rescored.log_probs.sum()) == {"actor", "heads", "choice_embeddings"}


def make_core(kind: str) -> Core:
    generator = torch.Generator().manual_seed(1)
    core = Core(kind, 6, 5, window=4)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return core


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_single_steps_equal_one_call_over_the_row(kind: str) -> None:
    generator = torch.Generator().manual_seed(2)
    core = make_core(kind)
    x = torch.randn(11, 4, 6, generator=generator)
    starts = torch.rand(11, 4, generator=generator) < 0.2
    starts[0, 0] = True
    state = RecurrentState(*(part + 0.5 for part in core.initial_state(4, x)))
    row = core.unroll(x, state, starts)
    # The memory is wiped where an episode starts.
    for t in range(11):
        output, state = core.step(x[t], state.zeroed(starts[t]))
        assert torch.allclose(output, row[t], atol=1e-6)


def test_gradients_do_not_cross_an_episode_start() -> None:
    core = make_core("lstm")
    x = torch.randn(6, 2, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True
    core.unroll(x, core.initial_state(2, x), starts)[5].sum().backward()
    assert x.grad is not None
    assert not x.grad[:3, 0].any() and x.grad[:3, 1].any()
    assert x.grad[3:, 0].any()


KINDS = 4
PRIVILEGED = replace(SEEN, privileged=1, privileged_cardinality=KINDS)


class WorldOfKinds(TensorWorld):
    """Every environment has a kind, ``first`` more than its number; -1 is none."""

    first = 0

    def observation(self, shift: int = 0) -> Observation:
        kinds = (self.env_ids + self.first) % (KINDS + 1) - 1
        return replace(super().observation(shift), privileged=kinds[:, None])


@pytest.mark.parametrize("critic", ["own", "detached"])
def test_the_kind_of_a_task_changes_values_and_no_action_nor_its_gradient(critic: str) -> None:
    policy = make_policy(seen=PRIVILEGED, sizes=SMALL.model_copy(update={"critic": critic}))
    world = WorldOfKinds(list(range(6)), episodes(6, 8).ends)
    rollout = make_rollout(policy, world, 8)
    world.first = 1
    shifted = make_rollout(policy, world, 8)
    assert torch.equal(rollout.actions, shifted.actions)
    assert torch.equal(rollout.log_probs, shifted.log_probs)
    assert (rollout.values != shifted.values)[rollout.valid].all()
    # Gradients: none of the actions, and of the values one for every kind, and for none.
    weight = policy.privileged.weight
    outputs = rescore(policy, rollout)
    for output in (outputs.log_probs, outputs.entropy):
        assert torch.autograd.grad(output.sum(), weight, retain_graph=True, allow_unused=True) == (
            None,
        )
    [gradient] = torch.autograd.grad(outputs.values.sum(), weight)
    assert (gradient.abs().sum(1) > 0).all()


def test_the_gated_unit_over_rows_is_that_of_torch() -> None:
    """Outputs and all gradients, that of the first memory included."""
    torch.manual_seed(1)
    layer = torch.nn.GRU(3, 4, dtype=torch.float64)
    x = torch.randn(6, 5, 3, dtype=torch.float64, requires_grad=True)
    state = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    weights = [layer.get_parameter(name) for name in CELL]
    inputs = (x, state, *weights)
    pull = torch.randn(6, 5, 4, dtype=torch.float64)
    outputs = (layer(x, state[None])[0], GatedRows.apply(x, state, *weights))
    torch.testing.assert_close(*outputs)
    gradients = [torch.autograd.grad((output * pull).sum(), inputs) for output in outputs]
    torch.testing.assert_close(*gradients)
