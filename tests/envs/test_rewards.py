"""Laws of the reward terms on constructed transitions; expected numbers are derived beside each assertion."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from simic.envs import rewards
from simic.envs.rewards import MODES, Transition
from simic.errors import SimicError
from simic.growth.life.vocabulary import Op, Slots, Stage
from simic.params import Reward, SparseReward

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
        paid.append(rewards.shaping(step, SETTING))
    steps = len(paid)
    # Σ γ^t w(γΦ' - Φ) = -wΦ(s0) + w γ^T Φ(s_T), and Φ(s_T) = 0 at a true terminal.
    expected = -WEIGHTS.pbrs_weight * rewards.potential(states[0])
    if ending == "truncated":
        expected = expected + WEIGHTS.pbrs_weight * GAMMA**steps * rewards.potential(states[-1])
    assert (discounted(paid) - expected).abs().max() < 1e-9


def test_attribution_pays_in_sum_what_was_fossilized_and_nothing_else():
    states = random_states(15, 8, 3)
    paid, frozen = [], torch.zeros(8, dtype=torch.float64)
    for t, (before, after) in enumerate(pairwise(states)):
        last = t == len(states) - 2
        paid.append(rewards.attribution(transition(before, after, ended=last, terminal=last), SETTING))
        kept = (after.stage == Stage.FOSSILIZED) & (before.stage != Stage.FOSSILIZED)
        frozen += GAMMA**t * torch.where(kept, rewards.credit(before, WEIGHTS), 0.0).sum(dim=1)
    start = rewards.credit(states[0], WEIGHTS).sum(dim=1)
    assert (discounted(paid) - (frozen - start)).abs().max() < 1e-9


def test_potential_grows_with_the_stage_and_fossilized_is_at_least_any_holding(make_slots):
    order = [Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED]
    values = [float(rewards.potential(make_slots([[stage]], dwell=[[0]]))) for stage in order]
    assert values == sorted(values) and len(set(values)) == len(values)
    ramped = max(float(rewards.potential(make_slots([[Stage.HOLDING]], dwell=[[n]]))) for n in range(50))
    assert ramped == pytest.approx(5.5 + 2.0)
    assert values[-1] >= ramped
    for stage in (Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING):
        assert float(rewards.potential(make_slots([[stage]], dwell=[[9]]))) == 0.0


def test_potential_sums_over_all_slots(make_slots):
    # 3.5 + 0.3·2 (BLENDING, dwell 2) + 7.5 (FOSSILIZED) + 0 (PRUNED) = 11.6
    slots = make_slots([[Stage.BLENDING, Stage.FOSSILIZED, Stage.PRUNED]], dwell=[[2, 4, 1]])
    assert float(rewards.potential(slots)) == pytest.approx(11.6, abs=1e-12)


def test_rollback_pays_minus_the_potential_and_the_death_penalty(make_slots):
    before = measured(make_slots, Stage.HOLDING, contribution=10.0, gain=20.0, dwell=1)
    step = transition(before, make_slots([[Stage.PRUNED]]), terminal=True, panicked=True)
    parts = shaped(step)
    assert parts["shaping"] == pytest.approx(-0.3 * 5.8, abs=1e-12)
    assert parts["death"] == -10.0
    assert parts["terminal"] == 0.0
    # The credit of the removed seed is forfeited: 0.1 · c with c = 10 < p = 20.
    assert parts["attribution"] == pytest.approx(-1.0, abs=1e-6)


def test_components_sum_to_the_total_in_every_mode():
    states = random_states(6, 5, 2)
    for before, after in pairwise(states):
        for op in Op:
            for flags in ({}, {"ended": True, "terminal": True}, {"terminal": True, "panicked": True}):
                step = transition(before, after, op, slot=1, **flags)
                for mode, names in MODES.items():
                    parts = rewards.components(mode, step, SETTING)
                    assert tuple(parts) == tuple(name for name in names if name not in rewards.WEIGHTS)
                    assert all(value.dtype == torch.float64 and value.shape == (5,) for value in parts.values())
                    assert (rewards.total(parts) - sum(parts.values())).abs().max() < 1e-9
                    assert rewards.total(parts).isfinite().all()


def test_credit_is_the_harmonic_mean_and_never_inflated_by_the_host(make_slots):
    def credit(contribution, gain, se=0.1):
        return float(rewards.credit(measured(make_slots, Stage.HOLDING, contribution, gain, se), WEIGHTS))

    assert credit(6.0, 3.0) == pytest.approx(0.1 * 2 * 6 * 3 / 9, abs=1e-6)  # c ≥ p: 2pc/(p+c) = 4
    assert credit(3.0, 30.0) == pytest.approx(0.3, abs=1e-6)  # c < p: c, however far the host came
    assert credit(6.0, 0.0) == 0.0 and credit(6.0, -5.0) == 0.0  # no progress, no credit
    assert credit(-4.0, 30.0) == pytest.approx(-0.4, abs=1e-6)
    assert credit(0.9, 30.0) == 0.0  # below 1 point
    assert credit(4.0, 30.0, se=2.1) == 0.0  # below two standard errors: 4 < 4.2
    assert credit(math.nan, 30.0) == 0.0 and credit(4.0, math.nan) == 0.0


def test_a_zero_threshold_divides_nothing_by_zero(make_slots):
    free = replace(SETTING, weights=Reward(contribution_threshold_pct=0.0))
    slots = measured(make_slots, Stage.HOLDING, contribution=0.0, gain=0.0, se=0.0)
    parts = rewards.components("shaped", transition(slots, slots, Op.FOSSILIZE), free)
    assert all(value.isfinite().all() for value in parts.values())


def test_no_seed_earns_no_attribution(make_slots):
    empty = make_slots([[Stage.DORMANT, Stage.DORMANT]])
    parts = shaped(transition(empty, empty))
    assert all(value == 0.0 for value in parts.values())


def test_fossilized_seed_has_no_further_attribution(make_slots):
    before = measured(make_slots, Stage.FOSSILIZED, contribution=10.0, gain=20.0)
    after = measured(make_slots, Stage.FOSSILIZED, contribution=40.0, gain=60.0)
    for op in (Op.WAIT, Op.GERMINATE):
        assert shaped(transition(before, after, op))["attribution"] == 0.0


def test_fossilizing_keeps_the_credit_and_pays_the_bonus_by_dwell(make_slots):
    for dwell, legitimate in ((1, 1 / 3), (2, 2 / 3), (3, 1.0), (9, 1.0)):
        before = measured(make_slots, Stage.HOLDING, contribution=10.0, gain=20.0, dwell=dwell)
        after = measured(make_slots, Stage.FOSSILIZED, contribution=10.0, gain=20.0, dwell=1)
        parts = shaped(transition(before, after, Op.FOSSILIZE))
        assert parts["attribution"] == 0.0
        assert parts["fossilize"] == pytest.approx(3.0 * math.tanh(1 / 3) * legitimate, abs=1e-12)


def test_waiting_in_holding_is_not_profitable(make_slots):
    start = measured(make_slots, Stage.HOLDING, contribution=10.0, gain=20.0, dwell=1, alpha=[[1.0]])
    states = [replace(start, dwell=start.dwell + n) for n in range(8)] + [make_slots([[Stage.PRUNED]])]

    def value(waits: int) -> float:
        """Discounted return of waiting so long in HOLDING and then ending with the seed unfossilized."""
        steps = [transition(states[n], states[n + 1]) for n in range(waits)]
        steps.append(transition(states[waits], states[waits], ended=True, terminal=True))
        # The end pays its terminal whenever it comes; left out, it is not what waiting is about.
        return sum(
            GAMMA**t * sum(v for name, v in shaped(step).items() if name != "terminal") for t, step in enumerate(steps)
        )

    returns = [value(waits) for waits in range(7)]
    assert all(later < sooner for sooner, later in pairwise(returns))
    # And apart from the potential (which is given back), every single waiting step costs.
    waiting = shaped(transition(states[3], states[4]))
    assert sum(v for name, v in waiting.items() if name != "shaping") < 0


def test_waiting_past_the_proof_of_worth_does_not_raise_the_fossilize_return(make_slots):
    def value(dwell: int) -> float:
        """Discounted return from entering HOLDING, waiting to this dwell, fossilizing, up to the same horizon."""
        horizon, paid = 12, []
        state = measured(make_slots, Stage.HOLDING, 10.0, 20.0, dwell=1, alpha=[[1.0]])
        for t in range(horizon):
            if t + 1 < dwell:
                after, op = replace(state, dwell=state.dwell + 1), Op.WAIT
            elif t + 1 == dwell:
                after, op = measured(make_slots, Stage.FOSSILIZED, 10.0, 20.0, dwell=1, alpha=[[1.0]]), Op.FOSSILIZE
            else:
                after, op = state, Op.WAIT
            last = t == horizon - 1
            paid.append(sum(shaped(transition(state, after, op, ended=last, terminal=last)).values()))
            state = after
        return sum(GAMMA**t * value for t, value in enumerate(paid))

    returns = {dwell: value(dwell) for dwell in range(3, 9)}
    assert all(returns[dwell + 1] < returns[dwell] for dwell in range(3, 8))


@pytest.mark.parametrize("waits", [0, 1, 3, 8])
def test_germinate_then_prune_earns_nothing(make_slots, waits):
    empty, gone = make_slots([[Stage.DORMANT]]), make_slots([[Stage.PRUNED]])
    states = [empty] + [make_slots([[Stage.GERMINATED]], dwell=[[n + 1]]) for n in range(waits + 1)] + [gone]
    ops = [Op.GERMINATE] + [Op.WAIT] * waits + [Op.PRUNE]
    paid = [sum(shaped(transition(a, b, op)).values()) for a, b, op in zip(states, states[1:], ops, strict=False)]
    assert sum(GAMMA**t * value for t, value in enumerate(paid)) < 0
    cycles = [sum(GAMMA ** (t + n * len(paid)) * value for t, value in enumerate(paid)) for n in range(4)]
    assert all(value < 0 for value in cycles)  # so the sum over repeated cycles falls monotonically


def test_harmful_seed_farm_earns_nothing(make_slots):
    """Grow a seed until it hurts, then remove the damage: what it cost comes back at most, discounted."""
    empty, gone = make_slots([[Stage.DORMANT]]), make_slots([[Stage.PRUNED]])
    young = make_slots([[Stage.TRAINING]], dwell=[[3]])
    bad = measured(make_slots, Stage.BLENDING, contribution=-20.0, gain=-15.0, alpha=[[0.5]])
    steps = [
        transition(empty, young, Op.GERMINATE),
        transition(young, bad, Op.ADVANCE),
        transition(bad, gone, Op.PRUNE),
    ]
    attributed = [shaped(step)["attribution"] for step in steps]
    assert attributed[1] == pytest.approx(-2.0 * GAMMA, abs=1e-6) and attributed[2] == pytest.approx(2.0, abs=1e-6)
    assert sum(GAMMA**t * sum(shaped(step).values()) for t, step in enumerate(steps)) < 0


def test_ransomware_is_not_rewarded_under_any_op(make_slots):
    """Indispensable (c = 30) though the host got worse (p = -10): no credit, no bonus, whatever the op."""
    before = measured(make_slots, Stage.HOLDING, contribution=30.0, gain=-10.0)
    for op in Op:
        after = measured(make_slots, Stage.FOSSILIZED if op == Op.FOSSILIZE else Stage.HOLDING, 30.0, -10.0)
        parts = shaped(transition(before, after, op))
        assert parts["attribution"] == 0.0
        assert parts["fossilize"] == (rewards.NOT_CONTRIBUTING if op == Op.FOSSILIZE else 0.0)


def test_late_germination_is_not_rewarded(make_slots):
    empty, young = make_slots([[Stage.DORMANT]]), make_slots([[Stage.GERMINATED]], dwell=[[1]])
    parts = shaped(transition(empty, young, Op.GERMINATE, ended=True, terminal=True))
    assert sum(value for name, value in parts.items() if name != "terminal") < 0


def test_germinating_early_is_not_worth_more_than_late(make_slots):
    def value(start: int, horizon: int = 8) -> float:
        state, paid = make_slots([[Stage.DORMANT]]), []
        for t in range(horizon):
            age = t - start
            after = state if age < 0 else make_slots([[Stage.GERMINATED]], dwell=[[age + 1]])
            last = t == horizon - 1
            op = Op.GERMINATE if age == 0 else Op.WAIT
            paid.append(sum(shaped(transition(state, after, op, ended=last, terminal=last)).values()))
            state = after
        return sum(GAMMA**t * value for t, value in enumerate(paid))

    returns = [value(start) for start in range(8)]
    assert all(later > sooner for sooner, later in pairwise(returns))


def test_alpha_oscillation_costs(make_slots):
    """HOLDING, retarget to 0.5 and back to HOLDING: a closed loop in the lifecycle has a negative return."""

    def at(stage: Stage, alpha: float) -> Slots:
        return measured(make_slots, stage, contribution=10.0, gain=20.0, dwell=1, alpha=[[alpha]])

    path = [at(Stage.HOLDING, 1.0), at(Stage.BLENDING, 0.5), at(Stage.BLENDING, 1.0), at(Stage.HOLDING, 1.0)]
    ops = [Op.SET_ALPHA_TARGET, Op.SET_ALPHA_TARGET, Op.ADVANCE]
    still = [transition(path[0], path[0]) for _ in ops]
    moved = [transition(a, b, op) for a, b, op in zip(path, path[1:], ops, strict=False)]
    value = [sum(GAMMA**t * sum(shaped(step).values()) for t, step in enumerate(steps)) for steps in (moved, still)]
    assert value[0] < value[1]
    # Δα = 0.5 of 100 parameters of a host of 1,000: 0.1958 · 0.25 · 0.1
    assert shaped(moved[0])["alpha_shock"] == pytest.approx(-0.1958 * 0.025, abs=1e-12)


def test_terminal_is_paid_exactly_once(make_slots):
    slots = make_slots([[Stage.DORMANT]])
    steps = [transition(slots, slots, ended=t == 4, terminal=t == 4) for t in range(5)]
    paid = [shaped(step)["terminal"] for step in steps]
    assert paid == [0.0, 0.0, 0.0, 0.0, pytest.approx(0.05 * 50.0)]


def test_accuracy_dominates_parameter_cost(make_slots):
    """All rent of an episode is at most the cap, for seeds of any size."""
    slots = make_slots([[Stage.FOSSILIZED]], alpha=[[1.0]])
    huge = transition(slots, slots, seed_params_after=torch.tensor([[10**9]]))
    assert SETTING.episode_steps * shaped(huge)["rent"] == pytest.approx(-WEIGHTS.rent_cap)
    # ln(1 + 0.0039 + 0.1)/2 per episode for a seed of a tenth of the host
    assert shaped(transition(slots, slots))["rent"] == pytest.approx(-0.5 * math.log(1.1039) / 10, abs=1e-12)
    assert WEIGHTS.rent_cap < WEIGHTS.shaped.terminal_weight * 100


def test_rent_is_free_without_a_seed_and_weighted_by_alpha(make_slots):
    half = make_slots([[Stage.BLENDING]], alpha=[[0.5]])
    assert shaped(transition(half, half))["rent"] == pytest.approx(-0.5 * math.log(1.0539) / 10, abs=1e-12)
    cooling = make_slots([[Stage.EMBARGOED]])
    assert shaped(transition(cooling, cooling))["rent"] == 0.0


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


def test_a_term_name_can_be_registered_once_only():
    with pytest.raises(SimicError, match="'rent' is registered twice"):
        rewards.term("rent")(rewards.TERMS["rent"])
    assert {name for names in MODES.values() for name in names} <= set(rewards.TERMS)
