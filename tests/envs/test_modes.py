"""What each mode pays, in numbers worked out beside the assertion, and how a user adds one."""

import math
from dataclasses import replace

import pytest
import torch

from simic import registry
from simic.envs import rewards
from simic.envs.rewards import transition as registration
from simic.errors import SimicError
from simic.growth.life.vocabulary import Op, Stage

from .transitions import CHANCE, GAMMA, SETTING, measured, paid, transition

SIGMA = 0.02 * CHANCE


def one(mode: str, step, setting=SETTING) -> dict[str, float]:
    return {name: float(term[0]) for name, term in rewards.components(mode, step, setting).items()}


def test_a_mode_remembers_what_its_own_terms_read_and_no_more(make_slots):
    slots = make_slots([[Stage.HOLDING]])
    names = {mode: set(rewards.start(mode, slots, torch.ones(1), SETTING)) for mode in rewards.MODES}
    assert {mode: found for mode, found in names.items() if found} == {"escrow": {"escrow"}, "loss": {"tracked_loss"}}


def holding(make_slots, contribution: float, stable: float = 90.0, **flags):
    """A step of a seed in HOLDING, germinated at 40 points, whose host is stable at so many."""
    slots = measured(make_slots, Stage.HOLDING, contribution, 50.0)
    return transition(slots, slots, stable_accuracy=torch.tensor([stable]), **flags)


def test_escrow_rises_by_the_clip_falls_at_once_and_is_forfeited(make_slots):
    # c = 50 = p: harmonic 50, credit 5; c/p = 1 is in proportion
    found = paid("escrow", [holding(make_slots, 50.0)] * 4)
    balances = [0.0, 2.0, 4.0, 5.0, 5.0]
    for step, before, after in zip(found, balances, balances[1:], strict=False):
        assert float(step["escrow"]) == pytest.approx(GAMMA * after - before, abs=1e-6)
    for last in (holding(make_slots, -3.0), holding(make_slots, 50.0, ended=True, terminal=True)):
        found = paid("escrow", [*[holding(make_slots, 50.0)] * 3, last])
        assert float(found[3]["escrow"]) == pytest.approx(-5.0, abs=1e-6)
    # Truncated, the credit stays: what follows is bootstrapped.
    found = paid("escrow", [*[holding(make_slots, 50.0)] * 3, holding(make_slots, 50.0, ended=True)])
    assert float(found[3]["escrow"]) == pytest.approx(GAMMA * 5 - 5, abs=1e-6)


def test_escrow_counts_stable_accuracy_and_suspects_contribution_without_progress(make_slots):
    # p = 42 - 40 = 2 and c = 4: 2·2·4/6 · 0.1
    assert one("escrow", holding(make_slots, 4.0, stable=42.0))["escrow"] == pytest.approx(GAMMA * 0.26667, abs=1e-4)
    # c = 30, p = 2: harmonic 3.75 → 0.375; ratio 15 → -0.1 · 10/5 = -0.2
    assert one("escrow", holding(make_slots, 30.0, stable=42.0))["escrow"] == pytest.approx(GAMMA * 0.175, abs=1e-6)
    assert one("escrow", holding(make_slots, 30.0, stable=40.0))["escrow"] == 0.0
    harmful = one("escrow", holding(make_slots, -20.0))
    assert harmful["escrow"] == 0.0 and harmful["toxic"] == pytest.approx(-2.0)


def test_fossilizing_keeps_what_is_in_escrow(make_slots):
    steps = [holding(make_slots, 50.0)] * 3
    kept = measured(make_slots, Stage.FOSSILIZED, 50.0, 50.0)
    steps += [transition(steps[0].after, kept, Op.FOSSILIZE), transition(kept, kept, ended=True, terminal=True)]
    found = [float(step["escrow"]) for step in paid("escrow", steps)]
    assert found[3:] == [0.0, 0.0]
    assert sum(GAMMA**t * value for t, value in enumerate(found)) == pytest.approx(GAMMA**3 * 5.0, abs=1e-6)


def with_loss(make_slots, loss: float, committed: float = 1.5, **flags):
    slots = make_slots([[Stage.DORMANT]])
    return transition(slots, slots, loss=torch.tensor([loss]), committed_loss=torch.tensor([committed]), **flags)


def test_the_loss_family_rewards_improvement_and_only_what_lasts(make_slots):
    unit = 0.2 / SIGMA
    assert one("loss", with_loss(make_slots, 1.4))["loss_improvement"] > 0
    assert one("loss", with_loss(make_slots, 1.6))["loss_improvement"] < 0
    path = [1.4, 1.2, 0.9, 2.0, 1.0, 1.3]
    found = paid("loss", [with_loss(make_slots, loss) for loss in path])
    tracked = [1.5]
    for loss in path:
        tracked.append(max(loss, tracked[-1] - 5 * SIGMA))
    for step, before, after in zip(found, tracked, tracked[1:], strict=False):
        expected = unit * (GAMMA * (CHANCE - after) - (CHANCE - before))
        assert float(step["loss_improvement"]) == pytest.approx(expected, abs=1e-5)
    # Up and down again is worth nothing: the discounted sum depends on the ends alone.
    total = sum(GAMMA**t * float(step["loss_improvement"]) for t, step in enumerate(found))
    ends = unit * (GAMMA ** len(path) * (CHANCE - tracked[-1]) - (CHANCE - 1.5))
    assert total == pytest.approx(ends, abs=1e-5)


