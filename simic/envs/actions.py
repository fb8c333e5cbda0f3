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

from simic.agent.distributions import head_mask, relevant_only
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
    """Describe the heads, in the order of ``Action``'s fields, for so many slots and blueprints."""
    # The op first, then the slot: the agent samples in this order, and knows these two by their place.
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
    relevance = tuple(
        tuple(head.name == "op" or head.name in RELEVANT[op] for head in heads) for op in Op
    )
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
    actions: dict[str, tuple[str | float, ...]],
    choices: dict[str, tuple[str | float, ...]],
    device: torch.device,
) -> dict[str, Tensor]:
    """Mark the choices that ``train.actions`` leaves open.

    Args:
        actions: What remains allowed, by head; all where it names none.
        choices: What the indices of each head stand for.
        device: Where the masks are.

    Returns:
        Bool ``[n]`` for each head with choices that are closed.

    Raises:
        SimicError: A head or a choice that there is not, or WAIT closed.
    """
    # What is asked for must be there.
    for head, values in actions.items():
        # A misspelt choice would close nothing, and nobody would notice.
        if head not in choices:
            raise SimicError(
                f"train.actions: there is no head {head!r}; the heads are {', '.join(choices)}"
            )
        for value in values:
            if value not in choices[head]:
                allowed = ", ".join(map(str, choices[head]))
                raise SimicError(
                    f"train.actions.{head}: there is no {value!r}; allowed are {allowed}; train.actions={{}} opens all"
                )
        # Without WAIT a step in which nothing else is legal would have no action.
        if head == "op" and values and Op.WAIT.name not in values:
            raise SimicError(
                f"train.actions.op = {', '.join(map(str, values))}: must include {Op.WAIT.name}"
            )
    # Heads of which nothing is closed have no mask of their own.
    masks: dict[str, Tensor] = {}
    for head, values in choices.items():
        flags = [value in (actions.get(head) or values) for value in values]
        if not all(flags):
            masks[head] = torch.tensor(flags, device=device)
    return masks


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
        """Tell where the live seeds of other slots plus a candidate stay within the limit, bool ``[E, K, P]``."""
        # Reserves, not present parameters: what a living seed may still become must fit as well.
        envs, count = slots.stage.shape
        reserve = self.reserve.expand(envs, count, -1)
        # A free slot has blueprint -1, which cannot be looked up: clamped here, its reserve is dropped below.
        live_reserve = reserve.gather(2, slots.blueprint.clamp(min=0)[:, :, None])[:, :, 0]
        live_reserve = torch.where(slots.blueprint >= 0, live_reserve, 0)
        elsewhere = live_reserve.sum(dim=1, keepdim=True) - live_reserve
        return (elsewhere[:, :, None] + self.reserve <= self.limit) & self.runs


