"""Why a decision was made: how likely each choice was, and what the decision hangs on."""

from dataclasses import replace

import pytest
import torch
from tiny import tiny_env

from simic.agent.policy import ActorCritic
from simic.envs.observations import columns
from simic.evaluation import explain
from simic.evaluation.explain import choices, occlusion
from simic.growth.life.vocabulary import Op
from tests.standard import Policy

FIRST_STEP = "missing_lag_1"  # one validation so far
READER = 0  # the unit of the encoder, and of the op's head, that sees it


@pytest.fixture(scope="module")
def env(bank):
    return tiny_env(bank, 1, episode_steps=20, batches_per_epoch=1)


@pytest.fixture(scope="module")
def observation(env):
    return env.reset()[0]


def untrained(env, core: str = "lstm") -> ActorCritic:
    policy = ActorCritic(env.action_spec, env.observation_spec, Policy(core=core), 5)
    return policy.eval().requires_grad_(False)


def test_a_decision_hangs_on_what_the_policy_reads_and_on_nothing_else(env, observation):
    """A policy made by hand reads the flag of the first step, and germinates: without it, it would have waited."""
    policy = untrained(env, core="none")
    names = [name for name, _ in columns(env.host.slots, len(env.blueprints))]
    place = names.index(FIRST_STEP)
    encoder = policy.actor.encoder
    encoder.weight[READER] = encoder.bias[READER] = 0.0
    encoder.weight[READER, place] = 9.0
    layers = [policy.heads[0].get_submodule(name) for name in ("hidden", "out")]
    for layer in layers:
        layer.weight.zero_()
        layer.bias.zero_()
    layers[0].weight[READER, READER] = 9.0
    layers[1].weight[Op.GERMINATE, READER] = 12.0
    layers[1].bias[Op.GERMINATE] = -6.0

    memory = policy.initial_state(1)
    decision = policy.act(observation, memory, noise=None)
    [(name, nats), *rest] = occlusion(policy, observation, memory, decision.actions)
    features = observation.features.clone()
    features[0, place] = 0.0
    without = policy.act(
        replace(observation, features=features), memory, noise=None, actions=decision.actions
    )
    assert (name, nats) == (
        FIRST_STEP,
        pytest.approx(float(decision.joint - without.joint), abs=1e-4),
    )
    assert nats > 5.0 and all(abs(less) < nats / 2 for _, less in rest)


def test_what_a_policy_remembers_counts_where_it_remembers(env, observation, monkeypatch):
    monkeypatch.setattr(explain, "MOST_LINES", 1000)
    policy = untrained(env)
    # Weights as large as training makes them: at first what is remembered hardly moves a decision.
    for name in ("hidden", "out"):
        policy.heads[0].get_submodule(name).weight *= 20.0
    for weights in policy.actor.core.parameters():
        weights *= 5.0
    _, memory = policy.step(observation, policy.initial_state(1))
    decision = policy.act(observation, memory, noise=None)
    ranked = dict(occlusion(policy, observation, memory, decision.actions))
    fresh = policy.act(observation, policy.initial_state(1), noise=None, actions=decision.actions)
    expected = float(decision.joint - fresh.joint)
    assert abs(expected) > 0.01 and ranked["memory"] == pytest.approx(expected, abs=1e-4)
    nats = [abs(value) for value in ranked.values()]
    assert nats == sorted(nats, reverse=True)


def test_the_likeliest_choices_have_the_probabilities_with_which_the_policy_takes_them(
    env, observation
):
    policy = untrained(env)
    memory = policy.initial_state(1)
    names = [item.name for item in env.blueprints]
    likeliest = dict(choices(policy, observation, memory, names))
    for words, chance in likeliest.items():
        op, *choice = words.split()
        actions = torch.zeros(1, len(env.action_spec.heads), dtype=torch.int64)
        if choice:  # blueprint, "slot", slot
            actions[0, :3] = torch.tensor([Op[op], int(choice[2]), names.index(choice[0])])
        log_probs = policy.act(observation, memory, noise=None, actions=actions).log_probs
        assert chance == pytest.approx(float(log_probs[0, :3].sum().exp())), words
    assert "WAIT" in likeliest and len(likeliest) == 6
