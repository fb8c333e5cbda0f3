"""The life of a seed as data: one transition table, pure tensor functions over ``[E, K]``.

One environment step is ``advance`` (gates on the last measurements → op → alpha tick → automatic transitions), then the
host trains an epoch and validates, then ``record`` stores what was measured. A slot makes at most one transition per
step, except through stages that take no time. With auto_advance and permissive gates a seed blends in the step in which
it germinates if ``training_dwell`` is 0, and at tempo 0 it holds in the step in which it begins to blend; strict gates
want measurements first. With ``embargo_steps`` and ``reset_steps`` 0 a slot is free in the step in which its seed is
pruned and ever after, so that GERMINATE may replace a seed.
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

# The first entry is where a slot goes by itself, or by ADVANCE or FOSSILIZE.
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


def _chain(stage: Stage) -> frozenset[Stage]:
    """Follow the table up to DORMANT, without a choice on the way."""
    # A stage with a choice would raise: the unpacking takes one.
    chain: set[Stage] = set()
    while stage is not Stage.DORMANT:
        chain.add(stage)
        [stage] = TRANSITIONS[stage]
    return frozenset(chain)


# Sets of stages that follow from the table.
FAILURE_STAGES = _chain(Stage.PRUNED)
# A module exists.
LIVE_STAGES = frozenset(Stage) - FAILURE_STAGES - {Stage.DORMANT}
# The module takes part in the forward pass.
ACTIVE_STAGES = LIVE_STAGES - {Stage.GERMINATED}
PRUNABLE_STAGES = frozenset(
    stage for stage, targets in TRANSITIONS.items() if Stage.PRUNED in targets
)
FOSSILIZABLE_STAGES = frozenset(
    stage for stage, targets in TRANSITIONS.items() if Stage.FOSSILIZED in targets
)
ADVANCEABLE_STAGES = LIVE_STAGES - FOSSILIZABLE_STAGES - {Stage.FOSSILIZED}
# Alpha may be moved.
RETARGETABLE_STAGES = frozenset({Stage.BLENDING, Stage.HOLDING})
# In sequential development there is one unproven seed at a time.
SEQUENTIAL_BLOCKERS = FAILURE_STAGES | {Stage.GERMINATED, Stage.TRAINING}

# The gate that guards entry into a stage; what is not here is unguarded.
GATES: dict[Stage, int] = {
    Stage.GERMINATED: 0,
    Stage.TRAINING: 1,
    Stage.BLENDING: 2,
    Stage.HOLDING: 3,
    Stage.FOSSILIZED: 5,
}
NO_GATE = -1

# The tables by the number of a stage, to be indexed by tensors.
_NEXT_STAGE = tuple(next(iter(TRANSITIONS[stage]), Stage.DORMANT) for stage in Stage)
_GATE_OF_STAGE = tuple(GATES.get(stage, NO_GATE) for stage in Stage)
_STYLE_OPERATORS = tuple(int(operator) for operator, _ in STYLES)
_STYLE_CURVES = tuple(int(curve) for _, curve in STYLES)

# Slack for rounding: a value this far below a threshold still passes. Accuracies are counts that float32 rounds.
TIE_PCT = 1e-3
# With which G3 compares alpha and its target.
ALPHA_TOLERANCE = 1e-6

# Steepness of the sigmoid curves: gentle, standard, sharp.
STEEPNESS: dict[Curve, float] = {
    Curve.SIGMOID_6: 6.0,
    Curve.SIGMOID_12: 12.0,
    Curve.SIGMOID_24: 24.0,
}

GRADIENT_EMA_DECAY = 0.9
VELOCITY_DECAY = 0.7


@dataclass(frozen=True)
class Events:
    """The effects of one ``advance``."""

    effective_op: Tensor  # [E]: the op, or WAIT where it was illegal or its gate refused
    gate: Tensor  # [E]: the gate that the op had to pass, -1 = none
    gate_passed: Tensor  # [E] bool
    germinated: Tensor  # [E, K] bool


def in_stages(stage: Tensor, stages: frozenset[Stage]) -> Tensor:
    """Tell which elements of ``stage`` are among ``stages``, bool of its shape."""
    return constant(tuple(member in stages for member in Stage), torch.bool, stage.device)[stage]


def legal_ops(slots: Slots, params: Lifecycle) -> Tensor:
    """Tell which ops are physically possible on which slots, bool ``[E, O, K]``; WAIT is possible on every slot."""
    stage = slots.stage
    # A ramp that runs is not bent, so nothing is pruned or moved on its way.
    steady = slots.ramp == Ramp.HOLD
    prunable = in_stages(stage, PRUNABLE_STAGES) & steady & (slots.age >= params.min_prune_age)

    # A slot is free where it is empty; without embargo and reset also where its seed can be pruned in this step.
    free = stage == Stage.DORMANT
    if params.embargo_steps == params.reset_steps == 0:
        free |= in_stages(stage, FAILURE_STAGES) | prunable

    # A host has room for another seed up to max_seeds, and in sequential development once the others are proven.
    room = _elsewhere(in_stages(stage, LIVE_STAGES)) < (params.max_seeds or stage.shape[1])
    if params.sequential_development:
        room &= _elsewhere(in_stages(stage, SEQUENTIAL_BLOCKERS)) == 0

    by_op = {
        Op.WAIT: torch.ones_like(steady),
        Op.GERMINATE: free & room,
        Op.SET_ALPHA_TARGET: in_stages(stage, RETARGETABLE_STAGES) & steady,
        Op.PRUNE: prunable,
        Op.FOSSILIZE: in_stages(stage, FOSSILIZABLE_STAGES),
        Op.ADVANCE: in_stages(stage, ADVANCEABLE_STAGES) & (not params.auto_advance),
    }
    return torch.stack([by_op[op] for op in Op], 1)


def _elsewhere(flags: Tensor) -> Tensor:
    """Count the other slots of a host that have the flag ``[E, K]``."""
    return flags.sum(1, keepdim=True) - flags.long()


def advance(
    slots: Slots,
    action: Action,
    params: Lifecycle,
    live_accuracy: Tensor,
) -> tuple[Slots, Events]:
    """Execute one op per host and tick every slot; pure.

    An illegal op is a WAIT; so is one that its gate refuses, with the gate named in the events.

    Args:
        slots: Before the step.
        action: The ops; heads that an op does not use are ignored.
        params: Rules of the lifecycle.
        live_accuracy: The last validation's, points ``[E]``: the starting line of what a transition is judged by.

    Returns:
        The slots after the step, and the effects.
    """
    # Which ops are legal and pass their gates; the others become WAIT.
    before = slots.stage
    chosen = torch.arange(before.shape[1], device=before.device) == action.slot[:, None]
    rows = torch.arange(before.shape[0], device=before.device)
    legal = legal_ops(slots, params)[rows, action.op, action.slot]
    target = torch.where(chosen, _target_stage(before, action.op[:, None]), int(Stage.DORMANT))
    passes = _passes_gate_of(target, gate_passes(slots, params))
    gate = torch.where(legal, _look_up(_GATE_OF_STAGE, target.amax(1)), NO_GATE)
    passed = (passes | ~chosen).all(1)
    executed = legal & ((gate == NO_GATE) | passed)
    effective = torch.where(executed, action.op, int(Op.WAIT))

    # Each op on the slots that chose it.
    accuracy = live_accuracy[:, None].to(slots.accuracy.dtype).expand_as(slots.accuracy)
    op = effective[:, None]
    germinated = chosen & (op == Op.GERMINATE)
    slots = _germinate(slots, germinated, action, accuracy)
    forward = chosen & ((op == Op.ADVANCE) | (op == Op.FOSSILIZE))
    slots = _enter(slots, forward, torch.where(forward, target, slots.stage), accuracy)
    slots = _set_alpha(slots, chosen & (op == Op.SET_ALPHA_TARGET), action, accuracy)
    slots = _prune(slots, chosen & (op == Op.PRUNE), action, accuracy)

    # Time: ramps, which only BLENDING has, scheduled prunes whose ramp has arrived, and transitions without an op.
    slots = ramp_tick(slots, slots.stage == Stage.BLENDING)
    slots = _remove(slots, slots.prune_scheduled & (slots.ramp == Ramp.HOLD))
    slots = _transition_automatically(
        slots, (slots.stage == before) & ~germinated, params, accuracy
    )
    return slots, Events(effective, gate, passed & (gate != NO_GATE), germinated)


def record(
    slots: Slots,
    accuracy: Tensor,
    contribution: Tensor,
    contribution_se: Tensor,
    gradient_ratio: Tensor,
    gradient_healthy: Tensor,
) -> Slots:
    """Store the measurements of an epoch; ages, dwell, velocity and gradient average follow; pure.

    Args:
        slots: Before.
        accuracy: Of the live network, points ``[E]``.
        contribution: Of each seed, points ``[E, K]``, as what follows; NaN = not measured.
        contribution_se: Its standard error.
        gradient_ratio: Gradient intensity of the seed over that of the host.
        gradient_healthy: Bool: finite and not exploding.
    """
    # Only what is measured moves: a value of an earlier epoch stays, and its age is counted.
    live = in_stages(slots.stage, LIVE_STAGES)
    # v ← 0.7 v + 0.3 (c_t − c_{t−1}), v = 0 before the second measurement.
    measured = live & contribution.isfinite()
    repeated = measured & slots.contribution.isfinite()
    velocity = VELOCITY_DECAY * slots.contribution_velocity.nan_to_num(0.0)
    velocity = velocity + (1 - VELOCITY_DECAY) * (contribution - slots.contribution)
    unmeasured = torch.where(live, slots.steps_since_measured + 1, slots.steps_since_measured)
    # The first measurement initialises the average: starting from 0 would bias it low for ~10 epochs.
    ratio_measured = live & gradient_ratio.isfinite()
    ratio = GRADIENT_EMA_DECAY * slots.gradient_ratio + (1 - GRADIENT_EMA_DECAY) * gradient_ratio
    ratio = torch.where(slots.gradient_ratio.isfinite(), ratio, gradient_ratio)
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


def prune_live(slots: Slots, hosts: Tensor) -> Slots:
    """Prune at once every live seed of ``hosts [E]`` bool but the FOSSILIZED, whatever its age or ramp."""
    return _remove(slots, hosts[:, None] & in_stages(slots.stage, PRUNABLE_STAGES))


# --- gates: conditions for entering a stage ---------------------------------------------------------------------------


def gate_passes(slots: Slots, params: Lifecycle) -> dict[Stage, Tensor]:
    """Tell by stage which seeds may enter it, bool ``[E, K]``; stages that are not listed are open.

    A measurement that is missing (NaN) fails every comparison.
    """
    # With training_dwell 0 a seed may leave TRAINING before any epoch whose gradients could be healthy; strict gates
    # ask for one anyway.
    blending = (slots.dwell >= params.training_dwell) & (
        slots.gradient_healthy | (params.training_dwell == 0)
    )
    holding = (slots.ramp == Ramp.HOLD) & (slots.alpha_target >= 1 - ALPHA_TOLERANCE)
    holding &= (slots.alpha - slots.alpha_target).abs() <= ALPHA_TOLERANCE
    fossilized = slots.contribution.isfinite() & slots.gradient_healthy
    if params.gates == "strict":
        blending &= slots.gradient_healthy
        blending &= slots.accuracy - slots.stage_accuracy >= params.min_improvement_pct - TIE_PCT
        blending &= slots.gradient_ratio >= params.min_gradient_ratio
        holding &= slots.dwell >= params.blending_dwell
        fossilized &= slots.contribution >= params.min_contribution_pct - TIE_PCT
    always = torch.ones_like(blending)
    return {
        Stage.TRAINING: always,
        Stage.BLENDING: blending,
        Stage.HOLDING: holding,
        Stage.FOSSILIZED: fossilized,
    }


# --- alpha: an amplitude moves along a curve to its target, monotone, and lands on it exactly ------------------------


def curve_value(curve: Tensor, t: Tensor) -> Tensor:
    """Compute f(t) of each element's curve; f(0) = 0, f(1) = 1, monotone."""
    cosine = (1 - torch.cos(torch.pi * t)) / 2
    value = torch.where(curve == Curve.COSINE, cosine, t)
    for kind, steepness in STEEPNESS.items():
        value = torch.where(curve == kind, _sigmoid(t, steepness), value)
    return value


