"""Which actions are physically possible, as the tensors the policy samples under.

``op [E, O]``, ``slot [E, O, K]`` given the op, ``blueprint [E, K, P]`` given the slot; the other heads are free. What a
lifecycle transition forbids comes from its table (``growth.life.lifecycle.legal_ops``); budgets are added here, and so
are the choices that ``train.actions`` closes: a head that is free otherwise then has a mask ``[E, n]``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simic.growth.life.lifecycle import legal_ops
from simic.growth.life.vocabulary import Op, Slots
from simic.growth.networks.blueprints import Blueprint, count_params
from simic.growth.networks.hosts import HostSpec
from simic.params import Lifecycle


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
        """Bool ``[E, K, P]``: the live seeds of other slots plus this candidate stay within the limit."""
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
    """Masks by head name; a slot without an affordable blueprint cannot be germinated. ``left_open`` has the choices
    ``[n]`` of each head that some are closed of.
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
    """What every blueprint reserves in every slot of a host, and ``param_budget`` times the host's parameters;
    ``left_open [P]`` are the blueprints that are allowed (None: all).
    """
    with torch.device("meta"):
        gates = [count_params(host.gate(shape)) for shape in host.slot_shapes]
    reserve = [
        [item.params(shape) + gate for item in blueprints] for shape, gate in zip(host.seed_shapes, gates, strict=True)
    ]
    runs = torch.ones(len(blueprints), dtype=torch.bool, device=device) if left_open is None else left_open
    return Budget(torch.tensor(reserve, device=device), param_budget * host.params, runs)
