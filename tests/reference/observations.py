"""The policy's observation of one host, in the order of docs/observations.md."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.reference import life
from tests.reference.epochs import NAN, Validation
from tests.reference.life import TIE, Slot

SHOWN = 5  # validations
KEPT = 10
STABLE = (-0.05, 0.03)  # relative fall of the loss
STABLE_STEPS = 3
PLATEAU = 0.5  # points


@dataclass
class History:
    """Hold a host's validations so far, the newest last."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    plateau: int = 0
    best: float = NAN
    stable_run: int = 0
    stabilised: bool = False

    def add(self, loss: float, accuracy: float) -> None:
        if self.losses:
            gain = accuracy - self.accuracies[-1]
            self.plateau = 0 if math.isnan(gain) or gain >= PLATEAU - TIE else self.plateau + 1
            fall = (self.losses[-1] - loss) / self.losses[-1]
            self.stable_run = self.stable_run + 1 if STABLE[0] < fall < STABLE[1] else 0
            self.stabilised = self.stabilised or self.stable_run >= STABLE_STEPS
        self.losses = [*self.losses, loss][-KEPT:]
        self.accuracies = [*self.accuracies, accuracy][-KEPT:]
        self.best = accuracy if math.isnan(self.best) else max(self.best, accuracy)

    def back(self, values: Sequence[float], lag: int) -> float:
        """Return the value so many validations ago; NaN before the first."""
        return values[-1 - lag] if lag < len(values) else NAN


@dataclass(frozen=True)
class Sight:
    slots: Sequence[Slot]
    history: History
    step: int
    steps: int
    chance: float
    train_loss: float
    train_accuracy: float
    op: int  # that took effect last, -1 before the first
    succeeded: bool
    validation: Validation
    seed_params: Sequence[int]
    host_params: int
    budget: float
    trials: Sequence["Trial"]


@dataclass
class Trial:
    """Hold what is known of a blueprint in the episode, over all slots: its ``alignment`` with the task, how often it
    germinated, and the contribution measured last.
    """

    alignment: float = 0.0
    germinations: int = 0
    gained: float = NAN


def squashed(value: float) -> float:
    """Return x / (1 + x), 1 at infinity; 0 for NaN."""
    return 0.0 if math.isnan(value) else 1.0 if math.isinf(value) else value / (1.0 + value)


def signed_log(points: float) -> float:
    """Return ±ln(1 + |x|) / ln 101 within ±1; 0 for NaN."""
    if math.isnan(points):
        return 0.0
    return max(-1.0, min(1.0, math.copysign(math.log1p(abs(points)) / math.log(101.0), points)))


def steps_squashed(steps: int) -> float:
    return squashed(steps / 8.0)


def missing(value: float) -> float:
    return float(math.isnan(value))


def features(sight: Sight) -> list[float]:
    """Return all columns: the base, then those of each slot, then those of each blueprint."""
    columns = list(_base(sight))
    for k in range(len(sight.slots)):
        columns += _of_slot(sight, k)
    for trial in sight.trials:
        columns += [
            float(trial.germinations > 0),
            signed_log(trial.gained),
            missing(trial.gained),
            trial.alignment,
        ]
    return columns


def _base(s: Sight) -> Iterator[float]:
    past = s.history
    yield s.step / s.steps
    yield steps_squashed(s.steps - s.step)
    for lag in range(SHOWN):
        loss = past.back(past.losses, lag)
        accuracy = past.back(past.accuracies, lag)
        yield squashed(loss / s.chance)
        yield 0.0 if math.isnan(accuracy) else accuracy / 100.0
        yield missing(loss + accuracy)
    newest = past.back(past.accuracies, 0)
    yield signed_log(newest - past.back(past.accuracies, 1))
    yield signed_log(newest - past.best)
    yield steps_squashed(past.plateau)
    yield float(past.stabilised)
    yield squashed(s.train_loss / s.chance)
    yield 0.0 if math.isnan(s.train_accuracy) else s.train_accuracy / 100.0
    yield missing(s.train_loss)
    for stages in ((life.TRAINING,), (life.BLENDING,), (life.HOLDING, life.FOSSILIZED)):
        yield sum(slot.stage in stages for slot in s.slots) / len(s.slots)
    grown = sum(s.seed_params)
    yield squashed(grown / s.host_params)
    yield min(1.0, grown / (s.budget * s.host_params))
    yield float(s.succeeded)
    for op in range(len(life.OPS)):
        yield float(s.op == op)


def _of_slot(s: Sight, k: int) -> list[float]:
    slot = s.slots[k]
    seed = s.slots[k].seed
    there = seed.blueprint >= 0
    progress = seed.accuracy - seed.germination_accuracy
    interaction = s.validation.interaction[k]
    return [
        float(there),
        *(float(slot.stage == stage) for stage in life.STAGES),
        *(float(seed.ramp == ramp) for ramp in (life.STILL, life.UP, life.DOWN)),
        *(
            float(there and seed.operator == operator)
            for operator in (life.ADD, life.MULTIPLY, life.GATE)
        ),
        float(seed.prune_scheduled),
        # How far it acts, and since when.
        seed.alpha,
        seed.alpha_target,
        seed.first_target,
        seed.tempo_steps / max(life.TEMPOS),
        steps_squashed(seed.ramp_steps - seed.ramp_done),
        steps_squashed(seed.age),
        steps_squashed(slot.dwell),
        squashed(slot.germinations),
        # What it is worth.
        signed_log(seed.contribution),
        signed_log(seed.contribution_se),
        missing(seed.contribution),
        signed_log(seed.velocity),
        missing(seed.velocity),
        signed_log(interaction),
        signed_log(s.validation.boost[k]),
        missing(interaction),
        0.0 if math.isnan(seed.contribution) else 1.0 / (1.0 + seed.unmeasured),
        signed_log(progress),
        signed_log(seed.accuracy - slot.stage_accuracy),
        missing(progress),
        squashed(seed.gradient_ratio),
        missing(seed.gradient_ratio),
        squashed(s.seed_params[k] / s.host_params),
    ]
