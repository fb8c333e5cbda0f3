"""The network of the reference against torch's own cells and layers, and against probabilities done by hand."""

import math

import pytest
import torch
from torch import nn

from simic.audit.reference.agent.adam import Optimized, Rule, norm
from simic.audit.reference.agent.initial import initial_weights
from simic.audit.reference.agent.interface import Interface
from simic.audit.reference.agent.network import Network64, gru, layer_norm, lstm
from simic.audit.reference.agent.scales import Tally64, discounted, reward_scale, seen
from simic.params import Policy

SPECS = {
    "action": {
        "heads": [
            {"name": "op", "size": 2, "mask_given": "nothing", "lean": [2.0, -1.0], "described": 0},
            {"name": "slot", "size": 3, "mask_given": "op", "lean": [], "described": 0},
            {"name": "kind", "size": 2, "mask_given": "slot", "lean": [], "described": 1},
        ],
        "relevance": [[True, False, False], [True, True, True]],
    },
    "observation": {"features": 2, "raw": [False, True], "categories": 1, "cardinality": 2, "told": 1},
}
MASKS = {
    "op": [True, True],
    "slot": [[True] * 3, [True, False, True]],
    "kind": [[True, True], [True, True], [False, True]],
}


TRUNK, KINDS, TOLD_UNITS = 4 + 5, 2, 3  # encoder and memory; of the embedding of what the critic is told
READ = TRUNK + KINDS  # by heads: what is known of each kind, too


def drawn(*shape: int) -> torch.Tensor:
    return torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) * 1.7 + sum(shape)).reshape(shape)


def network(core="lstm", critic="own") -> Network64:
    trunk = {
        "category.weight": (3, 2), "encoder.weight": (4, 4), "encoder.bias": (4,),
        "core.rnn.weight_ih_l0": (20, 4), "core.rnn.weight_hh_l0": (20, 5),
        "core.rnn.bias_ih_l0": (20,), "core.rnn.bias_hh_l0": (20,), "core_norm.weight": (5,), "core_norm.bias": (5,),
    }  # fmt: skip
    shapes = {f"{name}.{part}": shape for name in ("actor", "critic") for part, shape in trunk.items()}
    reads = TOLD_UNITS + (TRUNK if critic == "own" else READ + 2)  # a detached critic reads the features too
    for head, size, width in (
        ("heads.0", 2, READ),
        ("heads.1", 3, READ),
        ("heads.2", 2, READ),
        ("value_head", 1, reads),
    ):
        shapes |= {f"{head}.hidden.weight": (4, width), f"{head}.hidden.bias": (4,)}
        shapes |= {f"{head}.out.weight": (size, 4), f"{head}.out.bias": (size,)}
    shapes |= {"heads.2.query.weight": (1, 4), "heads.2.query.bias": (1,)}
    shapes |= {"given.0": (2, READ), "given.1": (3, READ), "told.weight": (4, TOLD_UNITS)}
    weights = {name: 0.3 * drawn(*shape) + 0.003 * place for place, (name, shape) in enumerate(shapes.items())}
    sizes = Policy(encoder_units=4, core=core, core_units=5, head_units=4, critic=critic, embedding_units=2)
    return Network64(weights, Interface.of(SPECS), sizes)


@pytest.mark.parametrize(("cell", "theirs", "gates"), [(lstm, nn.LSTMCell, 4), (gru, nn.GRUCell, 3)])
def test_cells_are_torchs(cell, theirs, gates):
    other = theirs(3, 5).double()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(drawn(*parameter.shape))
    x, h, c = drawn(3), drawn(5), drawn(5) * 2
    ih, hh = other.weight_ih @ x + other.bias_ih, other.weight_hh @ h + other.bias_hh
    expected = other(x[None], (h[None], c[None])) if gates == 4 else (other(x[None], h[None]), c[None])
    for own, their in zip(cell(ih, hh, (h, c)), expected, strict=True):
        torch.testing.assert_close(own, their[0], rtol=0, atol=1e-14)


