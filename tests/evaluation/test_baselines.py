"""Baselines drive the real lifecycle with scripted measurements; the heuristic equals a scalar one host at a time."""

from dataclasses import replace

import pytest
import torch
from scripted import SLOTS, World, episode, legal

from simic.envs.play import Episode
from simic.errors import SimicError
from simic.evaluation import baselines
from simic.evaluation.baselines import FixedSchedule, Heuristic, RandomLegal, Static
from simic.growth.life.lifecycle import LIVE_STAGES
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Lifecycle
from tests.helpers import some

STEPS = 25


def play(world, actor, iteration=0):
    actor.start(episode(world, iteration))
    history = []
    for step in range(STEPS):
        situation = world.situation(step)
        action = actor.act(situation)
        legal(world, situation, action)
        history.append((action, world.step(action, step)))
    return history


def test_static_never_grows():
    world = World()
    for action, events in play(world, Static()):
        assert (action.op == Op.WAIT).all() and not events.germinated.any()
    assert (world.slots.stage == Stage.DORMANT).all()


def test_random_legal_is_legal_reproducible_and_uses_every_op():
    worlds = [World(envs=400), World(envs=400)]
    histories = [play(world, RandomLegal(world.spec)) for world in worlds]
    ops = torch.stack([torch.stack([action.op for action, _ in history]) for history in histories])
    assert torch.equal(ops[0], ops[1])
    assert set(ops[0].unique().tolist()) == set(Op)
    other = World(envs=400)
    assert not torch.equal(ops[0], torch.stack([a.op for a, _ in play(other, RandomLegal(other.spec), iteration=1)]))


# --- the heuristic for one host, written independently ---------------------------------------------------------------


class ScalarHeuristic:
    """Plain Python, plain lists; written from the rules, not from the implementation."""

    def __init__(self, rotation):
        self.rotation, self.turn, self.embargo, self.penalty = rotation, 0, 0, dict.fromkeys(rotation, 0.0)

    def choose_blueprint(self, possible):
        order = self.rotation[self.turn :] + self.rotation[: self.turn]
        order = [name for name in order if name in possible]
        free = [name for name in order if self.penalty[name] < 3.0]
        if free:
            return free[0]
        return min(order, key=lambda name: self.penalty[name]) if order else None

    def act(self, seeds, can, plateau, stabilised, step):
        """``can(op, slot, blueprint)`` asks the masks; returns (op, slot, blueprint)."""
        decision = self.decide(seeds, can, plateau, stabilised, step)
        self.embargo = 5 if decision[0] == Op.PRUNE else max(0, self.embargo - 1)
        self.penalty = {name: value * 0.5 for name, value in self.penalty.items()}
        self.penalty = {name: value if value >= 0.1 else 0.0 for name, value in self.penalty.items()}
        if decision[0] == Op.PRUNE and decision[2] in self.penalty:
            self.penalty[decision[2]] += 2.0
        if decision[0] == Op.GERMINATE:
            self.turn = (self.rotation.index(decision[2]) + 1) % len(self.rotation)
        return decision

    def decide(self, seeds, can, plateau, stabilised, step):
        live = [s for s in seeds if s["stage"] in LIVE_STAGES - {Stage.FOSSILIZED}]
        if not live:
            return self.germinate(can, plateau, stabilised, step)
        seed = live[0]
        op = self.manage(seed)
        if not can(op, seed["slot"], seed["blueprint"]):
            op = Op.WAIT
        return op, seed["slot"], seed["blueprint"]

    def germinate(self, can, plateau, stabilised, step):
        if step >= 5 and stabilised and self.embargo == 0 and plateau >= 3:
            possible = [n for n in self.rotation if any(can(Op.GERMINATE, k, n) for k in range(SLOTS))]
            name = self.choose_blueprint(possible)
            if name is not None:
                return Op.GERMINATE, next(k for k in range(SLOTS) if can(Op.GERMINATE, k, name)), name
        return Op.WAIT, 0, None

    def manage(self, seed):
        failing = seed["dwell"] >= 5 and seed["accuracy"] - seed["stage_accuracy"] < -2.0
        if seed["stage"] == Stage.GERMINATED:
            return Op.ADVANCE
        if seed["stage"] in (Stage.TRAINING, Stage.BLENDING) and failing:
            return Op.PRUNE
        if seed["stage"] == Stage.TRAINING:
            return Op.ADVANCE
        if seed["stage"] == Stage.BLENDING:
            return Op.ADVANCE if seed["alpha"] >= 1.0 else Op.WAIT
        c, total = seed["contribution"], seed["accuracy"] - seed["germination_accuracy"]
        if c != c:
            return Op.WAIT
        if c > 0.1 and total < 0:
            return Op.PRUNE
        return Op.FOSSILIZE if c > 0.5 else Op.PRUNE


