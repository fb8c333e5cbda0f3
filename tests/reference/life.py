"""The lifecycle of one host's seeds in plain Python, one slot after the other.

In a step the op is checked against stage, ramp and gate, and done or refused; then every running ramp advances by one
tick; then seeds move on by themselves. A slot changes its stage once in a step, but passes through stages that take no
time; a slot without embargo and reset takes the next seed in the step in which it loses one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from simic.params import Lifecycle

STAGES = range(9)
DORMANT, GERMINATED, TRAINING, BLENDING, HOLDING, FOSSILIZED, PRUNED, EMBARGOED, RESETTING = STAGES
WAIT, GERMINATE, SET_ALPHA_TARGET, PRUNE, FOSSILIZE, ADVANCE = range(6)
OPS = ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "FOSSILIZE", "ADVANCE")
ADD, MULTIPLY, GATE = range(3)
OPERATORS = ("ADD", "MULTIPLY", "GATE")
STILL, UP, DOWN = range(3)  # what a ramp does
LINEAR, COSINE, GENTLE, STANDARD, SHARP = range(5)  # its curve; the last three are sigmoids
STEEPNESS = {GENTLE: 6.0, STANDARD: 12.0, SHARP: 24.0}

Action = Mapping[str, int]  # index of the choice of every head
# The choices; slots and blueprints are those of the host.
STYLES = {
    "linear_add": (ADD, LINEAR),
    "linear_multiply": (MULTIPLY, LINEAR),
    "sigmoid_add": (ADD, STANDARD),
    "linear_gate": (GATE, LINEAR),
}
TEMPOS = (0, 3, 5, 8)
TARGETS = (0.5, 0.7, 1.0)
SPEEDS = (0, 3, 5, 8)
CURVES = ("LINEAR", "COSINE", "SIGMOID_6", "SIGMOID_12", "SIGMOID_24")

LIVE = (GERMINATED, TRAINING, BLENDING, HOLDING, FOSSILIZED)
GONE = (PRUNED, EMBARGOED, RESETTING)
NEXT = {
    DORMANT: GERMINATED,
    GERMINATED: TRAINING,
    TRAINING: BLENDING,
    BLENDING: HOLDING,
    HOLDING: FOSSILIZED,
}
GATE_NUMBER = {GERMINATED: 0, TRAINING: 1, BLENDING: 2, HOLDING: 3, FOSSILIZED: 5}
NO_GATE = -1
TIE = 1e-3  # points: values this close below a threshold count as on it
CLOSE = 1e-6  # of alpha to its target
NAN = math.nan


@dataclass
class Seed:
    """Hold the state of a seed; measurements are NaN until they are made."""

    blueprint: int = -1
    operator: int = ADD
    alpha: float = 0.0
    alpha_start: float = 0.0
    alpha_target: float = 0.0
    ramp: int = STILL
    ramp_curve: int = LINEAR
    ramp_steps: int = 0
    ramp_done: int = 0
    tempo_steps: int = 0
    first_curve: int = LINEAR
    first_target: float = 0.0
    prune_scheduled: bool = False
    age: int = 0
    germination_accuracy: float = NAN
    accuracy: float = NAN
    contribution: float = NAN
    contribution_se: float = NAN
    velocity: float = NAN
    unmeasured: int = 0  # steps since the contribution was measured
    gradient_ratio: float = NAN
    healthy: bool = False

    def aim(self, target: float, steps: int, curve: int) -> None:
        """Start a ramp at the present alpha; with no steps or no distance alpha is set at once."""
        self.alpha_start = self.alpha
        self.alpha_target = target
        self.ramp_steps = steps
        self.ramp_done = 0
        self.ramp_curve = curve
        if steps == 0 or target == self.alpha:
            self.alpha = target
            self.ramp = STILL
        else:
            self.ramp = UP if target > self.alpha else DOWN

    def tick(self) -> None:
        """Advance the ramp by one step; the last one lands on the target."""
        if self.ramp == STILL:
            return
        self.ramp_done += 1
        if self.ramp_done >= self.ramp_steps:
            self.alpha = self.alpha_target
            self.ramp = STILL
            return
        way = along(self.ramp_curve, self.ramp_done / self.ramp_steps)
        self.alpha = self.alpha_start + (self.alpha_target - self.alpha_start) * way


def along(curve: int, t: float) -> float:
    """Return the value of a curve at time t; 0 at 0 and 1 at 1."""
    if curve == LINEAR:
        return t
    if curve == COSINE:
        return (1.0 - math.cos(math.pi * t)) / 2.0
    steep = STEEPNESS[curve]
    low, here, high = (1.0 / (1.0 + math.exp(-steep * (at - 0.5))) for at in (0.0, t, 1.0))
    return (here - low) / (high - low)


@dataclass
class Slot:
    """Hold a slot: stage, time in it, and the seed."""

    stage: int = DORMANT
    dwell: int = 0
    germinations: int = 0
    stage_accuracy: float = NAN
    seed: Seed = field(default_factory=Seed)

    @property
    def alive(self) -> bool:
        return self.stage in LIVE

    @property
    def acts(self) -> bool:
        """Tell whether the seed changes the host's output."""
        return self.stage in (BLENDING, HOLDING, FOSSILIZED) and self.seed.alpha > 0

    @property
    def learns(self) -> bool:
        """Tell whether the seed takes part in training."""
        return self.stage == TRAINING or self.acts

    @property
    def frozen(self) -> bool:
        """Tell whether the ramp goes down: the seed takes part, its parameters stay."""
        return self.seed.ramp == DOWN

    def enter(self, stage: int, accuracy: float) -> None:
        """Change the stage and reset its clock."""
        before = self.stage
        self.stage = stage
        self.dwell = 0
        self.stage_accuracy = accuracy
        seed = self.seed
        if before == TRAINING and stage == BLENDING:
            seed.aim(seed.first_target, seed.tempo_steps, seed.first_curve)
        if stage == HOLDING:
            seed.alpha = seed.alpha_start = seed.alpha_target = 1.0
            seed.ramp = STILL

    def remove(self) -> None:
        self.seed = Seed()
        self.enter(PRUNED, NAN)

    def in_no_time(self, rules: Lifecycle) -> bool:
        """Tell whether the seed may leave its stage in the step in which it entered it."""
        if self.stage in (GERMINATED, TRAINING):
            return rules.training_dwell == 0
        return self.stage == BLENDING and self.seed.tempo_steps == 0 and self.dwell == 0

    def opens(self, stage: int | None, rules: Lifecycle) -> bool:
        """Tell whether the gate before a stage passes the seed; missing measurements fail."""
        seed = self.seed
        strict = rules.gates == "strict"
        if stage == BLENDING:
            improved = seed.accuracy - self.stage_accuracy >= rules.min_improvement_pct - TIE
            moved = seed.gradient_ratio >= rules.min_gradient_ratio
            # Without a training dwell there are no gradients yet.
            healthy = seed.healthy or (rules.training_dwell == 0 and not strict)
            return (
                self.dwell >= rules.training_dwell
                and healthy
                and (not strict or (improved and moved))
            )
        if stage == HOLDING:
            there = seed.ramp == STILL and seed.alpha_target >= 1 - CLOSE
            there = there and abs(seed.alpha - seed.alpha_target) <= CLOSE
            return there and (not strict or self.dwell >= rules.blending_dwell)
        if stage == FOSSILIZED:
            known = math.isfinite(seed.contribution) and seed.healthy
            return known and (not strict or seed.contribution >= rules.min_contribution_pct - TIE)
        return True


