"""The patient rule equals a scalar one host at a time, and keeps its word on real hosts."""

import pytest
import torch

from simic.envs import patient
from simic.envs.patient import KEEP_ABOVE_PCT, PATIENCE_EPOCHS, Patient, steps_to_clear, steps_to_finish, tries
from simic.envs.play import play
from simic.growth.life.lifecycle import LIVE_STAGES
from simic.growth.life.vocabulary import Op, Ramp, Stage
from simic.growth.networks.blueprints import blueprints_of
from tests.evaluation.scripted import MANUAL, SLOTS, World, episode, legal
from tests.evaluation.tiny import STEPS, TASKS, tiny_env, tiny_suite
from tests.standard import Lifecycle


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    return tiny_suite(tmp_path_factory.mktemp("tiny"))


UNFINISHED = LIVE_STAGES - {Stage.FOSSILIZED}


class ScalarPatient:
    """Plain Python, written from the rule, not from the implementation."""

    def __init__(self, order, steps, to_finish, to_clear):
        self.order, self.steps, self.to_finish, self.to_clear = list(order), steps, to_finish, to_clear

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
        worth, error = seed["contribution"], seed["contribution_se"]
        if worth != worth:
            return Op.WAIT
        if seed["dwell"] >= PATIENCE_EPOCHS and worth > max(KEEP_ABOVE_PCT, 2 * error):
            return Op.FOSSILIZE
        if left == 1 and worth > 0:
            return Op.FOSSILIZE
        return Op.PRUNE if another and seed["dwell"] >= PATIENCE_EPOCHS else Op.WAIT


@pytest.mark.parametrize(("most", "count"), [(1, 9), (3, 9), (1, 2)])
def test_patient_rule_equals_the_scalar_rule(most, count):
    world = World(envs=150, lifecycle=MANUAL.model_copy(update={"embargo_steps": 0, "max_seeds": most}))
    order, steps = tries("cnn", SLOTS)[:count], 60
    # Germinated; TRAINING from the next step for 3; BLENDING at once to the end, HOLDING by the next advance; measured:
    # 6 steps on.
    # Pruned, embargoed, reset and dormant take a step each.
    assert (steps_to_finish(world.lifecycle), steps_to_clear(world.lifecycle)) == (6, 4)
    actor, scalars = Patient(world.lifecycle, order), [ScalarPatient(order, steps, 6, 4) for _ in range(150)]
    actor.start(episode(world))
    seen = set()
    for step in range(steps):
        situation = world.situation(step)
        action = actor.act(situation)
        legal(world, situation, action)
        for host, scalar in enumerate(scalars):
            expected = scalar.act(seeds_of(world.slots, host), asker(situation.observation.masks, host), step)
            assert Op(int(action.op[host])) == expected[0], (step, host)
            if expected[0] != Op.WAIT:
                assert int(action.slot[host]) == expected[1]
            if expected[0] == Op.GERMINATE:
                assert int(action.blueprint[host]) == expected[2]
            seen.add(expected[0])
        world.step(action, step)
    assert seen == {Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.PRUNE, Op.FOSSILIZE}
    assert (world.slots.stage == Stage.FOSSILIZED).sum(dim=1).max() == most


def seeds_of(slots, host):
    fields = ("dwell", "age", "ramp", "contribution", "contribution_se", "gradient_healthy")
    rows = [{name: getattr(slots, name)[host, slot].item() for name in fields} for slot in range(SLOTS)]
    return [{**row, "stage": Stage(int(slots.stage[host, k])), "slot": k} for k, row in enumerate(rows)]


def asker(masks, host):
    def can(op, slot, blueprint):
        allowed = bool(masks["slot"][host, op, slot])
        return allowed and (op != Op.GERMINATE or bool(masks["blueprint"][host, slot, blueprint]))

    return can


def test_every_family_has_tries_in_every_slot_and_each_once():
    for family in patient.TRIED:
        order = tries(family, 3)
        assert {slot for slot, _ in order} == {0, 1, 2} and len(set(order)) == len(order)
        assert all(0 <= kind < len(blueprints_of(family)) for _, kind in order)


@pytest.mark.parametrize("changes", [{"max_seeds": 1}, {"max_seeds": 2}, {"auto_advance": False, "max_seeds": 1}])
def test_on_real_hosts_each_try_is_finished_and_budgets_hold(bank, changes):
    """The environment refuses what masks forbid, so that the episode ends is the proof that none was asked."""
    lifecycle = Lifecycle(training_dwell=1, min_prune_age=4, embargo_steps=0, **changes)
    env = tiny_env(bank, lifecycle=lifecycle)
    order = tries("cnn", env.host.slots)
    actor, germinated, last = Patient(lifecycle, order), [[] for _ in range(TASKS)], []

    def note(situation, action, reward, info):
        for host in (action.op == Op.GERMINATE).nonzero().flatten().tolist():
            germinated[host].append((int(action.slot[host]), int(action.blueprint[host])))
            assert situation.step + steps_to_finish(lifecycle) < STEPS
        live = torch.isin(info.stage, torch.tensor(sorted(LIVE_STAGES)))
        assert (live.sum(dim=1) <= changes["max_seeds"]).all()
        last[:] = [situation, action]

    play(env, actor, 0, note, torch.arange(TASKS))
    for tried in germinated:
        assert tried == [pair for pair in order if pair in tried] and tried  # in order, none twice
    assert max(map(len, germinated)) > 1, "somebody must have tried again"
    # At the last decision every seed is in HOLDING, FOSSILIZED or gone, and what helped was kept.
    situation, action = last
    unfinished = torch.isin(situation.slots.stage, torch.tensor(sorted(UNFINISHED - {Stage.HOLDING})))
    assert not unfinished.any()
    helps = (situation.slots.stage == Stage.HOLDING) & (situation.slots.contribution > 0)
    assert (action.op[helps.any(dim=1)] == Op.FOSSILIZE).all()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 5), ({"auto_advance": False}, 6), ({"training_dwell": 0, "blending_dwell": 0, "min_prune_age": 0}, 1)],
)
def test_a_seed_is_measured_in_holding_when_it_is_due(bank, changes, expected):
    """``steps_to_finish`` is exact: one step earlier the seed cannot be fossilized, then it can."""
    lifecycle = Lifecycle(max_seeds=1, **changes)
    env = tiny_env(bank, hosts=2, lifecycle=lifecycle)
    ready = []
    play(
        env,
        Patient(lifecycle, tries("cnn", env.host.slots)),
        0,
        lambda situation, action, reward, info: ready.append(situation.observation.masks["op"][:, Op.FOSSILIZE]),
        torch.arange(2),
    )
    due = steps_to_finish(lifecycle)
    assert due == expected and ready[due].all() and not ready[due - 1].any()