def _sigmoid(t: Tensor, steepness: float) -> Tensor:
    """Compute (σ(s(t−½)) − σ(−s/2)) / (σ(s/2) − σ(−s/2)): a logistic curve stretched to reach 0 and 1."""
    low = torch.sigmoid(t.new_full((), -steepness / 2))
    return (torch.sigmoid(steepness * (t - 0.5)) - low) / (1 - 2 * low)


def retarget(slots: Slots, selected: Tensor, target: Tensor, steps: Tensor, curve: Tensor) -> Slots:
    """Start ramps from the present alpha; 0 steps, or a target equal to alpha, snap at once.

    Legal only while no ramp runs (``Ramp.HOLD``), so that none is bent on its way.

    Args:
        slots: Before.
        selected: Whose ramps start, bool ``[E, K]``.
        target: Alpha at the end of the ramp.
        steps: Length of the ramp.
        curve: Its ``Curve``.
    """
    if _is_empty(selected):
        return slots
    # From where alpha is, so that it never jumps.
    difference = target - slots.alpha
    ramp = torch.where(difference > 0, int(Ramp.UP), int(Ramp.DOWN))
    snap = (steps <= 0) | (difference == 0)
    return _set(
        slots,
        selected,
        alpha_start=slots.alpha,
        alpha_target=target,
        alpha=torch.where(snap, target, slots.alpha),
        ramp=torch.where(snap, int(Ramp.HOLD), ramp),
        ramp_curve=curve,
        ramp_steps=steps,
        ramp_done=0,
    )


