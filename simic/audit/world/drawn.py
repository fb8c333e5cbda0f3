"""States that a short tour may not come to, drawn by hash: the lifecycle and the reward of each are compared.

Numbers are multiples of an eighth, which float32 holds exactly, so that rounding hides nothing.
"""

import copy
import math
from collections.abc import Sequence

import torch

from simic.audit.reference.world import life, rewards, streams
from simic.audit.reference.world.host import World
from simic.audit.reference.world.life import Measured, Seed, Slot
from simic.audit.reference.world.masks import decision
from simic.audit.reference.world.rewards import State
from simic.audit.world.ledger import Ledger
from simic.audit.world.tour import HEADS
from simic.envs.growth_env import GrowthEnv
from simic.envs.rewards import Setting, Transition, components
from simic.growth.life.lifecycle import Measurements, advance, record
from simic.growth.life.vocabulary import Action, Slots

DRAWN = 1 << 21  # names the stream
STATES = 256
OF_SEED = {  # fields of a seed by their names in the environment
    "velocity": "contribution_velocity",
    "unmeasured": "steps_since_measured",
    "healthy": "gradient_healthy",
}
OF_SLOT = ("stage", "dwell", "germinations", "stage_accuracy")


class DrawnNumbers:
    """Numbers of one stream, one after the other."""

    def __init__(self, rng_seed: int, *counters: int) -> None:
        self._words = streams.endless(streams.key(rng_seed, DRAWN, *counters))

    def below(self, count: int) -> int:
        """0 to count − 1."""
        return next(self._words) % count

    def eighths(self, low: int, high: int) -> float:
        """A multiple of an eighth."""
        return low + self.below(8 * (high - low) + 1) / 8

    def perhaps(self, value: float) -> float:
        """Missing once in four times."""
        return math.nan if self.below(4) == 0 else value


def slot(draws: DrawnNumbers, blueprints: int) -> Slot:
    """A state of a slot; not every one can be reached, and all must be dealt with alike."""
    stage = draws.below(len(life.STAGES))
    found = Slot(stage, draws.below(6), draws.below(3), draws.perhaps(draws.eighths(0, 100)))
    if stage not in life.LIVE:
        return found
    start, target = draws.below(5) / 8, life.TARGETS[draws.below(3)]
    steps = life.SPEEDS[1 + draws.below(3)]
    ramp = draws.below(3) if stage == life.BLENDING else life.STILL
    if ramp == life.DOWN:
        start, target = 0.75, 0.25
    if stage in (life.HOLDING, life.FOSSILIZED):
        start = target = 1.0
    at = 0.0 if stage in (life.GERMINATED, life.TRAINING) else start if ramp != life.STILL else target
    found.seed = Seed(
        blueprint=draws.below(blueprints),
        operator=draws.below(3),
        alpha=at,
        alpha_start=start,
        alpha_target=target,
        ramp=ramp,
        ramp_curve=draws.below(5),
        ramp_steps=steps,
        ramp_done=0 if ramp == life.STILL else draws.below(steps),
        tempo_steps=life.TEMPOS[draws.below(len(life.TEMPOS))],
        first_curve=draws.below(5),
        first_target=life.TARGETS[draws.below(3)],
        prune_scheduled=ramp == life.DOWN and draws.below(2) == 0,
        age=draws.below(12),
        germination_accuracy=draws.eighths(20, 40),
        accuracy=draws.eighths(20, 60),
        contribution=draws.perhaps(draws.eighths(-12, 24)),
        contribution_se=draws.eighths(0, 4),
        velocity=draws.perhaps(draws.eighths(-4, 4)),
        unmeasured=draws.below(3),
        gradient_ratio=draws.perhaps(draws.eighths(0, 2)),
        healthy=draws.below(4) > 0,
    )
    return found


def as_slots(hosts: Sequence[Sequence[Slot]]) -> Slots:
    """The same as the environment keeps them."""
    like = Slots.empty(len(hosts), len(hosts[0])).state_dict()
    state = {}
    for name, tensor in like.items():
        if name in OF_SLOT:
            values = [[getattr(place, name) for place in slots] for slots in hosts]
        else:
            own = next((key for key, theirs in OF_SEED.items() if theirs == name), name)
            values = [[getattr(place.seed, own) for place in slots] for slots in hosts]
        state[name] = torch.tensor(values, dtype=tensor.dtype)
    return Slots(**state)