@dataclass(frozen=True)
class Outcome:
    """Hold the effect of an action."""

    op: int  # WAIT where it was refused
    gate: int  # that was asked, -1 for none
    passed: bool


def allowed(slots: list[Slot], rules: Lifecycle) -> list[list[bool]]:
    """Return whether each op is possible at each slot, ``[op][slot]``."""

    def prunable(slot: Slot) -> bool:
        unfinished = slot.stage in (GERMINATED, TRAINING, BLENDING, HOLDING)
        return unfinished and slot.seed.ramp == STILL and slot.seed.age >= rules.min_prune_age

    def free(slot: Slot) -> bool:
        others = [other for other in slots if other is not slot]
        room = sum(other.alive for other in others) < (rules.max_seeds or len(slots))
        if rules.sequential_development:
            room = room and not any(
                other.stage in (GERMINATED, TRAINING, *GONE) for other in others
            )
        rests = rules.embargo_steps > 0 or rules.reset_steps > 0
        return room and (
            slot.stage == DORMANT or (not rests and (slot.stage in GONE or prunable(slot)))
        )

    def possible(op: int, slot: Slot) -> bool:
        if op == GERMINATE:
            return free(slot)
        if op == SET_ALPHA_TARGET:
            return slot.stage in (BLENDING, HOLDING) and slot.seed.ramp == STILL
        if op == PRUNE:
            return prunable(slot)
        if op == FOSSILIZE:
            return slot.stage == HOLDING
        if op == ADVANCE:
            return slot.stage in (GERMINATED, TRAINING, BLENDING) and not rules.auto_advance
        return True

    return [[possible(op, slot) for slot in slots] for op in range(len(OPS))]


