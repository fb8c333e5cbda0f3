"""The patient rule equals a scalar one host at a time, and keeps its word on real hosts."""

import pytest
import torch

from simic.envs.patient import Patient, steps_to_clear, steps_to_finish, tries
from simic.envs.play import play
from simic.growth.life.lifecycle import LIVE_STAGES
from simic.growth.life.vocabulary import Op, Ramp, Stage
from tests.evaluation.scripted import MANUAL, SLOTS, World, as_the_scalar_rules
from tests.evaluation.tiny import tiny_env, tiny_suite
from tests.standard import Lifecycle

# As the rule is published: it is an opponent, and a handicap would flatter whoever is compared with it.
PATIENCE_EPOCHS = 2
KEEP_ABOVE_PCT = 5.0


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    return tiny_suite(tmp_path_factory.mktemp("tiny"))


UNFINISHED = LIVE_STAGES - {Stage.FOSSILIZED}


class ScalarPatient:
    """Plain Python, written from the rule, not from the implementation."""

    def __init__(self, order, steps, to_finish, to_clear):
        self.order = list(order)
        self.steps = steps
        self.to_finish = to_finish
        self.to_clear = to_clear

    def act(self, seeds, can, step):
        """Returns (op, slot, blueprint); ``can(op, slot, blueprint)`` asks the masks."""
        left = self.steps - step
        live = [seed for seed in seeds if seed["stage"] in UNFINISHED]
        if live:
            op = self.manage(live[0], left)
            return (op if can(op, live[0]["slot"], None) else Op.WAIT), live[0]["slot"], None
        for place, (slot, kind) in enumerate(self.order):
            if left > self.to_finish and can(Op.GERMINATE, slot, kind):
                del self.order[place]
                return Op.GERMINATE, slot, kind
        return Op.WAIT, 0, None

    def manage(self, seed, left):
        another = bool(self.order) and left > self.to_clear + self.to_finish
        if seed["stage"] != Stage.HOLDING:
            if another and seed["age"] > self.to_finish + PATIENCE_EPOCHS:
                return Op.PRUNE
            ready = {
                Stage.GERMINATED: True,
                Stage.TRAINING: seed["dwell"] >= 3 and seed["gradient_healthy"],
                Stage.BLENDING: seed["ramp"] == Ramp.HOLD,
            }
            return Op.ADVANCE if ready[seed["stage"]] else Op.WAIT
        worth = seed["contribution"]
        error = seed["contribution_se"]
        if worth != worth:
            return Op.WAIT
        if seed["dwell"] >= PATIENCE_EPOCHS and worth > max(KEEP_ABOVE_PCT, 2 * error):
            return Op.FOSSILIZE
        if left == 1 and worth > 0:
            return Op.FOSSILIZE
        return Op.PRUNE if another and seed["dwell"] >= PATIENCE_EPOCHS else Op.WAIT


@pytest.mark.parametrize(("most", "count"), [(1, 9), (3, 9), (1, 2)])
def test_patient_rule_equals_the_scalar_rule(most, count):
    world = World(
        envs=150, lifecycle=MANUAL.model_copy(update={"embargo_steps": 0, "max_seeds": most})
    )
    order = tries("cnn", SLOTS)[:count]
    steps = 60
    # Germinated; TRAINING from the next step for 3; BLENDING at once to the end, HOLDING by the next advance; measured:
    # 6 steps on.
    # Pruned, embargoed, reset and dormant take a step each.
    assert (steps_to_finish(world.lifecycle), steps_to_clear(world.lifecycle)) == (6, 4)
    actor = Patient(world.lifecycle, order)
    scalars = [ScalarPatient(order, steps, 6, 4) for _ in range(150)]
    met = as_the_scalar_rules(world, actor, scalars, steps)
    assert {op for op, _ in met} == {Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.PRUNE, Op.FOSSILIZE}
    assert (world.slots.stage == Stage.FOSSILIZED).sum(dim=1).max() == most


# Strict gates that no measurement keeps closed.
STRICT = {"gates": "strict", "min_improvement_pct": -100.0, "min_gradient_ratio": 0.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 5),
        ({"auto_advance": False}, 6),
        ({"training_dwell": 0, "blending_dwell": 0, "min_prune_age": 0}, 1),
        ({"training_dwell": 0, "blending_dwell": 0, **STRICT}, 2),
        ({"training_dwell": 0, "blending_dwell": 1, **STRICT}, 3),
    ],
)
def test_a_seed_is_measured_in_holding_when_it_is_due(bank, changes, expected):
    """``steps_to_finish`` is exact: one step earlier the seed cannot be fossilized, then it can."""
    lifecycle = Lifecycle(max_seeds=1).model_copy(update=changes)
    env = tiny_env(bank, hosts=2, lifecycle=lifecycle, episode_steps=7)
    ready = []
    due = steps_to_finish(lifecycle)
    patient = Patient(lifecycle, tries("cnn", env.host.slots))
    play(
        env,
        patient,
        0,
        lambda s, a, r, info: ready.append(s.observation.masks["op"][:, Op.FOSSILIZE]),
        torch.arange(2),
    )
    assert due == expected and ready[due].all() and not ready[due - 1].any()