def ramp_tick(slots: Slots, selected: Tensor) -> Slots:
    """Tick the running ramps among ``selected [E, K]``: at step k of N alpha = start + (target − start)·f(k/N)."""
    moving = selected & (slots.ramp != Ramp.HOLD)
    step = slots.ramp_done + moving
    arrived = moving & (step >= slots.ramp_steps)
    t = step / slots.ramp_steps.clamp(min=1)
    value = slots.alpha_start + (slots.alpha_target - slots.alpha_start) * curve_value(
        slots.ramp_curve, t
    )
    # Clamped between present and target: rounding may not turn it back or carry it past the target.
    value = value.clamp(
        torch.minimum(slots.alpha, slots.alpha_target),
        torch.maximum(slots.alpha, slots.alpha_target),
    )
    return replace(
        slots,
        ramp_done=step,
        alpha=torch.where(arrived, slots.alpha_target, torch.where(moving, value, slots.alpha)),
        ramp=torch.where(arrived, int(Ramp.HOLD), slots.ramp),
    )


# --- the ops ---------------------------------------------------------------------------------------------------------


def _target_stage(stage: Tensor, op: Tensor) -> Tensor:
    """Look up the stage that the op leads to through a gate, DORMANT where it needs none."""
    target = torch.where(
        (op == Op.ADVANCE) | (op == Op.FOSSILIZE), _look_up(_NEXT_STAGE, stage), int(Stage.DORMANT)
    )
    return torch.where(op == Op.GERMINATE, int(Stage.GERMINATED), target)