def test_norm_is_torchs():
    other = nn.LayerNorm(5).double()
    weights = {"n.weight": drawn(5), "n.bias": drawn(5) + 1}
    other.load_state_dict({"weight": weights["n.weight"], "bias": weights["n.bias"]})
    torch.testing.assert_close(layer_norm(weights, "n", drawn(2, 5)), other(drawn(2, 5)), rtol=0, atol=1e-14)


def test_memory_is_empty_where_an_episode_starts():
    features, categories, told = drawn(4, 2), torch.tensor([[0], [1], [-1], [0]]), torch.zeros(4, 1, dtype=torch.int64)
    whole, values = network().read(features, categories, told, [True, False, True, False])
    again, of_again = network().read(features[2:], categories[2:], told[2:], [True, False])
    torch.testing.assert_close((whole[2:], values[2:]), (again, of_again), rtol=0, atol=1e-13)
    goes_on, _ = network().read(features, categories, told, [True, False, False, False])
    assert not torch.allclose(goes_on[2], whole[2])
    # Beside the memory heads read the encoder, which remembers nothing.
    assert torch.equal(goes_on[2, :4], whole[2, :4])


@pytest.mark.parametrize("critic", ["own", "detached"])
def test_the_value_pulls_at_its_own_trunk_or_at_none(critic):
    policy, nothing = network(critic=critic), torch.zeros(1, 1, dtype=torch.int64)
    for weight in policy.weights.values():
        weight.requires_grad_()
    _, values = policy.read(drawn(1, 2), nothing, nothing, [True])
    found = torch.autograd.grad(values.sum(), list(policy.weights.values()), allow_unused=True)
    pulled = {name.partition(".")[0] for name, grad in zip(policy.weights, found, strict=True) if grad is not None}
    assert pulled == {"value_head", "told"} | ({"critic"} if critic == "own" else set())


def test_only_the_value_depends_on_what_the_critic_is_told():
    seen_row, nothing = (drawn(1, 2), torch.zeros(1, 1, dtype=torch.int64)), torch.full((1, 1), -1)
    (z, value), (other, of_other) = (network().read(*seen_row, told, [True]) for told in (nothing, nothing + 2))
    assert torch.equal(z, other) and value != of_other


def test_an_action_has_only_the_factors_its_op_uses():
    policy, z = network(), drawn(READ)
    waiting = policy.judge(z, MASKS, [0, 0, 0])
    assert waiting.log_probs[1:].tolist() == waiting.entropy[1:].tolist() == [0.0, 0.0]
    assert waiting.options == (2, 0, 0)
    both = waiting.log_probs[0].exp() + policy.judge(z, MASKS, [1, 0, 0]).log_probs[0].exp()
    assert float(both) == pytest.approx(1.0, abs=1e-15)


def test_probabilities_of_what_is_legal_sum_to_one():
    policy, z = network(), drawn(READ)
    slots = [policy.judge(z, MASKS, [1, slot, 1]).log_probs[1].exp() for slot in (0, 2)]
    assert float(sum(slots)) == pytest.approx(1.0, abs=1e-15)
    one_left = policy.judge(z, MASKS, [1, 2, 1])
    assert one_left.options == (2, 2, 1) and float(one_left.log_probs[2]) == float(one_left.entropy[2]) == 0.0


def test_what_is_not_legal_is_equal_to_nothing():
    assert network().judge(drawn(READ), MASKS, [1, 1, 0]).log_probs[1].isnan()
    nowhere = MASKS | {"slot": [[True] * 3, [False] * 3]}
    assert network().judge(drawn(READ), nowhere, [1, 0, 0]).log_probs[1].isnan()


def test_later_factors_know_the_op_and_the_slot():
    policy, z = network(), drawn(READ)
    free = {"op": [True, True]}
    kinds = {slot: float(policy.judge(z, free, [1, slot, 0]).log_probs[2]) for slot in range(3)}
    assert len(set(kinds.values())) == 3
    weights = dict(policy.weights) | {"given.1": torch.zeros(3, READ, dtype=torch.float64)}
    plain = Network64(weights, policy.interface, policy.sizes)
    assert len({float(plain.judge(z, free, [1, slot, 0]).log_probs[2]) for slot in range(3)}) == 1


