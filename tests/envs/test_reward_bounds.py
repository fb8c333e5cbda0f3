"""What one step can pay: bounded in every mode; what only costs never pays; prices come from the params."""

from dataclasses import replace
from itertools import pairwise

import pytest

from simic.envs import rewards
from simic.growth.life.vocabulary import Op, Stage
from tests.standard import Reward

from .transitions import SETTING, VARIANT_NAMES, VARIANTS, measured, random_states, transition

COSTS = ("rent", "loss_rent", "alpha_shock", "intervention", "death", "toxic")


@pytest.mark.parametrize(("mode", "setting"), VARIANTS, ids=VARIANT_NAMES)
def test_pruning_costs_and_pays_a_bounded_amount_whatever_the_seed_did(make_slots, mode, setting):
    """At most the credit of 100 points, the largest potential and the largest shock: 10 + 0.3 · 7.5 + 1 and change."""
    gone = make_slots([[Stage.PRUNED]])
    for contribution in (-100.0, -5.0, 0.0, 5.0, 100.0):
        for dwell in (0, 3, 1000):
            seed = measured(make_slots, Stage.HOLDING, contribution, 60.0, dwell=dwell, alpha=[[1.0]])
            parts = rewards.components(mode, transition(seed, gone, Op.PRUNE), setting)
            assert abs(float(rewards.total(parts))) < 14, (contribution, dwell, parts)


@pytest.mark.parametrize(("mode", "setting"), VARIANTS, ids=VARIANT_NAMES)
def test_waiting_longer_never_costs_more_and_more(make_slots, mode, setting):
    """No price grows without end with the time a seed has been somewhere."""
    for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED):
        paid = []
        for dwell in (30, 3000):
            seed = measured(make_slots, stage, 20.0, 30.0, dwell=dwell, age=[[dwell]], alpha=[[1.0]])
            paid.append(float(rewards.total(rewards.components(mode, transition(seed, seed), setting))))
        assert paid[0] == pytest.approx(paid[1], abs=1e-12), stage


def test_what_only_costs_never_pays_under_any_op():
    states = random_states(6, 40, 3)
    for before, after in pairwise(states):
        for op in Op:
            step = transition(before, after, op, slot=1)
            for name in COSTS:
                assert (rewards.TERMS[name](step, SETTING) <= 0).all(), (name, op)


def test_the_price_of_an_op_is_the_one_of_the_params(make_slots):
    empty = make_slots([[Stage.DORMANT]])
    for price in (0.0, 0.01, 0.5):
        setting = replace(SETTING, weights=Reward(intervention_cost=price))
        for op in Op:
            paid = rewards.components("shaped", transition(empty, empty, op), setting)["intervention"]
            assert paid.tolist() == [0.0 if op is Op.WAIT else -price]
