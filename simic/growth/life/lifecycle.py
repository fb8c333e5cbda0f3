"""The life of a seed as data: one transition table, pure tensor functions over ``[E, K]``.

One environment step is ``advance`` (gates on the last measurements → op → alpha tick → automatic transitions), then the
host trains an epoch and validates, then ``record`` stores what was measured. A slot makes at most one transition per
step, except through stages that take no time: with ``training_dwell`` 0 a seed blends in the step in which it
germinates, at tempo 0 it holds in the step in which it blends, and with ``embargo_steps`` and ``reset_steps`` 0 a slot
is free in the step in which its seed is pruned and ever after, so that GERMINATE may replace a seed.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic.growth.life.vocabulary import (
    ALPHA_SPEED_STEPS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_STEPS,
    Action,
    Curve,
    Op,
    Ramp,
    Slots,
    Stage,
)
from simic.params import Lifecycle
from simic.transfer import constant

# First entry that is no failure is what ADVANCE leads to.
TRANSITIONS: dict[Stage, tuple[Stage, ...]] = {
    Stage.DORMANT: (Stage.GERMINATED,),
    Stage.GERMINATED: (Stage.TRAINING, Stage.PRUNED),
    Stage.TRAINING: (Stage.BLENDING, Stage.PRUNED),
    Stage.BLENDING: (Stage.HOLDING, Stage.PRUNED),
    Stage.HOLDING: (Stage.FOSSILIZED, Stage.BLENDING, Stage.PRUNED),
    Stage.FOSSILIZED: (),
    Stage.PRUNED: (Stage.EMBARGOED,),
    Stage.EMBARGOED: (Stage.RESETTING,),
    Stage.RESETTING: (Stage.DORMANT,),
}


def _descendants(stage: Stage) -> frozenset[Stage]:
    """Return stages that follow by themselves: a chain without a choice."""
    chain = {stage}
    while len(TRANSITIONS[stage]) == 1 and TRANSITIONS[stage][0] is not Stage.DORMANT:
        stage = TRANSITIONS[stage][0]
        chain.add(stage)
    return frozenset(chain)


FAILURE_STAGES = _descendants(Stage.PRUNED)
LIVE_STAGES = frozenset(Stage) - FAILURE_STAGES - {Stage.DORMANT}  # a module exists
ACTIVE_STAGES = LIVE_STAGES - {Stage.GERMINATED}  # the module takes part in the forward pass
PRUNABLE_STAGES = frozenset(stage for stage, to in TRANSITIONS.items() if Stage.PRUNED in to)
FOSSILIZABLE_STAGES = frozenset(stage for stage, to in TRANSITIONS.items() if Stage.FOSSILIZED in to)
ADVANCEABLE_STAGES = LIVE_STAGES - FOSSILIZABLE_STAGES - {Stage.FOSSILIZED}
RETARGETABLE_STAGES = frozenset({Stage.BLENDING, Stage.HOLDING})  # those with an amplitude of their own
SEQUENTIAL_BLOCKERS = FAILURE_STAGES | {Stage.GERMINATED, Stage.TRAINING}  # one unproven seed at a time

# The gate that guards entry into a stage; what is not here is unguarded.
GATES: dict[Stage, int] = {
    Stage.GERMINATED: 0,
    Stage.TRAINING: 1,
    Stage.BLENDING: 2,
    Stage.HOLDING: 3,
    Stage.FOSSILIZED: 5,
}
NO_GATE = -1
TIE_PCT = 1e-3  # so far below a threshold counts as on it: accuracies are counts, which float32 rounds either way
ALPHA_TOLERANCE = 1e-6  # of G3

# Steepness of the sigmoid curves: gentle, standard, sharp.
STEEPNESS: dict[Curve, float] = {Curve.SIGMOID_6: 6.0, Curve.SIGMOID_12: 12.0, Curve.SIGMOID_24: 24.0}

GRADIENT_EMA_DECAY = 0.9
VELOCITY_DECAY = 0.7


@dataclass(frozen=True)
class Events:
    """What ``advance`` did."""

    effective_op: Tensor  # [E]: the op, or WAIT where it was illegal or its gate refused
    gate: Tensor  # [E]: the gate the op asked, -1 = none
    gate_passed: Tensor  # [E] bool
    germinated: Tensor  # [E, K] bool


def in_stages(stage: Tensor, stages: frozenset[Stage]) -> Tensor:
    """Return whether each ``stage`` is one of ``stages``, bool of its shape."""
    return constant(tuple(member in stages for member in Stage), torch.bool, stage.device)[stage]


def legal_ops(slots: Slots, params: Lifecycle) -> Tensor:
    """Return bool ``[E, O, K]``: whether an op is physically possible on a slot; WAIT always is, on every slot."""
    stage, held = slots.stage, slots.ramp == Ramp.HOLD
    prunable = in_stages(stage, PRUNABLE_STAGES) & held & (slots.age >= params.min_prune_age)
    free = stage == Stage.DORMANT
    if params.embargo_steps == params.reset_steps == 0:  # the next seed may come in the step in which one goes
        free |= in_stages(stage, FAILURE_STAGES) | prunable
    live = in_stages(stage, LIVE_STAGES)
    room = _elsewhere(live) < (params.max_seeds or stage.shape[1])
    if params.sequential_development:
        room &= _elsewhere(in_stages(stage, SEQUENTIAL_BLOCKERS)) == 0
    by_op = {
        Op.WAIT: torch.ones_like(held),
        Op.GERMINATE: free & room,
        Op.SET_ALPHA_TARGET: in_stages(stage, RETARGETABLE_STAGES) & held,
        Op.PRUNE: prunable,
        Op.FOSSILIZE: in_stages(stage, FOSSILIZABLE_STAGES),
        Op.ADVANCE: in_stages(stage, ADVANCEABLE_STAGES) & (not params.auto_advance),
    }
    return torch.stack([by_op[op] for op in Op], 1)


def _elsewhere(flags: Tensor) -> Tensor:
    """Count the other slots of a host that have the flag ``[E, K]``."""
    return flags.sum(1, keepdim=True) - flags.long()


def advance(slots: Slots, action: Action, params: Lifecycle, live_accuracy: Tensor) -> tuple[Slots, Events]:
    """Execute one op per host and tick every slot; pure.

    ``live_accuracy [E]`` (points) is the last validation's, the starting line of what a transition is judged by. An
    illegal op is a WAIT; so is one that its gate refuses, with the gate named in the events. Heads the op does not use
    are ignored.
    """
    before = slots.stage
    chosen = torch.arange(before.shape[1], device=before.device) == action.slot[:, None]
    rows = torch.arange(before.shape[0], device=before.device)
    legal = legal_ops(slots, params)[rows, action.op, action.slot]
    target = _target_stage(before, action.op[:, None]) * chosen
    passes = _gate_of_target(gate_passes(slots, params), target)
    asked = torch.where(legal, _look_up(_GATE_OF_STAGE, target.amax(1)), NO_GATE)
    passed = (passes | ~chosen).all(1)
    executed = legal & ((asked == NO_GATE) | passed)
    effective = torch.where(executed, action.op, int(Op.WAIT))

    accuracy = live_accuracy[:, None].to(slots.accuracy.dtype).expand_as(slots.accuracy)
    op = effective[:, None]
    germinated = chosen & (op == Op.GERMINATE)
    slots = _germinate(slots, germinated, action, accuracy)
    forward = chosen & ((op == Op.ADVANCE) | (op == Op.FOSSILIZE))
    slots = _enter(slots, forward, torch.where(forward, target, slots.stage), accuracy)
    slots = _set_alpha(slots, chosen & (op == Op.SET_ALPHA_TARGET), action, accuracy)
    slots = _prune(slots, chosen & (op == Op.PRUNE), action, accuracy)
    slots = ramp_tick(slots, slots.stage == Stage.BLENDING)  # no other stage has a ramp
    slots = _remove(slots, slots.prune_scheduled & (slots.ramp == Ramp.HOLD))  # a scheduled prune that arrives
    slots = _transition_automatically(slots, (slots.stage == before) & ~germinated, params, accuracy)
    return slots, Events(effective, asked, passed & (asked != NO_GATE), germinated)


def record(
    slots: Slots,
    accuracy: Tensor,
    contribution: Tensor,
    contribution_se: Tensor,
    gradient_ratio: Tensor,
    gradient_healthy: Tensor,
) -> Slots:
    """Store what an epoch measured: the live network's accuracy ``[E]``, of each seed ``[E, K]`` its contribution and
    gradients; points, NaN = not measured. Ages, dwell, velocity and gradient average follow; pure.
    """
    live = in_stages(slots.stage, LIVE_STAGES)
    measured = live & contribution.isfinite()
    repeated = measured & slots.contribution.isfinite()
    # v ← 0.7 v + 0.3 (c_t − c_{t−1}), v = 0 before the second measurement.
    velocity = VELOCITY_DECAY * slots.contribution_velocity.nan_to_num(0.0)
    velocity = velocity + (1 - VELOCITY_DECAY) * (contribution - slots.contribution)
    ratio_measured = live & gradient_ratio.isfinite()
    ratio = GRADIENT_EMA_DECAY * slots.gradient_ratio + (1 - GRADIENT_EMA_DECAY) * gradient_ratio
    # The first measurement initialises the average: starting from 0 would bias it low for ~10 epochs.
    ratio = torch.where(slots.gradient_ratio.isfinite(), ratio, gradient_ratio)
    unmeasured = torch.where(live, slots.steps_since_measured + 1, slots.steps_since_measured)
    return replace(
        slots,
        age=slots.age + live,
        dwell=slots.dwell + live,
        accuracy=torch.where(live, accuracy[:, None].to(slots.accuracy.dtype), slots.accuracy),
        contribution=torch.where(measured, contribution, slots.contribution),
        contribution_se=torch.where(measured, contribution_se, slots.contribution_se),
        contribution_velocity=torch.where(repeated, velocity, slots.contribution_velocity),
        steps_since_measured=torch.where(measured, 0, unmeasured),
        gradient_ratio=torch.where(ratio_measured, ratio, slots.gradient_ratio),
        gradient_healthy=live & gradient_healthy,
    )


def prune_live(slots: Slots, rows: Tensor) -> Slots:
    """Prune for the governor every live seed of ``rows [E]`` but the FOSSILIZED, at once, whatever its age or ramp."""
    return _remove(slots, rows[:, None] & in_stages(slots.stage, PRUNABLE_STAGES))


# --- gates: what a seed must have shown before it may enter a stage ---------------------------------------------------


def gate_passes(slots: Slots, params: Lifecycle) -> dict[Stage, Tensor]:
    """Return bool ``[E, K]`` per stage to be entered, on the measurements stored in ``slots``; other stages are open.

    Unmeasured (NaN) fails every comparison it is part of.
    """
    strict = params.gates == "strict"
    # A seed that skips TRAINING has no epoch whose gradients could be healthy.
    blending = (slots.dwell >= params.training_dwell) & (slots.gradient_healthy | (params.training_dwell == 0))
    holding = (slots.ramp == Ramp.HOLD) & (slots.alpha_target >= 1 - ALPHA_TOLERANCE)
    holding &= (slots.alpha - slots.alpha_target).abs() <= ALPHA_TOLERANCE
    fossilized = slots.contribution.isfinite() & slots.gradient_healthy
    if strict:
        blending &= slots.gradient_healthy
        blending &= slots.accuracy - slots.stage_accuracy >= params.min_improvement_pct - TIE_PCT
        blending &= slots.gradient_ratio >= params.min_gradient_ratio
        holding &= slots.dwell >= params.blending_dwell
        fossilized &= slots.contribution >= params.min_contribution_pct - TIE_PCT
    always = torch.ones_like(blending)
    return {Stage.TRAINING: always, Stage.BLENDING: blending, Stage.HOLDING: holding, Stage.FOSSILIZED: fossilized}


# --- alpha: an amplitude moves along a curve to its target, monotone, and lands on it exactly ------------------------


def curve_value(curve: Tensor, t: Tensor) -> Tensor:
    """Return f(t) of each element's curve; f(0) = 0, f(1) = 1, monotone."""
    cosine = (1 - torch.cos(torch.pi * t)) / 2
    value = torch.where(curve == Curve.COSINE, cosine, t)
    for kind, steepness in STEEPNESS.items():
        value = torch.where(curve == kind, _sigmoid(t, steepness), value)
    return value


