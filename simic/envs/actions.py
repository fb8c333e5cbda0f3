"""Which heads an op uses, which actions are legal, and the forms an action takes.

Forms: factored (``Action``), tensor ``[E, 8]``, index of the legal grammar. Masks are the tensors that the policy
samples under: ``op [E, O]``, ``slot [E, O, K]`` given the op, ``blueprint [E, K, P]`` given the slot; the other heads
are free. What a lifecycle transition forbids comes from its table (``growth.life.lifecycle.legal_ops``); budgets are
added here, and so are the choices that ``train.actions`` closes: a head that is free otherwise then has a mask
``[E, n]``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from simic.agent.distributions import head_mask
from simic.agent.spec import ActionSpec, Head, Observation
from simic.envs.observations import KIND
from simic.errors import SimicError
from simic.growth.life.lifecycle import legal_ops
from simic.growth.life.vocabulary import (
    ALPHA_SPEED_STEPS,
    ALPHA_TARGETS,
    STYLE_NAMES,
    STYLES,
    TEMPO_STEPS,
    Action,
    Curve,
    Op,
    Slots,
)
from simic.growth.networks.blueprints import Blueprint, count_params
from simic.growth.networks.hosts import HostSpec
from simic.params import Lifecycle

# The one op x head table: distributions, losses, entropy, telemetry and the report read it through the ActionSpec.
# The op itself always matters.
RELEVANT: dict[Op, tuple[str, ...]] = {
    Op.WAIT: (),
    Op.GERMINATE: ("slot", "blueprint", "style", "tempo", "alpha_target"),
    Op.SET_ALPHA_TARGET: ("slot", "style", "alpha_target", "alpha_speed", "alpha_curve"),
    Op.PRUNE: ("slot", "alpha_speed", "alpha_curve"),
    Op.FOSSILIZE: ("slot",),
    Op.ADVANCE: ("slot",),
}


# Logits that an untrained policy adds: it waits in most steps and seldom prunes, or no seed would live long enough to
# show anything (docs/history/experiments.md).
LEAN: dict[Op, float] = {Op.WAIT: 2.4, Op.GERMINATE: 2.4, Op.PRUNE: -1.0}


def action_spec(slots: int, blueprints: int) -> ActionSpec:
    """Return the heads, in the order of ``Action``'s fields, for so many slots and blueprints."""
    heads = (
        Head("op", len(Op), lean=tuple(LEAN.get(op, 0.0) for op in Op)),
        Head("slot", slots, "op"),
        Head("blueprint", blueprints, "slot", described=len(KIND)),
        Head("style", len(STYLES)),
        Head("tempo", len(TEMPO_STEPS)),
        Head("alpha_target", len(ALPHA_TARGETS)),
        Head("alpha_speed", len(ALPHA_SPEED_STEPS)),
        Head("alpha_curve", len(Curve)),
    )
    relevance = tuple(tuple(head.name == "op" or head.name in RELEVANT[op] for head in heads) for op in Op)
    return ActionSpec(heads, relevance)


def choices(slots: int, blueprints: Sequence[str]) -> dict[str, tuple[str | float, ...]]:
    """Name what the indices of each head stand for, as a person writes it."""
    return {
        "op": tuple(op.name for op in Op),
        "slot": tuple(range(slots)),
        "blueprint": tuple(blueprints),
        "style": STYLE_NAMES,
        "tempo": TEMPO_STEPS,
        "alpha_target": ALPHA_TARGETS,
        "alpha_speed": ALPHA_SPEED_STEPS,
        "alpha_curve": tuple(curve.name for curve in Curve),
    }


def open_choices(
    actions: dict[str, tuple[str | float, ...]], known: dict[str, tuple[str | float, ...]], device: torch.device
) -> dict[str, Tensor]:
    """Return bool ``[n]`` for each head with choices that ``train.actions`` closes; SimicError for what is unknown."""
    for head, values in actions.items():
        if head not in known:
            raise SimicError(f"train.actions: there is no head {head!r}; the heads are {', '.join(known)}")
        for value in values:
            if value not in known[head]:
                allowed = ", ".join(map(str, known[head]))
                raise SimicError(
                    f"train.actions.{head}: there is no {value!r}; allowed are {allowed}; train.actions={{}} opens all"
                )
        if head == "op" and values and Op.WAIT.name not in values:
            raise SimicError(f"train.actions.op = {', '.join(map(str, values))}: must include {Op.WAIT.name}")
    chosen = {head: actions.get(head) or values for head, values in known.items()}
    left_open = {head: [value in chosen[head] for value in values] for head, values in known.items()}
    return {head: torch.tensor(flags, device=device) for head, flags in left_open.items() if not all(flags)}


@dataclass(frozen=True)
class Budget:
    """``reserve [K, P]``: the most parameters a seed of a blueprint can have in a slot, its gate included, because a
    gate can be added to a living seed; ``limit``: what all seeds of a host may have together; ``runs [P]``: the
    blueprints that this device can run and ``train.actions`` leaves open.
    """

    reserve: Tensor
    limit: float
    runs: Tensor

    def fits(self, slots: Slots) -> Tensor:
        """Return bool ``[E, K, P]``: the live seeds of other slots plus this candidate stay within the limit."""
        envs, count = slots.stage.shape
        live = slots.blueprint >= 0
        by_slot = self.reserve.expand(envs, count, -1)
        held = by_slot.gather(2, slots.blueprint.clamp(min=0)[:, :, None])[:, :, 0]
        held = torch.where(live, held, 0)
        elsewhere = held.sum(dim=1, keepdim=True) - held
        return (elsewhere[:, :, None] + self.reserve <= self.limit) & self.runs