def _passes_gate_of(target: Tensor, passes: dict[Stage, Tensor]) -> Tensor:
    """Tell whether the gate of each slot's target stage passes; True where there is none."""
    result = torch.ones_like(target, dtype=torch.bool)
    for stage, passed in passes.items():
        result = torch.where(target == stage, passed, result)
    return result


def _is_empty(selected: Tensor) -> bool:
    """Tell that no slot is selected, as in most steps for most ops, where the CPU may ask without waiting."""
    return selected.device.type == "cpu" and not selected.any()


def _set(slots: Slots, selected: Tensor, **values: Tensor | float | bool) -> Slots:
    """Replace the named fields where ``selected [E, K]``."""
    if _is_empty(selected):
        return slots
    return replace(
        slots,
        **{
            name: torch.where(selected, value, getattr(slots, name))
            for name, value in values.items()
        },
    )


def _enter(slots: Slots, selected: Tensor, stage: Tensor | Stage, accuracy: Tensor) -> Slots:
    """Enter a stage: start its clock; entering a ramp's stage starts the ramp."""
    if _is_empty(selected):
        return slots
    # A seed that has trained blends as its germination asked; one that holds is fully in.
    entered = torch.where(
        selected, torch.as_tensor(int(stage) if isinstance(stage, Stage) else stage), slots.stage
    )
    blending = selected & (slots.stage == Stage.TRAINING) & (entered == Stage.BLENDING)
    holding = selected & (entered == Stage.HOLDING)
    slots = _set(slots, selected, stage=entered, dwell=0, stage_accuracy=accuracy)
    slots = retarget(slots, blending, slots.first_target, slots.tempo_steps, slots.first_curve)
    return _set(slots, holding, alpha=1.0, alpha_start=1.0, alpha_target=1.0, ramp=int(Ramp.HOLD))


def _look_up(table: tuple[float, ...] | tuple[int, ...], index: Tensor) -> Tensor:
    dtype = torch.float32 if isinstance(table[0], float) else torch.int64
    return constant(table, dtype, index.device)[index]


def _germinate(slots: Slots, selected: Tensor, action: Action, accuracy: Tensor) -> Slots:
    # GERMINATE may replace a seed: nothing of the one before may stay but the slot's count of germinations.
    slots = _clear(slots, selected)
    slots = _enter(slots, selected, Stage.GERMINATED, accuracy)
    return _set(
        slots,
        selected,
        blueprint=action.blueprint[:, None],
        operator=_look_up(_STYLE_OPERATORS, action.style[:, None]),
        tempo_steps=_look_up(TEMPO_STEPS, action.tempo[:, None]),
        first_curve=_look_up(_STYLE_CURVES, action.style[:, None]),
        first_target=_look_up(ALPHA_TARGETS, action.alpha_target[:, None]),
        germinations=slots.germinations + 1,
        germination_accuracy=accuracy,
        accuracy=accuracy,
    )