def _sigmoid(t: Tensor, steepness: float) -> Tensor:
    """Return (σ(s(t−½)) − σ(−s/2)) / (σ(s/2) − σ(−s/2)): a logistic curve stretched to reach 0 and 1."""
    low = torch.sigmoid(t.new_full((), -steepness / 2))
    return (torch.sigmoid(steepness * (t - 0.5)) - low) / (1 - 2 * low)


def retarget(slots: Slots, where: Tensor, target: Tensor, steps: Tensor, curve: Tensor) -> Slots:
    """Start a ramp from the present alpha ``where [E, K]``; 0 steps, or a target already reached, snap at once.

    The caller asks only in HOLD (anti-dither): a running ramp is never bent.
    """
    difference = target - slots.alpha
    ramp = torch.where(difference > 0, int(Ramp.UP), int(Ramp.DOWN))
    snap = (steps <= 0) | (difference == 0)
    return _set(
        slots,
        where,
        alpha_start=slots.alpha,
        alpha_target=target,
        alpha=torch.where(snap, target, slots.alpha),
        ramp=torch.where(snap, int(Ramp.HOLD), ramp),
        ramp_curve=curve,
        ramp_steps=steps,
        ramp_done=0,
    )


def ramp_tick(slots: Slots, where: Tensor) -> Slots:
    """Tick the running ramps among ``where [E, K]``: k of N done, alpha = start + (target − start)·f(k/N)."""
    moving = where & (slots.ramp != Ramp.HOLD)
    done = slots.ramp_done + moving
    arrived = moving & (done >= slots.ramp_steps)
    t = done / slots.ramp_steps.clamp(min=1)
    value = slots.alpha_start + (slots.alpha_target - slots.alpha_start) * curve_value(slots.ramp_curve, t)
    # Clamped between where it was and where it goes: rounding may not turn it back or carry it past the target.
    value = value.clamp(torch.minimum(slots.alpha, slots.alpha_target), torch.maximum(slots.alpha, slots.alpha_target))
    return replace(
        slots,
        ramp_done=done,
        alpha=torch.where(arrived, slots.alpha_target, torch.where(moving, value, slots.alpha)),
        ramp=torch.where(arrived, int(Ramp.HOLD), slots.ramp),
    )