def action_masks(
    slots: Slots, params: Lifecycle, budget: Budget, left_open: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the masks by head name; a slot without an affordable blueprint cannot be germinated. ``left_open`` has the
    choices ``[n]`` of each head that some are closed of.
    """
    left_open = left_open or {}
    slot = legal_ops(slots, params).clone()
    if "op" in left_open:
        slot &= left_open["op"][:, None]
    if "slot" in left_open:
        slot[:, Op.WAIT + 1 :] &= left_open["slot"]  # WAIT uses no slot
    germinable = slot[:, Op.GERMINATE]
    blueprint = germinable[:, :, None] & budget.fits(slots)
    slot[:, Op.GERMINATE] = blueprint.any(dim=2)
    masks = {"op": slot.any(dim=2), "slot": slot, "blueprint": blueprint}
    return masks | {head: mask.expand(len(slot), -1) for head, mask in left_open.items() if head not in masks}


def seed_budget(
    host: HostSpec,
    blueprints: tuple[Blueprint, ...],
    param_budget: float,
    device: torch.device,
    left_open: Tensor | None = None,
) -> Budget:
    """Return what every blueprint reserves in every slot of a host, and ``param_budget`` times the host's parameters;
    ``left_open [P]`` are the blueprints that are allowed (None: all).
    """
    with torch.device("meta"):
        gates = [count_params(host.gate(shape)) for shape in host.slot_shapes]
    reserve = [
        [item.params(shape) + gate for item in blueprints] for shape, gate in zip(host.seed_shapes, gates, strict=True)
    ]
    runs = torch.ones(len(blueprints), dtype=torch.bool, device=device) if left_open is None else left_open
    return Budget(torch.tensor(reserve, device=device), param_budget * host.params, runs)


def to_action(actions: Tensor) -> Action:
    """Return ``[E, 8]`` indices as a factored action; SimicError on another shape."""
    if actions.ndim != 2 or actions.shape[1] != len(Action._fields):
        raise SimicError(f"action tensor has shape {tuple(actions.shape)}: allowed is (envs, {len(Action._fields)})")
    return Action(*actions.unbind(dim=1))


def waiting_where(rows: Tensor, action: Action) -> Action:
    """Return ``action`` with WAIT in the given rows ``[E]``."""
    return Action(*(torch.where(rows, 0, head) for head in action))


def legal(spec: ActionSpec, masks: dict[str, Tensor], action: Action) -> Tensor:
    """Return bool ``[E]``: whether the masks allow what each action chooses in the heads that its op uses."""
    relevance = spec.relevance_table(action.op.device)[action.op]
    allowed = torch.ones_like(action.op, dtype=torch.bool)
    for head, choice in enumerate(action):
        mask = head_mask(spec, masks, head, action)
        if mask is not None:
            allowed &= mask.gather(1, choice[:, None])[:, 0] | ~relevance[:, head]
    return allowed


def random_legal(spec: ActionSpec, observation: Observation, noise: Tensor) -> Tensor:
    """Draw uniformly among legal ops, then slots given the op, then each head the op uses; int64 ``[E, heads]``.

    ``noise`` is uniform in [0, 1), ``[E, heads]``. Heads the op does not use are 0.
    """
    relevance = spec.relevance_table(noise.device)
    chosen: list[Tensor] = []
    for head in range(len(spec.heads)):
        mask = head_mask(spec, observation.masks, head, chosen)
        if mask is None:
            mask = torch.ones(len(noise), spec.heads[head].size, dtype=torch.bool, device=noise.device)
        choice = _nth_legal(mask, noise[:, head])
        chosen.append(torch.where(relevance[chosen[0], head], choice, 0) if head else choice)
    return torch.stack(chosen, dim=1)


def _nth_legal(mask: Tensor, noise: Tensor) -> Tensor:
    """Return the index of the floor(noise · count)-th True of each row; in float64 the product stays below count."""
    count = mask.sum(dim=1)
    rank = (noise.double() * count).long()
    # Position of the first True whose running count exceeds the rank.
    return ((mask.cumsum(dim=1) > rank[:, None]) & mask).int().argmax(dim=1)


def grammar(spec: ActionSpec) -> Tensor:
    """Return every distinct action, int64 ``[n, heads]``; heads that an op does not use are 0."""
    rows = []
    for op, relevant in enumerate(spec.relevance):
        choices = [range(head.size) if used else (0,) for head, used in zip(spec.heads, relevant, strict=True)]
        rows += [(op, *rest) for rest in product(*choices[1:])]
    return torch.tensor(rows)


def grammar_mask(spec: ActionSpec, observation: Observation, actions: Tensor) -> Tensor:
    """Return bool ``[E, n]``: the rows of ``grammar(spec)`` that are legal now."""
    envs, count = len(observation.features), len(actions)
    masks = {name: mask.repeat_interleave(count, 0) for name, mask in observation.masks.items()}
    return legal(spec, masks, to_action(actions.repeat(envs, 1))).view(envs, count)
