"""Whether what seeds did is what a life allows: transitions, ops, budgets; each rule gives the places that break it."""

from collections.abc import Iterator, Mapping

import numpy as np

from simic.audit.recompute.arrays import (
    ADVANCE,
    BLENDING,
    DORMANT,
    EMBARGOED,
    FOSSILIZE,
    FOSSILIZED,
    GERMINATE,
    GERMINATED,
    HOLDING,
    LIVE,
    PRUNE,
    PRUNED,
    RESETTING,
    SET_ALPHA_TARGET,
    TRAINING,
    UNFINISHED,
    WAIT,
    Array,
    Steps,
    asked,
    earlier,
    of_slot,
    ran_for,
)
from simic.params import Lifecycle

FOLLOWS = {
    DORMANT: (GERMINATED,),
    GERMINATED: (TRAINING, PRUNED),
    TRAINING: (BLENDING, PRUNED),
    BLENDING: (HOLDING, PRUNED),
    HOLDING: (FOSSILIZED, BLENDING, PRUNED),
    FOSSILIZED: (),
    PRUNED: (EMBARGOED,),
    EMBARGOED: (RESETTING,),
    RESETTING: (DORMANT,),
}
# Where an op may be done; WAIT may be anywhere.
GONE = (PRUNED, EMBARGOED, RESETTING)
ALLOWED_IN = {
    GERMINATE: (DORMANT,),
    SET_ALPHA_TARGET: (BLENDING, HOLDING),
    PRUNE: UNFINISHED,
    FOSSILIZE: (HOLDING,),
    ADVANCE: (GERMINATED, TRAINING, BLENDING),
}


TEMPO_STEPS = (0, 3, 5, 8)
ALPHA_TARGETS = (0.5, 0.7, 1.0)
STYLES = ("linear_add", "linear_multiply", "sigmoid_add", "linear_gate")
WHOLE = ALPHA_TARGETS.index(1.0)


def violations(steps: Steps, lifecycle: Lifecycle) -> Iterator[tuple[str, Array]]:
    """Each rule in words, and where it is broken, ``[T, E]``; steps without experience are left out."""
    counted = steps["valid"] & ~steps["panicked"]  # a rollback puts the host back to an earlier state
    stage, before, begun = steps["stage"], earlier(steps["stage"], DORMANT), asked(steps)
    op, target = steps["effective_op"], of_slot(before, steps["slot"])
    yield "a stage that cannot follow the one before", counted & _jumps(steps, lifecycle).any(axis=2)
    for number, stages in ALLOWED_IN.items():
        if number == GERMINATE and at_once(lifecycle):
            stages = (*stages, *GONE, *UNFINISHED)
        yield f"op {number} where it is illegal", counted & (op == number) & ~np.isin(target, stages)
    yield "an op that is not the sampled one", counted & (op != WAIT) & (op != steps["op"])
    appeared = ~np.isin(before, LIVE) & np.isin(stage, LIVE)
    unasked = (appeared & ~begun) | (begun & ~np.isin(stage, LIVE))
    yield "a seed that no GERMINATE began", counted & unasked.any(axis=2)
    yield "a FOSSILIZE that kept nothing", counted & (op == FOSSILIZE) & (of_slot(stage, steps["slot"]) != FOSSILIZED)
    young = of_slot(_age(steps), steps["slot"]) < lifecycle.min_prune_age
    ends = (op == PRUNE) | ((op == GERMINATE) & np.isin(target, LIVE))
    yield "a seed that ended before min_prune_age", counted & ends & young
    limit = lifecycle.max_seeds or stage.shape[2]
    yield "more seeds than max_seeds", counted & (np.isin(stage, LIVE).sum(axis=2) > limit)
    another = steps["slot_blueprint"] != earlier(steps["slot_blueprint"], -1)
    both = np.isin(stage, LIVE) & np.isin(before, LIVE) & ~begun
    yield "a living seed of another blueprint", counted & (another & both).any(axis=2)
    early = (before == TRAINING) & np.isin(stage, (BLENDING, HOLDING)) & ~begun
    early &= earlier(ran_for(stage, begun), 0) < lifecycle.training_dwell
    yield "BLENDING before training_dwell", counted & early.any(axis=2)
    yield "a stage that takes no time and took some", counted & (begun & _lingers(steps, lifecycle)).any(axis=2)
    unmeasured = ~np.isfinite(of_slot(earlier(steps["contribution"], np.nan), steps["slot"]))
    yield "a FOSSILIZE of what was never measured", counted & (op == FOSSILIZE) & unmeasured
    empty = ~np.isin(stage, LIVE) & (steps["alpha"] != 0)
    yield "an alpha without a seed", counted & empty.any(axis=2)
    outside = (steps["alpha"] < 0) | (steps["alpha"] > 1) | ((stage == HOLDING) & (steps["alpha"] != 1))
    yield "an alpha that its stage cannot have", counted & outside.any(axis=2)
    yield "an alpha off its first ramp", counted & _off_ramp(steps)