# --- the ops ---------------------------------------------------------------------------------------------------------

_GATE_OF_STAGE = tuple(GATES.get(stage, NO_GATE) for stage in Stage)
_NEXT_STAGE = tuple(
    next((to for to in TRANSITIONS[stage] if to not in FAILURE_STAGES), Stage.DORMANT) for stage in Stage
)


def _target_stage(stage: Tensor, op: Tensor) -> Tensor:
    """Return the stage the op leads to through a gate, DORMANT where it needs none."""
    forward = _look_up(_NEXT_STAGE, stage)
    target = torch.where((op == Op.ADVANCE) | (op == Op.FOSSILIZE), forward, int(Stage.DORMANT))
    return torch.where(op == Op.GERMINATE, int(Stage.GERMINATED), target)


def _gate_of_target(passes: dict[Stage, Tensor], target: Tensor) -> Tensor:
    """Return whether the gate of each slot's target stage passes; True where there is none."""
    result = torch.ones_like(target, dtype=torch.bool)
    for stage, passed in passes.items():
        result = torch.where(target == stage, passed, result)
    return result


def _set(slots: Slots, where: Tensor, **values: Tensor | float | bool) -> Slots:
    """Return ``slots`` with the named fields replaced where ``where [E, K]``."""
    return replace(slots, **{name: torch.where(where, value, getattr(slots, name)) for name, value in values.items()})