def advance(slots: list[Slot], action: Action, rules: Lifecycle, accuracy: float) -> Outcome:
    """Advance all slots by one step; ``accuracy`` (points) is the host's latest."""
    before = [(slot.stage, slot.germinations) for slot in slots]
    outcome = _decided(slots, action, rules, accuracy)
    for slot, earlier in zip(slots, before, strict=True):
        if slot.stage == BLENDING:
            slot.seed.tick()
        if slot.seed.prune_scheduled and slot.seed.ramp == STILL:
            slot.remove()
        if slot.stage in GONE and (slot.stage, slot.germinations) == earlier:
            _rest(slot, rules)
        elif slot.alive and rules.auto_advance:
            _go_on(slot, (slot.stage, slot.germinations) == earlier, rules, accuracy)
    return outcome


def _decided(slots: list[Slot], action: Action, rules: Lifecycle, accuracy: float) -> Outcome:
    op = action["op"]
    slot = slots[action["slot"]]
    if not allowed(slots, rules)[op][action["slot"]]:
        return Outcome(WAIT, NO_GATE, False)
    gate = NO_GATE
    if op in (GERMINATE, FOSSILIZE, ADVANCE):
        target = GERMINATED if op == GERMINATE else NEXT[slot.stage]
        gate = GATE_NUMBER[target]
        if not slot.opens(target, rules):
            return Outcome(WAIT, gate, False)
    _do(slot, action, accuracy)
    return Outcome(op, gate, gate != NO_GATE)


def _do(slot: Slot, action: Action, accuracy: float) -> None:
    op = action["op"]
    target = TARGETS[action["alpha_target"]]
    operator, curve = list(STYLES.values())[action["style"]]
    if op == GERMINATE:
        slot.seed = Seed(
            blueprint=action["blueprint"],
            operator=operator,
            tempo_steps=TEMPOS[action["tempo"]],
            first_curve=curve,
            first_target=target,
            germination_accuracy=accuracy,
            accuracy=accuracy,
        )
        slot.germinations += 1
        slot.enter(GERMINATED, accuracy)
    elif op in (FOSSILIZE, ADVANCE):
        slot.enter(NEXT[slot.stage], accuracy)
    elif op == SET_ALPHA_TARGET:
        if slot.stage == HOLDING and target < 1 - CLOSE:
            slot.enter(BLENDING, accuracy)
        slot.seed.operator = operator
        slot.seed.aim(target, SPEEDS[action["alpha_speed"]], action["alpha_curve"])
    elif op == PRUNE:
        _prune(slot, action, accuracy)


def _prune(slot: Slot, action: Action, accuracy: float) -> None:
    """Fade out a seed that acts; remove any other at once."""
    speed = SPEEDS[action["alpha_speed"]]
    if slot.stage not in (BLENDING, HOLDING) or slot.seed.alpha == 0 or speed == 0:
        slot.remove()
        return
    if slot.stage == HOLDING:
        slot.enter(BLENDING, accuracy)
    slot.seed.aim(0.0, speed, action["alpha_curve"])
    slot.seed.prune_scheduled = True


def _rest(slot: Slot, rules: Lifecycle) -> None:
    """Advance an empty slot through embargo and reset."""
    slot.dwell += 1
    least = {PRUNED: 0, EMBARGOED: rules.embargo_steps, RESETTING: rules.reset_steps}[slot.stage]
    if slot.dwell >= least:
        slot.enter({PRUNED: EMBARGOED, EMBARGOED: RESETTING, RESETTING: DORMANT}[slot.stage], NAN)


def _go_on(slot: Slot, settled: bool, rules: Lifecycle, accuracy: float) -> None:
    """Advance a seed through gates that open: one stage if ``settled`` (its stage did not change in this step), and on
    as long as stages take no time.
    """
    while slot.stage in (GERMINATED, TRAINING, BLENDING) and (settled or slot.in_no_time(rules)):
        if slot.seed.prune_scheduled or not slot.opens(NEXT[slot.stage], rules):
            return
        slot.enter(NEXT[slot.stage], accuracy)
        settled = False


def remember(
    slot: Slot,
    accuracy: float,
    contribution: float,
    contribution_se: float,
    gradient_ratio: float,
    healthy: bool,
) -> None:
    """Store the measurements of a step, accuracies in points, NaN = not measured, and age the seed."""
    seed = slot.seed
    if not slot.alive:
        seed.healthy = False
        return
    seed.age += 1
    slot.dwell += 1
    seed.accuracy = accuracy
    seed.healthy = healthy
    if math.isfinite(contribution):
        if math.isfinite(seed.contribution):
            smoothed = 0.0 if math.isnan(seed.velocity) else 0.7 * seed.velocity
            seed.velocity = smoothed + 0.3 * (contribution - seed.contribution)
        seed.contribution = contribution
        seed.contribution_se = contribution_se
        seed.unmeasured = 0
    else:
        seed.unmeasured += 1
    if math.isfinite(gradient_ratio):
        known = math.isfinite(seed.gradient_ratio)
        seed.gradient_ratio = (
            0.9 * seed.gradient_ratio + 0.1 * gradient_ratio if known else gradient_ratio
        )