def at_once(lifecycle: Lifecycle) -> bool:
    """Whether a slot takes the next seed in the step in which it loses one."""
    return lifecycle.embargo_steps == lifecycle.reset_steps == 0


def _jumps(steps: Steps, lifecycle: Lifecycle) -> Array:
    """Stages that a slot cannot be in after the step, ``[T, E, K]``: one transition from where the step began it, and
    as many more as take no time.
    """
    stage, begun, instant = steps["stage"], asked(steps), _of_seed(steps, "tempo") == TEMPO_STEPS.index(0)
    before = np.where(begun, GERMINATED, earlier(stage, DORMANT))
    allowed = before == stage
    for number, following in FOLLOWS.items():
        for quick in (False, True):
            reached = set(following) | {number}
            for _ in range(len(LIVE)):
                reached |= {to for place in reached for to in _in_no_time(place, quick, lifecycle)}
            allowed |= (before == number) & (instant == quick) & np.isin(stage, tuple(reached))
    return ~allowed


def _in_no_time(stage: int, quick: bool, lifecycle: Lifecycle) -> tuple[int, ...]:
    """The stage that may follow in the same step; ``quick``: the seed's first ramp has no steps."""
    follows = {BLENDING: (HOLDING,)} if quick else {}
    follows |= {GERMINATED: (TRAINING,), TRAINING: (BLENDING,)} if lifecycle.training_dwell == 0 else {}
    return follows.get(stage, ()) if lifecycle.auto_advance else ()


def _lingers(steps: Steps, lifecycle: Lifecycle) -> Array:
    """Of the seeds that begin in a step those that did not get as far as they get in no time, ``[T, E, K]``."""
    if lifecycle.training_dwell or not lifecycle.auto_advance or lifecycle.gates == "strict":
        return np.zeros(steps["stage"].shape, dtype=bool)
    instant = _of_seed(steps, "tempo") == TEMPO_STEPS.index(0)
    whole = instant & (_of_seed(steps, "alpha_target") == WHOLE)
    return steps["stage"] != np.where(whole, HOLDING, BLENDING)


def _of_seed(steps: Steps, head: str) -> Array:
    """What was chosen when the slot's newest seed germinated, ``[T, E, K]``; -1 before the first."""
    begun = asked(steps)
    found = np.where(begun, steps[head][..., None], -1)
    for t in range(1, len(found)):
        found[t] = np.where(begun[t], found[t], found[t - 1])
    return found


def _age(steps: Steps) -> Array:
    """Steps that each slot's seed had lived before the step, ``[T, E, K]``."""
    stage, begun = steps["stage"], asked(steps)
    age = np.zeros(stage.shape, dtype=np.int64)
    for t in range(1, len(stage)):
        lived = np.where(begun[t - 1], 0, age[t - 1])
        age[t] = np.where(np.isin(stage[t - 1], LIVE), lived + 1, 0)
    return age