def _enter(slots: Slots, where: Tensor, stage: Tensor | Stage, accuracy: Tensor) -> Slots:
    """Enter a stage: start its clock; entering a ramp's stage starts the ramp."""
    arrived = torch.where(where, torch.as_tensor(int(stage) if isinstance(stage, Stage) else stage), slots.stage)
    blending = where & (slots.stage == Stage.TRAINING) & (arrived == Stage.BLENDING)
    holding = where & (arrived == Stage.HOLDING)
    slots = _set(slots, where, stage=arrived, dwell=0, stage_accuracy=accuracy)
    slots = retarget(slots, blending, slots.first_target, slots.tempo_steps, slots.first_curve)
    return _set(slots, holding, alpha=1.0, alpha_start=1.0, alpha_target=1.0, ramp=int(Ramp.HOLD))


def _look_up(table: tuple[float, ...] | tuple[int, ...], index: Tensor) -> Tensor:
    dtype = torch.float32 if isinstance(table[0], float) else torch.int64
    return constant(table, dtype, index.device)[index]


_STYLE_OPERATORS = tuple(int(operator) for operator, _ in STYLES)
_STYLE_CURVES = tuple(int(curve) for _, curve in STYLES)


def _germinate(slots: Slots, where: Tensor, action: Action, accuracy: Tensor) -> Slots:
    slots = _clear(slots, where)
    slots = _enter(slots, where, Stage.GERMINATED, accuracy)
    return _set(
        slots,
        where,
        blueprint=action.blueprint[:, None],
        operator=_look_up(_STYLE_OPERATORS, action.style[:, None]),
        tempo_steps=_look_up(TEMPO_STEPS, action.tempo[:, None]),
        first_curve=_look_up(_STYLE_CURVES, action.style[:, None]),
        first_target=_look_up(ALPHA_TARGETS, action.alpha_target[:, None]),
        germinations=slots.germinations + 1,
        germination_accuracy=accuracy,
        accuracy=accuracy,
    )