def action_masks(
    slots: Slots, params: Lifecycle, budget: Budget, left_open: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Compute the masks by head name; a slot without an affordable blueprint cannot be germinated.

    Args:
        slots: State of all slots ``[E, K]``.
        params: What the lifecycle allows.
        budget: What seeds may cost.
        left_open: Bool ``[n]`` for each head with choices that ``train.actions`` closes.
    """
    # From the lifecycle's table down: closed choices, then blueprints that nothing can pay for. An op without a legal
    # slot, and a slot without a legal blueprint, must not be offered: the walk down the heads cannot turn back.
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
    return masks | {
        head: mask.expand(len(slot), -1) for head, mask in left_open.items() if head not in masks
    }


def seed_budget(
    host: HostSpec,
    blueprints: tuple[Blueprint, ...],
    param_budget: float,
    device: torch.device,
    left_open: Tensor | None = None,
) -> Budget:
    """Count what every blueprint reserves in every slot of a host.

    Args:
        host: The network that seeds grow in.
        blueprints: What can be grown.
        param_budget: Limit of all seeds together, times the host's parameters.
        device: Where the budget is looked up.
        left_open: Bool ``[P]``, blueprints that ``train.actions`` leaves open; None: all.
    """
    # On "meta" modules are counted without being made.
    with torch.device("meta"):
        gates = [count_params(host.gate(shape)) for shape in host.slot_shapes]
    # From the module that would be made, so that the budget and the grown network never disagree.
    reserve = [
        [item.params(shape) + gate for item in blueprints]
        for shape, gate in zip(host.seed_shapes, gates, strict=True)
    ]
    runs = (
        torch.ones(len(blueprints), dtype=torch.bool, device=device)
        if left_open is None
        else left_open
    )
    return Budget(torch.tensor(reserve, device=device), param_budget * host.params, runs)


def to_action(actions: Tensor) -> Action:
    """Split ``[E, 8]`` indices into a factored action; SimicError on another shape."""
    if actions.ndim != 2 or actions.shape[1] != len(Action._fields):
        raise SimicError(
            f"action tensor has shape {tuple(actions.shape)}: allowed is (envs, {len(Action._fields)})"
        )
    return Action(*actions.unbind(dim=1))


def waiting_where(rows: Tensor, action: Action) -> Action:
    """Replace an action by WAIT in the rows ``[E]`` that are True."""
    return Action(*(torch.where(rows, 0, head) for head in action))


def legal(spec: ActionSpec, masks: dict[str, Tensor], action: Action) -> Tensor:
    """Tell whether the masks allow what an action chooses in the heads that its op uses.

    Args:
        spec: The heads.
        masks: By head name, ``[E, ...]``.
        action: Indices ``[E]`` of every head, within their sizes.

    Returns:
        Bool ``[E]``.
    """
    # A head that the op does not use decides nothing: whatever stands there is legal.
    relevance = spec.relevance_table(action.op.device)[action.op]
    allowed = torch.ones_like(action.op, dtype=torch.bool)
    for head, choice in enumerate(action):
        mask = head_mask(spec, masks, head, action)
        if mask is not None:
            allowed &= mask.gather(1, choice[:, None])[:, 0] | ~relevance[:, head]
    return allowed


def random_legal(spec: ActionSpec, observation: Observation, noise: Tensor) -> Tensor:
    """Draw uniformly among legal ops, then slots given the op, then each head the op uses.

    Numbers are drawn between their bounds, without bounds between ±1.

    Args:
        spec: The heads.
        observation: Its masks say what is legal.
        noise: Uniform in [0, 1), ``[E, width]``.

    Returns:
        ``[E, width]``; heads the op does not use are 0.
    """
    # The walk of the policy, so that both sample from the same tree; an index of the whole grammar would favour ops
    # with many forms.
    relevance = spec.relevance_table(noise.device)
    chosen: list[Tensor] = []
    # Each draw takes its own column of the noise, whether the head matters or not: no draw depends on another.
    for head, discrete in enumerate(spec.discrete_heads):
        mask = head_mask(spec, observation.masks, head, chosen)
        if mask is None:
            mask = noise.new_ones(len(noise), discrete.size, dtype=torch.bool)
        choice = _nth_legal(mask, noise[:, head])
        chosen.append(torch.where(relevance[chosen[0], head], choice, 0) if head else choice)
    actions = list(chosen)
    for head in range(len(chosen), len(spec.heads)):
        columns = spec.columns[head]
        numbers = 2.0 * noise[:, columns] - 1.0
        is_used = None
        if chosen:
            is_used = relevance[chosen[0], head]
        actions += relevant_only(numbers.t(), is_used)
    return torch.stack([column.to(spec.dtype) for column in actions], dim=1)


def _nth_legal(mask: Tensor, noise: Tensor) -> Tensor:
    """Find the floor(noise · count)-th True of each row; in float64 the product stays below count."""
    count = mask.sum(dim=1)
    rank = (noise.double() * count).long()
    # Position of the first True whose running count exceeds the rank.
    return ((mask.cumsum(dim=1) > rank[:, None]) & mask).int().argmax(dim=1)


def grammar(spec: ActionSpec) -> Tensor:
    """List every distinct action, int64 ``[n, heads]``; heads that an op does not use are 0."""
    rows = []
    for op, relevance in enumerate(spec.relevance):
        choices = [
            range(head.size) if relevant else (0,)
            for head, relevant in zip(spec.heads, relevance, strict=True)
        ]
        rows += [(op, *rest) for rest in product(*choices[1:])]
    return torch.tensor(rows)


def grammar_mask(spec: ActionSpec, observation: Observation, actions: Tensor) -> Tensor:
    """Tell which actions are legal now.

    Args:
        spec: The heads.
        observation: Of E environments, with masks.
        actions: Those of ``grammar(spec)``, ``[n, heads]``.

    Returns:
        Bool ``[E, n]``.
    """
    # Every environment with every action, row by row.
    envs = len(observation.features)
    count = len(actions)
    masks = {name: mask.repeat_interleave(count, 0) for name, mask in observation.masks.items()}
    return legal(spec, masks, to_action(actions.repeat(envs, 1))).view(envs, count)
