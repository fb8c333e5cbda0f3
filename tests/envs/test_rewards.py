"""Laws of the reward terms on constructed transitions; expected numbers are derived beside each assertion."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from simic.envs import rewards
from simic.envs.rewards import Transition
from simic.envs.rewards.default import potential, shaping
from simic.envs.rewards.shaped import NOT_CONTRIBUTING, credit
from simic.growth.life.vocabulary import Op, Stage
from simic.params import SparseReward
from tests.standard import Reward

from .transitions import GAMMA, SETTING, WEIGHTS, discounted, measured, random_states, transition


def shaped(t: Transition) -> dict[str, float]:
    return {name: float(value[0]) for name, value in rewards.components("shaped", t, SETTING).items()}


@pytest.mark.parametrize("ending", ["terminal", "truncated", "rollback"])
def test_shaping_telescopes_exactly(ending):
    states = random_states(12, 6, 3)
    paid = []
    for t, (before, after) in enumerate(pairwise(states)):
        last = t == len(states) - 2
        step = transition(before, after, ended=last and ending != "rollback", terminal=last and ending != "truncated")
        paid.append(shaping(step, SETTING))
    steps = len(paid)
    # Σ γ^t w(γΦ' - Φ) = -wΦ(s0) + w γ^T Φ(s_T), and Φ(s_T) = 0 at a true terminal.
    expected = -WEIGHTS.pbrs_weight * potential(states[0])
    if ending == "truncated":
        expected = expected + WEIGHTS.pbrs_weight * GAMMA**steps * potential(states[-1])
    assert (discounted(paid) - expected).abs().max() < 1e-9


def test_potential_grows_with_the_stage_and_fossilized_is_at_least_any_holding(make_slots):
    order = [Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED]
    values = [float(potential(make_slots([[stage]], dwell=[[0]]))) for stage in order]
    assert values == [0.0, 1.0, 2.0, 3.5, 5.5, 7.5]
    ramped = max(float(potential(make_slots([[Stage.HOLDING]], dwell=[[n]]))) for n in range(50))
    assert ramped == pytest.approx(5.5 + 2.0)
    assert values[-1] >= ramped
    for stage in (Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING):
        assert float(potential(make_slots([[stage]], dwell=[[9]]))) == 0.0


def test_potential_sums_over_all_slots(make_slots):
    # 3.5 + 0.3·2 (BLENDING, dwell 2) + 7.5 (FOSSILIZED) + 0 (PRUNED) = 11.6
    slots = make_slots([[Stage.BLENDING, Stage.FOSSILIZED, Stage.PRUNED]], dwell=[[2, 4, 1]])
    assert float(potential(slots)) == pytest.approx(11.6, abs=1e-12)


def test_credit_is_the_harmonic_mean_and_never_inflated_by_the_host(make_slots):
    def worth(contribution, gain, se=0.1):
        return float(credit(measured(make_slots, Stage.HOLDING, contribution, gain, se), WEIGHTS))

    assert worth(6.0, 3.0) == pytest.approx(0.1 * 2 * 6 * 3 / 9, abs=1e-6)  # c ≥ p: 2pc/(p+c) = 4
    assert worth(3.0, 30.0) == pytest.approx(0.3, abs=1e-6)  # c < p: c, however far the host came
    assert worth(6.0, 0.0) == 0.0 and worth(6.0, -5.0) == 0.0  # no progress, no credit
    assert worth(-4.0, 30.0) == pytest.approx(-0.4, abs=1e-6)
    assert worth(0.9, 30.0) == 0.0  # below 1 point
    assert worth(4.0, 30.0, se=2.1) == 0.0  # below two standard errors: 4 < 4.2
    assert worth(math.nan, 30.0) == 0.0 and worth(4.0, math.nan) == 0.0


def test_fossilizing_keeps_the_credit_and_pays_the_bonus_by_dwell(make_slots):
    for dwell, legitimate in ((1, 1 / 3), (2, 2 / 3), (3, 1.0), (9, 1.0)):
        before = measured(make_slots, Stage.HOLDING, contribution=10.0, gain=20.0, dwell=dwell)
        after = measured(make_slots, Stage.FOSSILIZED, contribution=10.0, gain=20.0, dwell=1)
        parts = shaped(transition(before, after, Op.FOSSILIZE))
        assert parts["attribution"] == 0.0
        assert parts["fossilize"] == pytest.approx(3.0 * math.tanh(1 / 3) * legitimate, abs=1e-12)
    ransom = [measured(make_slots, stage, 30.0, -10.0) for stage in (Stage.HOLDING, Stage.FOSSILIZED)]
    parts = shaped(transition(*ransom, Op.FOSSILIZE))
    assert (parts["attribution"], parts["fossilize"]) == (0.0, NOT_CONTRIBUTING)


def test_moving_alpha_costs_by_the_square_of_the_change_and_the_share_of_the_seed(make_slots):
    held = make_slots([[Stage.HOLDING]], alpha=[[1.0]])
    half = make_slots([[Stage.BLENDING]], alpha=[[0.5]])
    # Δα = 0.5 of 100 parameters of a host of 1,000: 0.1958 · 0.25 · 0.1
    paid = shaped(transition(held, half, Op.SET_ALPHA_TARGET))["alpha_shock"]
    assert paid == pytest.approx(-0.1958 * 0.025, abs=1e-12)


def test_rent_is_weighted_by_alpha_and_capped(make_slots):
    """All rent of an episode is at most the cap, for seeds of any size; without a live seed there is none."""
    kept = make_slots([[Stage.FOSSILIZED]], alpha=[[1.0]])
    half = make_slots([[Stage.BLENDING]], alpha=[[0.5]])
    huge = transition(kept, kept, seed_params_after=torch.tensor([[10**9]]))
    assert SETTING.episode_steps * shaped(huge)["rent"] == pytest.approx(-WEIGHTS.rent_cap)
    assert WEIGHTS.rent_cap < WEIGHTS.shaped.terminal_weight * 100
    # ln(1 + 0.0039 + 0.1)/2 per episode for a seed of a tenth of the host
    assert shaped(transition(kept, kept))["rent"] == pytest.approx(-0.5 * math.log(1.1039) / 10, abs=1e-12)
    assert shaped(transition(half, half))["rent"] == pytest.approx(-0.5 * math.log(1.0539) / 10, abs=1e-12)
    cooling = make_slots([[Stage.EMBARGOED]])
    ending = shaped(transition(cooling, cooling, ended=True, terminal=True))
    assert (ending["rent"], ending["terminal"]) == (0.0, pytest.approx(0.05 * 50.0))


def test_a_refused_op_costs_and_earns_nothing(make_slots):
    slots = measured(make_slots, Stage.HOLDING, contribution=10.0, gain=20.0)
    parts = shaped(transition(slots, slots, Op.WAIT))
    assert parts["fossilize"] == 0.0 and parts["intervention"] == 0.0
    assert shaped(transition(slots, slots, Op.ADVANCE))["intervention"] == -WEIGHTS.intervention_cost


def test_sparse_clips_before_it_scales(make_slots):
    setting = replace(SETTING, weights=Reward(mode="sparse", sparse=SparseReward(scale=7.0)))
    slots = make_slots([[Stage.FOSSILIZED, Stage.HOLDING]])

    def sparse(params: int, **flags) -> float:
        step = transition(slots, slots, seed_params_after=torch.tensor([[params, 10**9]]), **flags)
        return float(rewards.components("sparse", step, setting)["sparse"])

    # 0.5 - 0.1 · 400/4000 = 0.49; the seed in HOLDING is not part of the committed network.
    assert sparse(400, ended=True) == pytest.approx(7 * 0.49, abs=1e-9)
    assert sparse(10**9, ended=True) == -7.0
    assert sparse(400) == 0.0


def test_a_seed_inherits_nothing_from_the_one_it_replaced(make_slots):
    """Escrow begins anew with a germination; a seed that stays goes on with what it had."""
    before = measured(make_slots, Stage.HOLDING, 20.0, 30.0, germinations=[[1]])
    clip, had = WEIGHTS.escrow.clip, torch.tensor([[3.0]], dtype=torch.float64)
    for germinations, earlier in ((1, 3.0), (2, 0.0)):
        after = measured(make_slots, Stage.HOLDING, 90.0, 90.0, germinations=[[germinations]])
        step = transition(before, after, Op.GERMINATE, stable_accuracy=torch.tensor([130.0]), ledgers={"escrow": had})
        found = rewards.advance("escrow", step, SETTING)["escrow"]
        # 0.1 · 2·90·90/180 = 9 points of credit at most, less than which the clip lets through.
        assert float(found[0, 0]) == pytest.approx(min(9.0, earlier + clip))
