"""The life of a seed in the reference, step by step, with the numbers worked out by hand."""

import math

import pytest

from simic.certify import life
from simic.certify.life import Decision, Measured, Slot, advance, allowed, remember
from tests.standard import Lifecycle

RULES = Lifecycle(training_dwell=2, embargo_steps=0, reset_steps=1, min_prune_age=0, sequential_development=False)
WELL = Measured(accuracy=50.0, contribution=4.0, contribution_se=1.0, gradient_ratio=1.0, healthy=True)
WAIT = Decision(life.WAIT)


def played(slots: list[Slot], *decisions: Decision, rules: Lifecycle = RULES) -> list[int]:
    """Stages of the first slot after each decision and its epoch."""
    found = []
    for decision in decisions:
        advance(slots, decision, rules, 40.0)
        for slot in slots:
            remember(slot, WELL)
        found.append(slots[0].stage)
    return found


def test_a_seed_goes_its_way_by_itself_and_is_kept() -> None:
    slots = [Slot(), Slot()]
    germinate = Decision(life.GERMINATE, tempo=3, target=1.0)
    stages = played(slots, germinate, *[WAIT] * 6, Decision(life.FOSSILIZE))
    # Dwell 2 in TRAINING; the ramp begins after BLENDING was entered, and its third tick lands.
    assert stages == [
        life.GERMINATED,
        life.TRAINING,
        life.TRAINING,
        *[life.BLENDING] * 3,
        life.HOLDING,
        life.FOSSILIZED,
    ]
    assert slots[0].seed.alpha == 1.0 and slots[0].seed.age == 8 and slots[1].stage == life.DORMANT


def test_a_pruned_slot_rests_and_is_free_again() -> None:
    slots = [Slot()]
    stages = played(slots, Decision(life.GERMINATE), Decision(life.PRUNE), *[WAIT] * 3)
    assert stages == [life.GERMINATED, life.PRUNED, life.EMBARGOED, life.RESETTING, life.DORMANT]
    assert slots[0].germinations == 1 and slots[0].seed == life.Seed()


def test_a_seed_that_acts_fades_out() -> None:
    slots = [Slot(life.HOLDING, seed=life.Seed(blueprint=0, alpha=1.0, alpha_target=1.0, age=9))]
    prune = Decision(life.PRUNE, speed=3)
    stages = played(slots, prune, WAIT)
    assert stages == [life.BLENDING, life.BLENDING] and slots[0].frozen
    assert slots[0].seed.alpha == pytest.approx(1 / 3)
    assert played(slots, WAIT) == [life.PRUNED]


AT_ONCE = RULES.model_copy(update={"training_dwell": 0, "blending_dwell": 0, "reset_steps": 0, "max_seeds": 1})


@pytest.mark.parametrize(
    ("tempo", "target", "stage"), [(0, 1.0, life.HOLDING), (0, 0.5, life.BLENDING), (3, 1.0, life.BLENDING)]
)
def test_stages_that_take_no_time_are_passed_in_the_step_of_germination(tempo: int, target: float, stage: int) -> None:
    slots = [Slot()]
    assert played(slots, Decision(life.GERMINATE, tempo=tempo, target=target), rules=AT_ONCE) == [stage]
    assert slots[0].seed.alpha == (0.0 if tempo else target) and slots[0].dwell == 1
    strict = AT_ONCE.model_copy(update={"gates": "strict"})
    assert played([Slot()], Decision(life.GERMINATE, tempo=tempo), rules=strict) == [life.TRAINING]


def test_a_slot_that_never_rests_takes_the_next_seed_in_the_step_in_which_it_loses_one() -> None:
    slots, germinate = [Slot(), Slot()], Decision(life.GERMINATE, tempo=0, target=1.0)
    stages = played(slots, germinate, germinate, Decision(life.PRUNE), germinate, rules=AT_ONCE)
    assert stages == [life.HOLDING, life.HOLDING, life.PRUNED, life.HOLDING]
    assert slots[0].germinations == 3 and slots[0].seed.age == 1
    # It makes room for itself; another slot has none, and a slot that rests takes nothing.
    assert allowed(slots, AT_ONCE)[life.GERMINATE] == [True, False]
    assert allowed(slots, AT_ONCE.model_copy(update={"min_prune_age": 2}))[life.GERMINATE] == [False, False]
    assert allowed(slots, AT_ONCE.model_copy(update={"reset_steps": 1}))[life.GERMINATE] == [False, False]


def test_who_replaces_a_seed_asks_the_gate_of_a_new_one() -> None:
    slots = [Slot(life.HOLDING, seed=life.Seed(blueprint=0, alpha=1.0, alpha_target=1.0))]  # nothing measured
    assert advance(slots, Decision(life.GERMINATE, blueprint=1), AT_ONCE, 40.0) == life.Outcome(life.GERMINATE, 0, True)
    assert slots[0].seed.blueprint == 1


def test_an_op_that_its_gate_refuses_is_a_wait() -> None:
    slots = [Slot(life.HOLDING, seed=life.Seed(blueprint=0, alpha=1.0, alpha_target=1.0))]  # nothing measured
    outcome = advance(slots, Decision(life.FOSSILIZE), RULES, 40.0)
    assert outcome == life.Outcome(life.WAIT, 5, False) and slots[0].stage == life.HOLDING


def test_one_seed_at_a_time_where_the_rules_say_so() -> None:
    slots = [Slot(life.TRAINING, seed=life.Seed(blueprint=0)), Slot()]
    possible = [allowed(slots, RULES.model_copy(update=update))[life.GERMINATE] for update in (
        {}, {"max_seeds": 1}, {"sequential_development": True},
    )]  # fmt: skip
    assert possible == [[False, True], [False, False], [False, False]]


def test_curves_begin_at_0_and_end_at_1() -> None:
    for curve in range(5):
        values = [life.along(curve, n / 10) for n in range(11)]
        assert values[0] == pytest.approx(0.0, abs=1e-15) and values[-1] == pytest.approx(1.0)
        assert values == sorted(values)
    assert life.along(life.COSINE, 0.5) == pytest.approx(0.5)
    # (σ(−6) … σ(6)) at t = ¼: σ(−3) = 0.04743, σ(−6) = 0.00247.
    assert life.along(life.STANDARD, 0.25) == pytest.approx((0.0474259 - 0.0024726) / (1 - 2 * 0.0024726), rel=1e-5)


def test_measurements_are_smoothed() -> None:
    slot = Slot(life.HOLDING, seed=life.Seed(blueprint=0))
    for contribution, ratio in ((4.0, 1.0), (6.0, 3.0), (math.nan, math.nan)):
        remember(slot, Measured(50.0, contribution, 1.0, ratio, True))
    assert slot.seed.velocity == pytest.approx(0.3 * 2.0)
    assert slot.seed.gradient_ratio == pytest.approx(0.9 * 1.0 + 0.1 * 3.0)
    assert slot.seed.contribution == 6.0 and slot.seed.unmeasured == 1