def lives(env: GrowthEnv, world: World, ledger: Ledger) -> None:
    """Drawn decisions in drawn states, possible or not, and what is measured after them."""
    rules, count = world.params.train.lifecycle, world.body.slots
    draws = [DrawnNumbers(world.params.rng_seed, 0, number) for number in range(STATES)]
    hosts = [[slot(each, len(env.blueprints)) for _ in range(count)] for each in draws]
    sizes = [head.size for head in env.action_spec.heads]
    actions: list[dict[str, int]] = [
        dict(zip(HEADS, (each.below(size) for size in sizes), strict=True)) for each in draws
    ]
    accuracies = [each.eighths(10, 90) for each in draws]
    measured = [
        [_measured(each, accuracy) for _ in range(count)] for each, accuracy in zip(draws, accuracies, strict=True)
    ]
    action = Action(*torch.tensor([[each[head] for head in HEADS] for each in actions]).unbind(1))
    slots, events = advance(as_slots(hosts), action, rules, torch.tensor(accuracies))
    after = record(slots, _measurements(measured))
    for number, (own, each) in enumerate(zip(hosts, actions, strict=True)):
        told = life.advance(own, decision(each), rules, accuracies[number])
        where = f"drawn state {number}, {life.OPS[each['op']]} on slot {each['slot']}"
        found = [float(values[number]) for values in (events.effective_op, events.gate, events.gate_passed)]
        ledger.numbers("outcome of drawn decisions", where, found, [told.op, told.gate, told.passed])
        for place, seen in zip(own, measured[number], strict=True):
            life.remember(place, seen)
    for name, expected in as_slots(hosts).state_dict().items():
        rows = zip(getattr(after, name).tolist(), expected.tolist(), strict=True)
        for number, (found, own) in enumerate(rows):
            ledger.numbers("slots after drawn decisions", f"drawn state {number}, {name}", found, own)


def _measured(draws: DrawnNumbers, accuracy: float) -> Measured:
    worth = draws.perhaps(draws.eighths(-12, 24)), draws.eighths(0, 4)
    return Measured(accuracy, *worth, draws.perhaps(draws.eighths(0, 2)), draws.below(4) > 0)


def _measurements(measured: Sequence[Sequence[Measured]]) -> Measurements:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([[getattr(place, name) for place in row] for row in measured])

    return Measurements(
        accuracy=torch.tensor([row[0].accuracy for row in measured]),
        contribution=column("contribution"),
        contribution_se=column("contribution_se"),
        gradient_ratio=column("gradient_ratio"),
        gradient_healthy=column("healthy"),
    )


def payments(env: GrowthEnv, world: World, ledger: Ledger) -> None:
    """The terms of the reward between drawn states."""
    train, params = world.params.train, world.body.params
    steps = [_step(DrawnNumbers(world.params.rng_seed, 1, number), env, world) for number in range(STATES)]
    setting = Setting.of(train, params, torch.ones(1, dtype=torch.float64), env.steps)
    found = components(train.reward.mode, _transition(steps, train.episode_end == "terminate"), setting)
    for number, step in enumerate(steps):
        for name, expected in rewards.components(step, train, params, env.steps).items():
            where = f"drawn transition {number}"
            value = float(found[name][number]) if name in found else math.nan
            ledger.number(f"drawn reward: {name}", where, value, expected)


def _step(draws: DrawnNumbers, env: GrowthEnv, world: World) -> rewards.Step:
    before, after = ([slot(draws, len(env.blueprints)) for _ in range(world.body.slots)] for _ in range(2))
    for old, new in zip(before, after, strict=True):
        if draws.below(3) == 0 and old.stage == life.HOLDING:  # as fossilizing leaves it
            new.stage, new.seed = life.FOSSILIZED, copy.copy(old.seed)
    op, place, ended = draws.below(len(life.OPS)), draws.below(world.body.slots), draws.below(4) == 0
    return rewards.Step(_state(draws, before), _state(draws, after), op, place, ended)


def _state(draws: DrawnNumbers, slots: list[Slot]) -> State:
    sizes = [1 + draws.below(2000) if place.alive else 0 for place in slots]
    kept = sum(size for size, place in zip(sizes, slots, strict=True) if place.stage == life.FOSSILIZED)
    return State(slots, sizes, draws.eighths(10, 90), kept)


def _transition(steps: Sequence[rewards.Step], terminates: bool) -> Transition:
    count = len(steps)
    befores, afters = ([getattr(step, side) for step in steps] for side in ("before", "after"))
    nothing = torch.zeros(count, dtype=torch.float64)
    ended = torch.tensor([step.ended for step in steps])
    return Transition(
        before=as_slots([state.slots for state in befores]),
        after=as_slots([state.slots for state in afters]),
        op=torch.tensor([step.op for step in steps]),
        slot=torch.tensor([step.slot for step in steps]),
        seed_params_before=torch.tensor([state.seed_params for state in befores]),
        seed_params_after=torch.tensor([state.seed_params for state in afters]),
        stable_accuracy=nothing,
        committed_accuracy_before=torch.tensor([state.committed_accuracy for state in befores]),
        committed_accuracy=torch.tensor([state.committed_accuracy for state in afters]),
        loss=nothing,
        committed_loss=nothing,
        ended=ended,
        terminal=ended & terminates,
        panicked=torch.zeros(count, dtype=torch.bool),
        ledgers={},
    )