RULED = [("cnn", 0), ("cnn", 3), ("mlp", 0), ("mlp", 3)]


@pytest.mark.parametrize(("family", "min_prune_age"), some(RULED, *RULED[1:3]))
def test_heuristic_equals_the_scalar_rules(family, min_prune_age):
    # A short embargo of the slots lets several germinations fit into one history.
    world = World(
        envs=60, family=family, lifecycle=Lifecycle(min_prune_age=min_prune_age, embargo_steps=0, auto_advance=False)
    )
    names = [item.name for item in blueprints_of(family)]
    rotation = [names[i] for i in baselines.rotation_of(family)]
    scalars = [ScalarHeuristic(rotation) for _ in range(world.envs)]
    actor = Heuristic(family)
    actor.start(episode(world))
    seen = set()
    for step in range(120):
        situation = world.situation(step)
        action = actor.act(situation)
        legal(world, situation, action)
        for host, scalar in enumerate(scalars):
            expected = scalar.act(
                seeds_of(world.slots, host, names), asker(situation.observation.masks, host, names),
                int(world.tracker.plateau[host]), bool(world.tracker.stabilised[host]), step,
            )  # fmt: skip
            assert Op(int(action.op[host])) == expected[0], (step, host)
            if expected[0] != Op.WAIT:
                assert int(action.slot[host]) == expected[1]
            if expected[0] == Op.GERMINATE:
                assert names[int(action.blueprint[host])] == expected[2]
            seen.add((expected[0], expected[2]))
        world.step(action, step)
        if step % 3 == 0:  # let the plateau come back after noisy epochs
            world.tracker = replace(world.tracker, plateau=torch.full((world.envs,), 3))
    germinated = {name for op, name in seen if op == Op.GERMINATE}
    assert germinated == set(rotation)
    assert {op for op, _ in seen} >= {Op.ADVANCE, Op.PRUNE, Op.FOSSILIZE}


def seeds_of(slots, host, names):
    fields = ("stage", "dwell", "accuracy", "stage_accuracy", "alpha", "contribution", "germination_accuracy")
    rows = []
    for slot in range(SLOTS):
        row = {name: getattr(slots, name)[host, slot].item() for name in fields}
        index = int(slots.blueprint[host, slot])
        rows.append({**row, "stage": Stage(row["stage"]), "slot": slot, "blueprint": names[index] if index >= 0 else 0})
    return rows


def asker(masks, host, names):
    def can(op, slot, blueprint):
        if op == Op.GERMINATE:
            return bool(masks["slot"][host, op, slot]) and bool(masks["blueprint"][host, slot, names.index(blueprint)])
        return bool(masks["slot"][host, op, slot])

    return can


def test_heuristic_waits_while_the_host_still_improves():
    world = World(plateau=False)
    actor = Heuristic("cnn")
    actor.start(episode(world))
    for step in range(10):
        action = actor.act(world.situation(step))
        assert (action.op == Op.WAIT).all()
        world.step(action, step)