def _set_alpha(slots: Slots, selected: Tensor, action: Action, accuracy: Tensor) -> Slots:
    """Retarget, with the chosen style's operator; below 1 a HOLDING seed blends again."""
    target = _look_up(ALPHA_TARGETS, action.alpha_target[:, None])
    steps = _look_up(ALPHA_SPEED_STEPS, action.alpha_speed[:, None])
    # A seed that holds has alpha 1: below, it is blending.
    reopened = selected & (slots.stage == Stage.HOLDING) & (target < 1 - ALPHA_TOLERANCE)
    slots = _enter(slots, reopened, Stage.BLENDING, accuracy)
    slots = _set(slots, selected, operator=_look_up(_STYLE_OPERATORS, action.style[:, None]))
    return retarget(slots, selected, target, steps, action.alpha_curve[:, None])


def _prune(slots: Slots, selected: Tensor, action: Action, accuracy: Tensor) -> Slots:
    """Prune at once, or, where alpha is above 0, may be moved and the speed is not instant, by a ramp to 0."""
    # A ramp takes the seed out gently; PRUNED follows when it has arrived.
    steps = _look_up(ALPHA_SPEED_STEPS, action.alpha_speed[:, None])
    scheduled = (
        selected & in_stages(slots.stage, RETARGETABLE_STAGES) & (slots.alpha > 0) & (steps > 0)
    )
    slots = _remove(slots, selected & ~scheduled)
    slots = _enter(slots, scheduled & (slots.stage == Stage.HOLDING), Stage.BLENDING, accuracy)
    slots = retarget(
        slots, scheduled, torch.zeros_like(slots.alpha), steps, action.alpha_curve[:, None]
    )
    return _set(slots, scheduled, prune_scheduled=True)


def _transition_automatically(
    slots: Slots,
    settled: Tensor,
    params: Lifecycle,
    accuracy: Tensor,
) -> Slots:
    """Move slots on without an op; a slot that is not ``settled [E, K]`` has already made its transition."""
    # PRUNED → EMBARGOED → RESETTING → DORMANT, after at least one tick in each.
    waiting = settled & in_stages(slots.stage, FAILURE_STAGES)
    slots = _set(slots, waiting, dwell=slots.dwell + 1)
    durations = {Stage.EMBARGOED: params.embargo_steps, Stage.RESETTING: params.reset_steps}
    duration = _look_up(tuple(durations.get(stage, 0) for stage in Stage), slots.stage)
    following = _look_up(_NEXT_STAGE, slots.stage)
    slots = _enter(
        slots, waiting & (slots.dwell >= duration), following, torch.full_like(accuracy, torch.nan)
    )

    # With auto_advance through the gates G1 to G3, one transition a step, but for stages that take no time.
    if not params.auto_advance:
        return slots
    # As many passes as there are stages to pass: a seed may skip all that take no time.
    for _ in ADVANCEABLE_STAGES:
        target = _look_up(_NEXT_STAGE, slots.stage)
        ready = (settled | _takes_no_time(slots, params)) & in_stages(
            slots.stage, ADVANCEABLE_STAGES
        )
        ready &= ~slots.prune_scheduled & _passes_gate_of(target, gate_passes(slots, params))
        slots = _enter(slots, ready, target, accuracy)
        settled = settled & ~ready
    return slots


def _takes_no_time(slots: Slots, params: Lifecycle) -> Tensor:
    """Tell which seeds may leave their stage in the step in which they entered it, bool ``[E, K]``."""
    # With training_dwell 0 gates alone decide when a seed blends, and at tempo 0 it has blended at once.
    untrained = in_stages(slots.stage, frozenset({Stage.GERMINATED, Stage.TRAINING})) & (
        params.training_dwell == 0
    )
    return untrained | (
        (slots.stage == Stage.BLENDING) & (slots.tempo_steps == 0) & (slots.dwell == 0)
    )


def _clear(slots: Slots, selected: Tensor) -> Slots:
    """Forget everything about the seed; the slot's own history stays."""
    empty = vars(Slots.empty(*slots.shape, device=slots.stage.device))
    history = ("stage", "dwell", "germinations")
    return _set(
        slots, selected, **{name: value for name, value in empty.items() if name not in history}
    )


def _remove(slots: Slots, selected: Tensor) -> Slots:
    """Move seeds into PRUNED; their modules are freed."""
    nan = torch.full_like(slots.alpha, torch.nan)
    return _enter(_clear(slots, selected), selected, Stage.PRUNED, nan)
