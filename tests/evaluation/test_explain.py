"""Why a decision was made: how likely each choice was, and what the decision hangs on."""

import pytest
import torch
from hand_made import FIRST_STEP, hand_made
from tiny import tiny_env

from simic.agent.policy import ActorCritic
from simic.envs.observations import columns
from simic.evaluation import explain
from simic.evaluation.explain import choices, occlusion
from simic.growth.life.vocabulary import Op
from tests.standard import Policy

STEPS = 20


@pytest.fixture(scope="module")
def shown(bank):
    env = tiny_env(bank, 1, episode_steps=STEPS, batches_per_epoch=1)
    return env, env.reset()[0]


def test_a_decision_hangs_on_what_the_policy_reads_and_on_nothing_else(shown):
    """The hand-made policy reads the flag of the first step: without it, it would have waited."""
    env, seen = shown
    actor = hand_made(env.action_spec, env.observation_spec)
    state = actor.policy.initial_state(1)
    own = actor.policy.act(seen, state, greedy=True)
    found = occlusion(actor.policy, seen, state, own.actions)
    assert found[0][0] == FIRST_STEP
    turned = seen.features.clone()
    turned[
        0, [name for name, _ in columns(env.host.slots, len(env.blueprints))].index(FIRST_STEP)
    ] = 0.0
    without = actor.policy.act(
        type(seen)(turned, seen.categories, seen.masks), state, actions=own.actions
    )
    assert (
        found[0][1] == pytest.approx(float(own.joint - without.joint), abs=1e-4)
        and found[0][1] > 5.0
    )
    assert all(abs(nats) < found[0][1] / 2 for _, nats in found[1:])


def test_what_a_policy_remembers_counts_where_it_remembers(shown, monkeypatch):
    monkeypatch.setattr(explain, "MOST_LINES", 1000)
    env, seen = shown
    policy = (
        ActorCritic(env.action_spec, env.observation_spec, Policy(), 5).eval().requires_grad_(False)
    )
    # Weights as large as training makes them: at first what is remembered hardly moves a decision.
    for layer in (policy.heads[0].get_submodule("hidden"), policy.heads[0].get_submodule("out")):
        layer.weight *= 20.0
    for weights in policy.actor.core.parameters():
        weights *= 5.0
    _, memory = policy.step(seen, policy.initial_state(1))
    own = policy.act(seen, memory, greedy=True)
    found = dict(occlusion(policy, seen, memory, own.actions))
    fresh = policy.act(seen, policy.initial_state(1), actions=own.actions)
    expected = float(own.joint - fresh.joint)
    assert abs(expected) > 0.01 and found["memory"] == pytest.approx(expected, abs=1e-4)
    values = [abs(nats) for nats in found.values()]
    assert values == sorted(values, reverse=True)


def test_the_likeliest_choices_have_the_probabilities_with_which_the_policy_takes_them(shown):
    env, seen = shown
    policy = (
        ActorCritic(env.action_spec, env.observation_spec, Policy(), 5).eval().requires_grad_(False)
    )
    names = [item.name for item in env.blueprints]
    found = dict(choices(policy, seen, policy.initial_state(1), names))
    wait = torch.zeros(1, len(env.action_spec.heads), dtype=torch.int64)
    assert found["WAIT"] == pytest.approx(
        float(policy.act(seen, policy.initial_state(1), actions=wait).joint.exp())
    )
    for kind, slot in ((0, 2), (3, 0)):
        scored = policy.act(
            seen,
            policy.initial_state(1),
            actions=wait.index_copy(
                1, torch.arange(3), torch.tensor([[int(Op.GERMINATE), slot, kind]])
            ),
        )
        expected = float(scored.log_probs[0, :3].sum().exp())
        assert found.get(f"GERMINATE {names[kind]} slot {slot}", expected) == pytest.approx(
            expected
        )
    assert len(found) == 6 and "PRUNE slot 0" not in found