def test_the_loss_family_takes_back_what_was_not_committed(make_slots):
    steps = [with_loss(make_slots, 1.3)] * 3
    ending = with_loss(make_slots, 1.3, committed=1.5, ended=True, terminal=True)
    total = sum(GAMMA**t * float(s["loss_improvement"]) for t, s in enumerate(paid("loss", [*steps, ending])))
    assert total == pytest.approx(0.2 / SIGMA * (GAMMA**4 - 1) * (CHANCE - 1.5), abs=1e-5)
    # What the last step improves is capped as in any step, committed or not.
    leap = with_loss(make_slots, 0.1, committed=0.1, ended=True, terminal=True)
    paid_for = 0.2 / SIGMA * (GAMMA * (CHANCE - 1.5 + 5 * SIGMA) - (CHANCE - 1.5))
    assert one("loss", leap)["loss_improvement"] == pytest.approx(paid_for, abs=1e-5)
    # base ln 10, target 0.13 ln 10
    reached = (CHANCE - 1.5) / (CHANCE * 0.87)
    assert one("loss", ending)["loss_terminal"] == pytest.approx(reached, abs=1e-6)
    perfect = with_loss(make_slots, 0.0, committed=0.0, ended=True, terminal=True)
    assert one("loss", perfect)["loss_terminal"] == 1.0
    worst = with_loss(make_slots, math.inf, committed=math.nan, ended=True, terminal=True)
    assert one("loss", worst)["loss_terminal"] == 0.0
    assert math.isfinite(one("loss", worst)["loss_improvement"])


def scoring(make_slots, accuracy: float, kept: bool = False, **flags):
    """A step to so many committed points; a seed kept in it has 100 parameters, a tenth of the host's."""
    before, after = (make_slots([[stage]]) for stage in (Stage.HOLDING, Stage.FOSSILIZED if kept else Stage.HOLDING))
    return transition(before, after, committed_accuracy=torch.tensor([accuracy]), **flags)


def test_the_score_is_paid_as_it_changes(make_slots):
    # weight 0.1, from 50 points; a price of 5 takes 0.5 for 100 of 1000 parameters, and nothing while they are on trial
    for price, kept, worth in ((0.0, False, 60.0), (0.0, True, 60.0), (5.0, False, 60.0), (5.0, True, 59.5)):
        parts = one("score", scoring(make_slots, 60.0, kept), replace(SETTING, price=price))
        assert parts["score_change"] == pytest.approx(0.1 * (GAMMA * worth - 50.0), abs=1e-9)
    assert (
        one("score", scoring(make_slots, 40.0))["score_change"]
        < one("score", scoring(make_slots, 50.0))["score_change"]
    )
    assert list(one("score", scoring(make_slots, 60.0))) == ["shaping", "score_change", "intervention", "death"]


@pytest.mark.parametrize(
    "flags", [{"ended": True, "terminal": True}, {"ended": True}, {"terminal": True, "panicked": True}]
)
def test_an_episode_of_the_score_is_worth_what_it_ends_with(make_slots, flags):
    """Ups and downs on the way cancel; before the first step the score is the first validation's, 10 points here."""
    steps = [scoring(make_slots, accuracy) for accuracy in (30.0, 80.0, 20.0)]
    path = [*steps, scoring(make_slots, 70.0, kept=True, **flags)]
    path[0] = replace(path[0], committed_accuracy_before=torch.tensor([10.0]))
    total = sum(
        GAMMA**t * float(s["score_change"]) for t, s in enumerate(paid("score", path, replace(SETTING, price=5.0)))
    )
    assert total == pytest.approx(0.1 * (GAMMA**4 * 69.5 - 10.0), abs=1e-9)


def test_rent_of_the_loss_family_spares_young_seeds(make_slots):
    for age, g in ((2, 0.0), (3, 0.1)):
        slots = make_slots([[Stage.BLENDING]], age=[[age]])
        assert one("loss", transition(slots, slots))["loss_rent"] == pytest.approx(-0.05 * math.log1p(g))
    huge = transition(slots, slots, seed_params_after=torch.tensor([[10**9]]))
    assert one("loss", huge)["loss_rent"] == pytest.approx(-1.5 / 10)  # the cap, an episode's ten steps together


@pytest.fixture
def own_registry(monkeypatch):
    """Registrations of a test end with it."""
    monkeypatch.setattr(registration, "TERMS", dict(rewards.TERMS))
    monkeypatch.setattr(registration, "MODES", dict(rewards.MODES))
    monkeypatch.setattr(registration, "LEDGERS", dict(registration.LEDGERS))
    monkeypatch.setattr(registration, "OBJECTIVES", list(rewards.OBJECTIVES))
    monkeypatch.setattr(registry, "_KNOWN", {kind: list(names) for kind, names in registry._KNOWN.items()})


def test_wrong_registrations_are_refused_by_name(own_registry, make_slots):
    with pytest.raises(SimicError, match="'rent' is registered twice"):
        rewards.term("rent")(rewards.TERMS["rent"])
    with pytest.raises(SimicError, match="reward mode 'shaped' is registered twice"):
        rewards.mode("shaped", ("shaping",))
    with pytest.raises(SimicError, match="reward mode 'x': no term 'bonus'; registered are"):
        rewards.mode("x", ("shaping", "bonus"))
    with pytest.raises(SimicError, match="each once"):
        rewards.mode("x", ("death", "death"))
    with pytest.raises(SimicError, match="reward mode 'wealth': must be one of score, sparse"):
        rewards.components("wealth", transition(*[make_slots([[0]])] * 2), SETTING)
    rewards.term("flat")(lambda t, setting: torch.zeros(3))
    rewards.mode("flat", ("flat",))
    with pytest.raises(SimicError, match=r"'flat' gave torch.float32 \(3,\): must be float64 \(1,\)"):
        rewards.components("flat", transition(*[make_slots([[0]])] * 2), SETTING)
