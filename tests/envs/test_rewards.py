"""Laws of the reward terms on constructed transitions; expected numbers are derived beside each assertion."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from simic import registry
from simic.envs import rewards
from simic.envs.rewards import NOT_CONTRIBUTING, credit, potential, shaping
from simic.errors import SimicError
from simic.growth.life.vocabulary import Op, Stage
from simic.params import SparseReward
from tests.standard import Reward

from .transitions import (
    CHANCE,
    GAMMA,
    SETTING,
    WEIGHTS,
    discounted,
    measured,
    paid,
    random_states,
    transition,
)


def one(mode: str, step, setting=SETTING) -> dict[str, float]:
    return {name: float(term[0]) for name, term in rewards.components(mode, step, setting).items()}


@pytest.mark.parametrize("ending", ["terminal", "truncated", "rollback"])
def test_shaping_telescopes_exactly(ending):
    states = random_states(12, 6, 3)
    paid = []
    for t, (before, after) in enumerate(pairwise(states)):
        last = t == len(states) - 2
        step = transition(
            before,
            after,
            ended=last and ending != "rollback",
            terminal=last and ending != "truncated",
        )
        paid.append(shaping(step, SETTING))
    steps = len(paid)
    # Σ γ^t w(γΦ' - Φ) = -wΦ(s0) + w γ^T Φ(s_T), and Φ(s_T) = 0 at a true terminal.
    expected = -WEIGHTS.pbrs_weight * potential(states[0])
    if ending == "truncated":
        expected = expected + WEIGHTS.pbrs_weight * GAMMA**steps * potential(states[-1])
    assert (discounted(paid) - expected).abs().max() < 1e-9


def test_potential_grows_with_the_stage_and_sums_over_all_slots_and_fossilized_is_at_least_any_holding(
    make_slots,
):
    order = [
        Stage.DORMANT,
        Stage.GERMINATED,
        Stage.TRAINING,
        Stage.BLENDING,
        Stage.HOLDING,
        Stage.FOSSILIZED,
    ]
    values = [float(potential(make_slots([[stage]], dwell=[[0]]))) for stage in order]
    assert values == [0.0, 1.0, 2.0, 3.5, 5.5, 7.5]
    ramped = max(float(potential(make_slots([[Stage.HOLDING]], dwell=[[n]]))) for n in range(50))
    assert ramped == pytest.approx(5.5 + 2.0)
    assert values[-1] >= ramped
    for stage in (Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING):
        assert float(potential(make_slots([[stage]], dwell=[[9]]))) == 0.0
    # Of all slots: 3.5 + 0.3·2 (BLENDING, dwell 2) + 7.5 (FOSSILIZED) + 0 (PRUNED) = 11.6
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
        parts = one("shaped", transition(before, after, Op.FOSSILIZE))
        assert parts["attribution"] == 0.0
        assert parts["fossilize"] == pytest.approx(3.0 * math.tanh(1 / 3) * legitimate, abs=1e-12)
    ransom = [
        measured(make_slots, stage, 30.0, -10.0) for stage in (Stage.HOLDING, Stage.FOSSILIZED)
    ]
    parts = one("shaped", transition(*ransom, Op.FOSSILIZE))
    assert (parts["attribution"], parts["fossilize"]) == (0.0, NOT_CONTRIBUTING)


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


# --- what each mode pays, in numbers worked out beside the assertion, and how a user adds one ---


SIGMA = 0.02 * CHANCE


def holding(make_slots, contribution: float, stable: float = 90.0, **flags):
    """A step of a seed in HOLDING, germinated at 40 points, whose host is stable at so many."""
    slots = measured(make_slots, Stage.HOLDING, contribution, 50.0)
    return transition(slots, slots, stable_accuracy=torch.tensor([stable]), **flags)


def test_escrow_counts_stable_accuracy_and_suspects_contribution_without_progress(make_slots):
    # p = 42 - 40 = 2 and c = 4: 2·2·4/6 · 0.1
    assert one("escrow", holding(make_slots, 4.0, stable=42.0))["escrow"] == pytest.approx(
        GAMMA * 0.26667, abs=1e-4
    )
    # c = 30, p = 2: harmonic 3.75 → 0.375; ratio 15 → -0.1 · 10/5 = -0.2
    assert one("escrow", holding(make_slots, 30.0, stable=42.0))["escrow"] == pytest.approx(
        GAMMA * 0.175, abs=1e-6
    )
    assert one("escrow", holding(make_slots, 30.0, stable=40.0))["escrow"] == 0.0
    harmful = one("escrow", holding(make_slots, -20.0))
    assert harmful["escrow"] == 0.0 and harmful["toxic"] == pytest.approx(-2.0)


def with_loss(make_slots, loss: float, committed: float = 1.5, **flags):
    slots = make_slots([[Stage.DORMANT]])
    return transition(
        slots, slots, loss=torch.tensor([loss]), committed_loss=torch.tensor([committed]), **flags
    )


def test_the_loss_family_rewards_improvement_and_only_what_lasts(make_slots):
    unit = 0.2 / SIGMA
    assert one("loss", with_loss(make_slots, 1.4))["loss_improvement"] > 0
    assert one("loss", with_loss(make_slots, 1.6))["loss_improvement"] < 0
    path = [1.4, 1.2, 0.9, 2.0, 1.0, 1.3]
    components = paid("loss", [with_loss(make_slots, loss) for loss in path])
    tracked = [1.5]
    for loss in path:
        tracked.append(max(loss, tracked[-1] - 5 * SIGMA))
    for step, before, after in zip(components, tracked, tracked[1:], strict=False):
        expected = unit * (GAMMA * (CHANCE - after) - (CHANCE - before))
        assert float(step["loss_improvement"]) == pytest.approx(expected, abs=1e-5)
    # Up and down again is worth nothing: the discounted sum depends on the ends alone.
    total = sum(GAMMA**t * float(step["loss_improvement"]) for t, step in enumerate(components))
    ends = unit * (GAMMA ** len(path) * (CHANCE - tracked[-1]) - (CHANCE - 1.5))
    assert total == pytest.approx(ends, abs=1e-5)


def test_the_loss_family_takes_back_what_was_not_committed(make_slots):
    steps = [with_loss(make_slots, 1.3)] * 3
    ending = with_loss(make_slots, 1.3, committed=1.5, ended=True, terminal=True)
    total = sum(
        GAMMA**t * float(s["loss_improvement"])
        for t, s in enumerate(paid("loss", [*steps, ending]))
    )
    assert total == pytest.approx(0.2 / SIGMA * (GAMMA**4 - 1) * (CHANCE - 1.5), abs=1e-5)
    # What the last step improves is capped as in any step, committed or not.
    leap = with_loss(make_slots, 0.1, committed=0.1, ended=True, terminal=True)
    paid_for = 0.2 / SIGMA * (GAMMA * (CHANCE - 1.5 + 5 * SIGMA) - (CHANCE - 1.5))
    assert one("loss", leap)["loss_improvement"] == pytest.approx(paid_for, abs=1e-5)
    # base ln 10, target 0.13 ln 10
    share = (CHANCE - 1.5) / (CHANCE * 0.87)
    assert one("loss", ending)["loss_terminal"] == pytest.approx(share, abs=1e-6)
    perfect = with_loss(make_slots, 0.0, committed=0.0, ended=True, terminal=True)
    assert one("loss", perfect)["loss_terminal"] == 1.0
    worst = with_loss(make_slots, math.inf, committed=math.nan, ended=True, terminal=True)
    assert one("loss", worst)["loss_terminal"] == 0.0
    assert math.isfinite(one("loss", worst)["loss_improvement"])


def test_wrong_registrations_are_refused_by_name(monkeypatch, make_slots):
    for name in ("TERMS", "MODES", "LEDGERS"):  # what a test registers ends with it
        monkeypatch.setattr(rewards, name, getattr(rewards, name).copy())
    monkeypatch.setattr(
        registry, "_KNOWN", {kind: list(names) for kind, names in registry._KNOWN.items()}
    )
    with pytest.raises(SimicError, match="'rent' is registered twice"):
        rewards.term("rent")(rewards.TERMS["rent"])
    with pytest.raises(SimicError, match="reward mode 'shaped' is registered twice"):
        rewards.mode("shaped", ("shaping",))
    with pytest.raises(SimicError, match="reward mode 'x': no term 'bonus'; registered are"):
        rewards.mode("x", ("shaping", "bonus"))
    with pytest.raises(SimicError, match="each once"):
        rewards.mode("x", ("death", "death"))
    rewards.term("flat")(lambda t, setting: torch.zeros(3))
    rewards.mode("flat", ("flat",))
    with pytest.raises(
        SimicError, match=r"'flat' gave torch.float32 \(3,\): must be float64 \(1,\)"
    ):
        rewards.components("flat", transition(*[make_slots([[0]])] * 2), SETTING)