def test_what_is_known_of_a_kind_counts_by_one_query_for_all_kinds():
    policy, z = network(), drawn(READ)
    w = policy.weights
    told = z + w["given.0"][1] + w["given.1"][0]
    units = torch.tanh(w["heads.2.hidden.weight"] @ told + w["heads.2.hidden.bias"])
    query = (w["heads.2.query.weight"] @ units + w["heads.2.query.bias"]).item()
    logits = w["heads.2.out.weight"] @ units + w["heads.2.out.bias"] + z[-KINDS:] * query
    found = [float(policy.judge(z, {"op": [True, True]}, [1, 0, kind]).log_probs[2]) for kind in range(KINDS)]
    assert found == pytest.approx(torch.log_softmax(logits, 0).tolist(), abs=1e-14) and abs(query) > 0.01


def test_a_step_is_torchs_adam_behind_a_clipped_norm():
    """Weights [3], gradient [3, 4] of norm 5 clipped to 1: [0.6, 0.8]."""
    weights, gradient = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}, torch.tensor([3.0, 4.0]).double()
    zero = {"w": torch.zeros(2, dtype=torch.float64)}
    assert norm({"w": gradient}) == 5.0
    own = Optimized(weights, zero, zero, 0)
    parameter = nn.Parameter(weights["w"].clone())
    theirs = torch.optim.Adam([parameter], lr=0.01, eps=1e-5)
    for _ in range(3):
        own = own.stepped({"w": gradient}, 5.0, Rule(0.01, 1e-5, 1.0))
        parameter.grad = gradient / 5.0
        theirs.step()
    torch.testing.assert_close(own.weights["w"], parameter.data, rtol=0, atol=1e-14)
    assert own.steps == 3 and own.first["w"][0] == pytest.approx(0.6 * (1 - 0.9**3))


def test_scales_are_those_of_all_rows_and_leave_flags_alone():
    """Rows 1 and 3 (mean 2, σ 1), then 8: mean 4, Σ(x − 4)² = 9 + 1 + 16. A row with a NaN is none."""
    nothing = Tally64(0.0, torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    tally = nothing.with_rows(torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=torch.float64))
    tally = tally.with_rows(torch.tensor([[8.0, 0.0], [math.nan, 0.0]], dtype=torch.float64))
    assert (tally.count, tally.mean.tolist(), tally.squares.tolist()) == (3.0, [4.0, 0.0], [26.0, 0.0])
    found = seen(torch.tensor([[4.0, 77.0], [1e9, -77.0]], dtype=torch.float64), tally, (False, True))
    assert found.tolist() == [[0.0, 77.0], [10.0, -77.0]]
    assert seen(torch.tensor([[4.0, 77.0]], dtype=torch.float64), nothing, (False, True)).tolist() == [[4.0, 77.0]]


def test_rewards_are_scaled_by_what_returns_vary():
    """R = 1, then ½ + 2 = 2.5; a start forgets: 2."""
    assert discounted([1.0, 2.0], [True, False], 9.0, 0.5) == [1.0, 2.5]
    assert discounted([1.0, 2.0], [True, True], 9.0, 0.5) == [1.0, 2.0]
    one, four = torch.ones(1, dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64)
    assert reward_scale(Tally64(2.0, one, four)) == math.sqrt(2.0)
    assert reward_scale(Tally64(2.0, one, four * 0)) == 0.01 and reward_scale(Tally64(0.0, one, four)) == 1.0


def test_a_policy_begins_with_orthogonal_layers_of_their_gains():
    shapes = {"actor.encoder.weight": (4, 6), "heads.0.out.weight": (3, 8), "heads.1.out.bias": (3,), "given.0": (2, 8)}
    found = initial_weights(shapes | {"heads.0.out.bias": (2,)}, Interface.of(SPECS).factors, 8, 1)
    encoder, out = found["actor.encoder.weight"], found["heads.0.out.weight"]
    torch.testing.assert_close(encoder @ encoder.T, 2.0 * torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(out @ out.T, 1e-4 * torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-14)
    assert not found["heads.1.out.bias"].any() and not found["given.0"].any()
    assert found["heads.0.out.bias"].tolist() == [2.0, -1.0]