def test_heuristic_never_fossilizes_a_seed_without_a_measurement():
    slots = Slots.empty(2, SLOTS)
    held = {"stage": int(Stage.HOLDING), "blueprint": 0, "alpha": 1.0, "age": 9, "dwell": 4, "accuracy": 60.0,
            "germination_accuracy": 50.0, "stage_accuracy": 55.0}  # fmt: skip
    for name, value in held.items():
        getattr(slots, name)[:, 0] = value
    slots.contribution[1, 0] = 5.0
    world = World(envs=2)
    world.slots = slots
    actor = Heuristic("cnn")
    actor.start(episode(world))
    assert actor.act(world.situation(9)).op.tolist() == [Op.WAIT, Op.FOSSILIZE]


def test_penalised_blueprints_are_skipped_and_the_least_penalised_taken_last():
    actor = Heuristic("cnn")
    actor.start(Episode(torch.arange(3), 0, 1, 4))
    actor.penalty = torch.tensor([[3.5, 0.0, 0, 0, 0, 0], [4.0, 3.5, 3.0, 6.0, 5.0, 6.0], [0.0, 0, 0, 0, 0, 0]])
    everywhere = torch.ones(3, SLOTS, len(blueprints_of("cnn")), dtype=torch.bool)
    choice, slot = actor._next_blueprint(everywhere)
    assert choice.tolist() == [1, 2, 0]
    assert slot.tolist() == [0, 0, 0]


def test_rotation_of_another_family_is_refused(monkeypatch):
    monkeypatch.setitem(baselines.ROTATION, "mlp", ("conv_light",))
    with pytest.raises(SimicError, match=r"conv_light.*mlp_small"):
        Heuristic("mlp")


# --- fixed schedule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["cnn", "mlp"])
def test_fixed_schedule_fossilizes_one_seed_per_slot_on_time(family):
    world = World(envs=4, family=family)
    steps = baselines.germination_steps(SLOTS, STEPS)
    assert steps == (0, 4, 8)
    history = play(world, FixedSchedule(family, world.lifecycle, steps))
    assert (world.slots.stage[:, :].eq(Stage.FOSSILIZED)).sum(1).min() >= 2  # unmeasured seeds cannot pass gate 5
    assert (history[0][1].germinated[:, 0]).all()
    assert sum(events.germinated.sum() for _, events in history) == 4 * SLOTS
    # Blind but not clumsy: it never asks a gate that refuses.
    assert all(events.gate_passed[events.gate >= 0].all() for _, events in history)


def test_fixed_schedule_germinates_its_blueprint_in_slot_order():
    world = World(envs=2)
    names = [item.name for item in blueprints_of("cnn")]
    history = play(world, FixedSchedule("cnn", world.lifecycle, (2, 6), "norm"))
    planted = [
        (step, int(e.germinated[0].int().argmax())) for step, (_, e) in enumerate(history) if e.germinated[0].any()
    ]
    assert ([slot for _, slot in planted], planted[0][0]) == ([0, 1], 2)
    assert planted[1][0] >= 6
    assert {int(a.blueprint[0]) for a, _ in history if a.op[0] == Op.GERMINATE} == {names.index("norm")}


def test_fixed_schedule_with_an_unknown_blueprint_is_refused():
    with pytest.raises(SimicError, match=r"'conv_light' of family 'mlp'; known are"):
        FixedSchedule("mlp", Lifecycle(), (0,), "conv_light")


def test_every_actor_is_an_action_of_the_whole_population():
    world = World(envs=5)
    for actor in (Static(), RandomLegal(world.spec), Heuristic("cnn"), FixedSchedule("cnn", Lifecycle(), (0,))):
        actor.start(episode(world))
        action = actor.act(world.situation(0))
        assert isinstance(action, Action)
        assert all(head.shape == (5,) and head.dtype == torch.int64 for head in action)