def sizes(steps: Steps, host_params: int, lifecycle: Lifecycle) -> Iterator[tuple[str, Array]]:
    """Rules about parameters, likewise."""
    counted = steps["valid"] & ~steps["panicked"]
    live, kept = (np.isin(steps["stage"], stages).sum(axis=2) for stages in (LIVE, (FOSSILIZED,)))
    grown, committed = steps["params"] - host_params, steps["committed_params"] - host_params
    yield "seeds without parameters", counted & (((grown > 0) != (live > 0)) | ((committed > 0) != (kept > 0)))
    yield "more kept than there are", counted & ((committed > grown) | ((live == kept) & (committed != grown)))
    yield "more parameters than param_budget", counted & (grown > lifecycle.param_budget * host_params)


def closed(steps: Steps, actions: Mapping[str, tuple[str | float, ...]]) -> Iterator[tuple[str, Array]]:
    """Germinations with what ``train.actions`` closes. Blueprints have no names in the record: more of them than are
    open are too many.
    """
    began = steps["valid"] & (steps["effective_op"] == GERMINATE)
    slots = tuple(range(steps["stage"].shape[2]))
    known = {"style": STYLES, "tempo": TEMPO_STEPS, "alpha_target": ALPHA_TARGETS, "slot": slots}
    for head, values in known.items():
        left_open = [number for number, value in enumerate(values) if value in (actions.get(head) or values)]
        yield f"a {head} that is closed", began & ~np.isin(steps[head], left_open)
    allowed = actions.get("blueprint")
    if allowed:
        used = len(np.unique(steps["blueprint"][began]))
        yield "more blueprints than are open", began & (used > len(allowed))


STEEPNESS = {2: 12.0}  # of the sigmoid ramp, by style; the other styles ramp in a line
TOLERANCE = 1e-5  # of a float32 ramp


def _off_ramp(steps: Steps) -> Array:
    """Where a BLENDING seed that nothing was done to since its germination is not as far as its ramp, ``[T, E]``."""
    off = np.zeros(steps["op"].shape, dtype=bool)
    stage, slot = steps["stage"], steps["slot"]
    for t, host in zip(*np.nonzero((steps["effective_op"] == GERMINATE) & steps["valid"]), strict=True):
        place = slot[t, host]
        for done, now in enumerate(_first_ramp(steps, int(t), int(host), int(place))):
            length, target = TEMPO_STEPS[steps["tempo"][t, host]], ALPHA_TARGETS[steps["alpha_target"][t, host]]
            share = min(1.0, done / length) if length else 1.0
            expected = target * _curve(int(steps["style"][t, host]), share)
            off[now, host] |= stage[now, host, place] == BLENDING and (
                abs(steps["alpha"][now, host, place] - expected) > TOLERANCE
            )
    return off


def _first_ramp(steps: Steps, germinated: int, host: int, place: int) -> range:
    """The steps of BLENDING of the seed germinated then, until something is done to it."""
    stage = steps["stage"][:, host, place]
    touched = (steps["slot"][:, host] == place) & (steps["effective_op"][:, host] != WAIT)
    first = next((t for t in range(germinated, len(stage)) if stage[t] == BLENDING), len(stage))
    ends = (t for t in range(germinated + 1, len(stage)) if touched[t] or (t > first and stage[t] != BLENDING))
    return range(first, max(first, next(ends, len(stage))))


def _curve(style: int, done: float) -> float:
    """How far a ramp is, 0 to 1."""
    steep = STEEPNESS.get(style)
    if steep is None:
        return done
    low = 1.0 / (1.0 + np.exp(steep / 2))
    return float((1.0 / (1.0 + np.exp(-steep * (done - 0.5))) - low) / (1.0 - 2.0 * low))
