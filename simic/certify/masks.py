"""Action masks of one host: lifecycle, parameter budget, and choices that the params leave open."""

from typing import Any

from simic.certify import life
from simic.certify.life import GERMINATE, OPS, WAIT, Slot
from simic.certify.networks import Anatomy
from simic.params import Train

# By head: ``op [O]``, ``slot [O][K]`` given the op, ``blueprint [K][P]`` given the slot; others where the params close
# a choice.
Masks = dict[str, list[Any]]


def decision(action: dict[str, int]) -> life.Decision:
    """Return the values of an action's indices."""
    operator, curve = list(life.STYLES.values())[action["style"]]
    return life.Decision(
        op=action["op"],
        slot=action["slot"],
        blueprint=action["blueprint"],
        operator=operator,
        curve=curve,
        tempo=life.TEMPOS[action["tempo"]],
        target=life.TARGETS[action["alpha_target"]],
        speed=life.SPEEDS[action["alpha_speed"]],
        alpha_curve=action["alpha_curve"],
    )


def masks(slots: list[Slot], body: Anatomy, train: Train) -> Masks:
    """Return the masks of the present state."""
    choices = {
        "op": OPS,
        "slot": range(body.slots),
        "blueprint": body.blueprints[0],
        "style": life.STYLES,
        "tempo": life.TEMPOS,
        "alpha_target": life.TARGETS,
        "alpha_speed": life.SPEEDS,
        "alpha_curve": life.CURVES,
    }
    chosen = train.actions
    left = {head: [not chosen.get(head) or value in chosen[head] for value in every] for head, every in choices.items()}
    slot = life.allowed(slots, train.lifecycle)
    for op in range(len(OPS)):
        for k in range(body.slots):
            slot[op][k] = slot[op][k] and left["op"][op] and (op == WAIT or left["slot"][k])
    fits = _affordable(slots, body, train)
    blueprint = [
        [slot[GERMINATE][k] and fits[k][p] and left["blueprint"][p] for p in range(len(fits[k]))]
        for k in range(body.slots)
    ]
    slot[GERMINATE] = [any(row) for row in blueprint]
    others = {head: flags for head, flags in left.items() if head not in ("op", "slot", "blueprint") and not all(flags)}
    return {"op": [any(row) for row in slot], "slot": slot, "blueprint": blueprint, **others}


def _affordable(slots: list[Slot], body: Anatomy, train: Train) -> list[list[bool]]:
    """Return where a seed of each blueprint stays within the budget beside those of other slots ``[K][P]``; a gate
    counts with every seed, since one may be added later.
    """
    sizes = [
        [part.params + gate.params for part in kinds.values()]
        for kinds, gate in zip(body.blueprints, body.gates, strict=True)
    ]
    held = [sizes[k][slot.seed.blueprint] if slot.alive else 0 for k, slot in enumerate(slots)]
    limit = train.lifecycle.param_budget * body.params
    return [[sum(held) - held[k] + size <= limit for size in row] for k, row in enumerate(sizes)]
