"""Why a decision was made: what it hangs on, in words a person reads, and the page that says it."""

import pytest
import torch
from hand_made import FIRST_STEP, hand_made
from tiny import tiny_env

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.envs import observations
from simic.envs.observations import columns
from simic.evaluation.explain import Explanation, in_words, occlusion, page
from simic.evaluation.result import TriedChoice
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
    found = occlusion(actor.policy, Normalizers(), seen, state, own.actions, STEPS)
    assert found[0][0] == "missing lag 1: yes"
    turned = seen.features.clone()
    turned[0, [name for name, _ in columns(env.host.slots, len(env.blueprints))].index(FIRST_STEP)] = 0.0
    without = actor.policy.act(type(seen)(turned, seen.categories, seen.masks), state, actions=own.actions)
    assert found[0][1] == pytest.approx(float(own.joint - without.joint), abs=1e-4) and found[0][1] > 5.0
    assert all(abs(nats) < found[0][1] / 2 for _, nats in found[1:])


def test_what_a_policy_remembers_counts_where_it_remembers(shown):
    env, seen = shown
    policy = ActorCritic(env.action_spec, env.observation_spec, Policy(), 5).eval().requires_grad_(False)
    # Weights as large as training makes them: at first what is remembered hardly moves a decision.
    for layer in (policy.heads[0].get_submodule("hidden"), policy.heads[0].get_submodule("out")):
        layer.weight *= 20.0
    for weights in policy.actor.core.parameters():
        weights *= 5.0
    _, _, memory = policy.remember(seen, policy.initial_state(1))
    own = policy.act(seen, memory, greedy=True)
    found = dict(occlusion(policy, Normalizers(), seen, memory, own.actions, STEPS))
    fresh = policy.act(seen, policy.initial_state(1), actions=own.actions)
    expected = float(own.joint - fresh.joint)
    assert abs(expected) > 0.01 and found["what it remembers of earlier steps"] == pytest.approx(expected, abs=1e-4)
    values = [abs(nats) for nats in found.values()]
    assert values == sorted(values, reverse=True) and min(values) >= 0.01


def test_every_feature_is_told_in_the_unit_that_it_had_before_it_was_squashed(shown):
    table = dict(columns(2, 3))

    def told(name, value):
        return in_words(name, table[name], value, STEPS)

    points = float(observations.points(torch.tensor(-12.5)))
    assert told("slot1_contribution", points) == "slot 1: contribution -12.5 points"
    assert told("accuracy_lag_0", 0.832) == "accuracy lag 0 83.2 %"
    assert told("slot0_occupied", 1.0) == "slot 0: occupied: yes"
    assert told("slot0_dwell", float(observations.epochs(torch.tensor(7.0)))) == "slot 0: dwell 7 steps"
    assert told("time", 12 / STEPS) == "time 12 steps"
    assert told("loss_lag_0", float(observations.ratio(torch.tensor(0.25)))) == "loss lag 0 0.25 (loss / chance)"
    assert told("slot1_germinations", float(observations.ratio(torch.tensor(2.0)))) == "slot 1: germinations 2"
    assert told("train_loss", 1.0) == "train loss inf (loss / chance)"
    assert told("slot0_alpha", 0.5) == "slot 0: alpha 0.5"
    for name, row in columns(2, 3):
        for value in (row.low, row.high, 0.5):
            said = in_words(name, row, value, STEPS)
            assert "_" not in said and "x/(1+x)" not in said and "symlog" not in said and "nan" not in said, said


# --- the page ---------------------------------------------------------------------------------------------------------


def choice(op, score, probability, blueprint=None):
    return TriedChoice(
        op=op, slot=None if op == "WAIT" else 1, blueprint=blueprint, probability=probability, score=score,
        val_score=score, return_to_go=1.25, expected=1.0,
    )  # fmt: skip


FOUND = Explanation(
    task="same-held_out-1", row=12, step=11, steps=40, slots=("DORMANT", "norm, alpha 1.00, HOLDING"),
    accuracy_pct=75.8, occlusion=(("slot 1: velocity +4.9 points", -0.37),), value=0.07,
    taken=choice("PRUNE", 65.6, 0.978), others=(choice("WAIT", 60.0, 0.02), choice("FOSSILIZE", 99.8, 0.002)),
    recorded_score=65.6, exact=True,
)  # fmt: skip


def rows(found):
    return [line.split() for line in page(found).splitlines()]


def test_steps_are_counted_as_in_the_report_and_choices_are_marked():
    told = rows(FOUND)
    assert page(FOUND).startswith("same-held_out-1, host 12, step 12 of 40: PRUNE slot 1\n")
    assert [">", "PRUNE", "slot", "1", "0.978", "65.6", "+0.0", "1.00", "1.25"] in told
    assert ["*", "FOSSILIZE", "slot", "1", "0.002", "99.8", "+34.2", "1.00", "1.25"] in told
    assert ["WAIT", "0.020", "60.0", "-5.6", "1.00", "1.25"] in told
    assert "-0.37  slot 1: velocity +4.9 points" in page(FOUND)
    assert "Best (*) of 3: FOSSILIZE slot 1, 34.2 points more than what was done (>)." in page(FOUND)