def _set_alpha(slots: Slots, where: Tensor, action: Action, accuracy: Tensor) -> Slots:
    """Retarget, with the chosen style's operator; below 1 a HOLDING seed blends again."""
    target = _look_up(ALPHA_TARGETS, action.alpha_target[:, None])
    reopened = where & (slots.stage == Stage.HOLDING) & (target < 1 - ALPHA_TOLERANCE)
    slots = _enter(slots, reopened, Stage.BLENDING, accuracy)
    slots = _set(slots, where, operator=_look_up(_STYLE_OPERATORS, action.style[:, None]))
    return retarget(
        slots, where, target, _look_up(ALPHA_SPEED_STEPS, action.alpha_speed[:, None]), action.alpha_curve[:, None]
    )


def _prune(slots: Slots, where: Tensor, action: Action, accuracy: Tensor) -> Slots:
    """Prune at once, or by a ramp to 0 for a seed with an amplitude and a speed that is not instant."""
    steps = _look_up(ALPHA_SPEED_STEPS, action.alpha_speed[:, None])
    scheduled = where & in_stages(slots.stage, RETARGETABLE_STAGES) & (slots.alpha > 0) & (steps > 0)
    slots = _remove(slots, where & ~scheduled)
    slots = _enter(slots, scheduled & (slots.stage == Stage.HOLDING), Stage.BLENDING, accuracy)
    slots = retarget(slots, scheduled, torch.zeros_like(slots.alpha), steps, action.alpha_curve[:, None])
    return _set(slots, scheduled, prune_scheduled=True)


def _transition_automatically(slots: Slots, settled: Tensor, params: Lifecycle, accuracy: Tensor) -> Slots:
    """Move slots PRUNED → EMBARGOED → RESETTING → DORMANT, each after at least one tick; with auto_advance the gates
    G1–G3, of slots that are ``settled [E, K]``: one transition per step, but for stages that take no time.
    """
    waiting = settled & in_stages(slots.stage, FAILURE_STAGES)
    slots = _set(slots, waiting, dwell=slots.dwell + 1)
    least = {Stage.EMBARGOED: params.embargo_steps, Stage.RESETTING: params.reset_steps}
    due = waiting & (slots.dwell >= _look_up(tuple(least.get(stage, 0) for stage in Stage), slots.stage))
    following = _look_up(_NEXT_OF_FAILURE, slots.stage)
    slots = _enter(slots, due, following, torch.full_like(accuracy, torch.nan))
    if not params.auto_advance:
        return slots
    for _ in ADVANCEABLE_STAGES:
        target = _look_up(_NEXT_STAGE, slots.stage)
        ready = (settled | _takes_no_time(slots, params)) & in_stages(slots.stage, ADVANCEABLE_STAGES)
        ready &= ~slots.prune_scheduled & _gate_of_target(gate_passes(slots, params), target)
        slots, settled = _enter(slots, ready, target, accuracy), settled & ~ready
    return slots


def _takes_no_time(slots: Slots, params: Lifecycle) -> Tensor:
    """Return bool ``[E, K]``: the seed may leave its stage in the step in which it entered it."""
    untrained = in_stages(slots.stage, frozenset({Stage.GERMINATED, Stage.TRAINING})) & (params.training_dwell == 0)
    return untrained | ((slots.stage == Stage.BLENDING) & (slots.tempo_steps == 0) & (slots.dwell == 0))


_NEXT_OF_FAILURE = tuple(TRANSITIONS[stage][0] if stage in FAILURE_STAGES else stage for stage in Stage)


def _clear(slots: Slots, where: Tensor) -> Slots:
    """Forget everything about the seed; the slot's own history stays."""
    fresh = vars(Slots.empty(*slots.shape, device=slots.stage.device))
    return _set(slots, where, **{k: v for k, v in fresh.items() if k not in ("stage", "dwell", "germinations")})


def _remove(slots: Slots, where: Tensor) -> Slots:
    """Move seeds into PRUNED; their modules are freed."""
    nothing = torch.full_like(slots.alpha, torch.nan)
    return _enter(_clear(slots, where), where, Stage.PRUNED, nothing)
