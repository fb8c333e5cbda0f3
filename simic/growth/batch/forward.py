"""The forward pass of a population: host segments and grafted seeds of all streams, batched or one by one.

Both ways take the same weights and plan. ``loop`` runs each stream on its own, in the obvious way; it is the oracle of
the batched one, and gives bit-equal results for a host whatever the structure of the others.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from simic.errors import SimicError
from simic.growth.batch.groups import Plan, SlotGroups
from simic.growth.batch.template import Template, by_row
from simic.growth.life.vocabulary import Blend
from simic.growth.networks.blueprints import Blueprint
from simic.growth.networks.grafting import StraightThrough, blend, blend_gradients
from simic.growth.networks.hosts import HostSpec
from simic.transfer import CPU

Backend = Literal["auto", "vmap", "loop"]

MAP_DIMS = 3  # C, H, W
# Entries of a host's largest feature map in a minibatch from which hosts run faster one after the other, measured on
# two CPU cores (docs/history/experiments.md). It looks at a host alone, so it decides alike for any number of hosts.
APART_FROM = 70_000


class Templates:
    """The modules of a population, built once: segments and head of the host, blueprints and gate of each slot.
    Blueprints that are not ``checked`` are tried first.
    """

    def __init__(self, host: HostSpec, blueprints: tuple[Blueprint, ...], checked: bool = False) -> None:
        template = partial(Template, features_last=host.features_last)
        segments = [template(build, f"host segment {k}") for k, build in enumerate(host.segments)]
        self.host = (*segments, template(host.head, "host head", borrowed=tuple(host.tied)))
        self.seeds = tuple(
            tuple(template(partial(item.build, shape), f"blueprint {item.name} at slot {k}") for item in blueprints)
            for k, shape in enumerate(host.seed_shapes)
        )
        self.gates = [
            template(partial(host.gate, size), f"gate at slot {k}") for k, size in enumerate(host.slot_shapes)
        ]
        if not checked:
            _check(host, blueprints, self.seeds)
        # Which parameters of the first segment the head borrows.
        self._lenders = [segments[0].names.index(name) for name in host.tied.values()]
        # Of a sample's largest feature map at a slot; 0 where features are not maps.
        self.map_entries = max((math.prod(shape) for shape in host.slot_shapes if len(shape) == MAP_DIMS), default=0)
        self.reads_input = host.reads_input

    def of_host(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """Return the tensors of a row of the host as those of each segment and the head."""
        rest = iter(tensors)
        parts = [[next(rest) for _ in template.names] for template in self.host]
        parts[-1] += [parts[0][index] for index in self._lenders]
        return parts


def _check(host: HostSpec, blueprints: tuple[Blueprint, ...], seeds: tuple[tuple[Template, ...], ...]) -> None:
    """Raise SimicError unless every seed keeps its features' shape and has something to learn."""
    for shape, kinds in zip(host.seed_shapes, seeds, strict=True):
        for item, template in zip(blueprints, kinds, strict=True):
            if item.reads_input is not host.reads_input:
                what = "the sample" if host.reads_input else "features"
                raise SimicError(f"{template.name}: a seed of family {host.family} must read {what}")
            if template.layout.params == 0:
                raise SimicError(f"{template.name}: has no parameters, so nothing of it could learn")
            item.check(template.name, shape)


@dataclass(frozen=True)
class Weights:
    """Parameter tensors with a leading row: of hosts per segment; by ``seed_name`` of seeds in the plan's order, by
    ``gate_name`` of gates for the gated seeds alone.
    """

    host: list[list[Tensor]]
    grafted: dict[str, list[Tensor]]


def seed_name(slot: int, kind: int) -> str:
    return f"seed.{slot}.{kind}"


def gate_name(slot: int) -> str:
    return f"gate.{slot}"


def run_streams(backend: Backend, templates: Templates, weights: Weights, plan: Plan, x: Tensor) -> Tensor:
    """Return logits ``[streams, B, classes]`` of ``x [E, B, …, C]``: ``vmap`` runs all streams together, ``loop`` each
    by itself, ``auto`` as is faster.
    """
    apart = runs_apart(backend, x.shape[1] * templates.map_entries, x.device)
    return (loop if apart else batched)(templates, weights, plan, x)


def runs_apart(backend: Backend, entries: int, device: torch.device) -> bool:
    """Return whether hosts whose largest map in a minibatch has so many entries run one after the other."""
    return backend == "loop" or (backend == "auto" and device == CPU and entries >= APART_FROM)


def batched(templates: Templates, weights: Weights, plan: Plan, x: Tensor) -> Tensor:
    """Run all streams at once, one group per slot and blueprint."""
    h = x
    for k, (template, stacked, hosts) in enumerate(zip(templates.host, weights.host, plan.hosts, strict=True)):
        if hosts is not None:
            stacked = [tensor.index_select(0, hosts) for tensor in stacked]
        h = template.run(stacked, h)
        if k == len(plan.slots):
            break
        parents, groups = plan.parents[k], plan.slots[k]
        if parents is not None:
            h = h.index_select(0, parents)
        if groups is not None:
            h = _graft(templates, weights, groups, k, h, x)
    return h


def _graft(templates: Templates, weights: Weights, groups: SlotGroups, slot: int, h: Tensor, samples: Tensor) -> Tensor:
    """Return the features after a slot: every seed there has read its stream, or its host's samples, and joined it."""
    if templates.reads_input:
        seen = samples.index_select(0, groups.hosts)
        if groups.added is not None:
            grown = _grown(templates, weights, groups, slot, seen)
            return h.index_add(0, groups.streams, grown * groups.added.view(-1, 1, 1))
        h, x = fork(h, groups.streams, groups.open)
        s = x + _grown(templates, weights, groups, slot, seen)
    else:
        h, x = fork(h, groups.streams, groups.open)
        s = _grown(templates, weights, groups, slot, x)
    gated, gate = groups.gated(), None
    if gated:
        gate = templates.gates[slot].run(weights.grafted[gate_name(slot)], x.index_select(0, gated.positions))
    joined: Tensor = _Join.apply(h, s, x, gate, groups)
    return joined


def _grown(templates: Templates, weights: Weights, groups: SlotGroups, slot: int, x: Tensor) -> Tensor:
    """Run the seeds of a slot on what they see, ``[R, B, …]``."""
    parts = x.split([last - first for _, first, last in groups.blueprints])
    outputs = [
        templates.seeds[slot][kind].run(weights.grafted[seed_name(slot, kind)], part)
        for (kind, _, _), part in zip(groups.blueprints, parts, strict=True)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def loop(templates: Templates, weights: Weights, plan: Plan, x: Tensor) -> Tensor:
    """Run one stream after the other, each on contiguous tensors of its own."""
    features = list(x.contiguous().split(1))
    for k, (template, stacked, hosts) in enumerate(zip(templates.host, weights.host, plan.hosts, strict=True)):
        rows = by_row(stacked, len(features))
        owners = range(len(features)) if hosts is None else hosts.tolist()
        features = [template.run_one(rows[host], h) for host, h in zip(owners, features, strict=True)]
        if k == len(plan.slots):
            break
        parents, groups = plan.parents[k], plan.slots[k]
        if parents is not None:
            features = [features[parent] for parent in parents.tolist()]
        if groups is not None:
            _graft_one_by_one(templates, weights, groups, k, features, x)
    return torch.cat(features)


def _graft_one_by_one(
    templates: Templates, weights: Weights, groups: SlotGroups, slot: int, features: list[Tensor], samples: Tensor
) -> None:
    """Replace the features of each stream that has a seed."""
    streams, hosts, open_positions = groups.streams.tolist(), groups.hosts.tolist(), set(groups.open.tolist())
    how = {position: (item, row) for item in groups.blended for row, position in enumerate(item.positions.tolist())}
    gates = by_row(weights.grafted.get(gate_name(slot), []), 0)
    for kind, first, last in groups.blueprints:
        seeds = by_row(weights.grafted[seed_name(slot, kind)], last - first)
        for position in range(first, last):
            h = features[streams[position]]
            x = h if position in open_positions else h.detach()
            if templates.reads_input:
                s = x + templates.seeds[slot][kind].run_one(seeds[position - first], samples[hosts[position], None])
            else:
                s = templates.seeds[slot][kind].run_one(seeds[position - first], x)
            if position not in how:
                h = StraightThrough.apply(h, s)
            else:
                item, row = how[position]
                gate = None
                if item.operator is Blend.GATE:
                    gate = templates.gates[slot].run_one(gates[row], x)
                h = blend(item.operator, h, s, x, item.alpha[row : row + 1], gate)
            features[streams[position]] = h


# --- where the seeds of a slot leave the stacked features and join them again ----------------------------------------

# Gradients are written out: composed of single operations, every blueprint and operator would cost a full-sized array
# of zeros, a copy and a sum in the backward pass. The formulas are those of networks/grafting.py; rows are chosen by
# index, so nothing of a seed that does not act reaches its host.


def fork(h: Tensor, rows: Tensor, open_positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features as they are, and what the seeds of ``rows [R]`` see, ``[R, B, …, C]``; rows differ, and only
    ``open_positions`` send a gradient back.
    """
    if not len(open_positions):
        return h, h.detach().index_select(0, rows)
    forked: tuple[Tensor, Tensor] = _Fork.apply(h, rows, open_positions)
    return forked


class _Fork(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, rows: Tensor, open_positions: Tensor) -> tuple[Tensor, Tensor]:
        ctx.rows, ctx.open = rows, open_positions
        return h, h.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (whole, part), rows = grads, ctx.rows
        if len(ctx.open) < len(rows):
            rows, part = rows[ctx.open], part.index_select(0, ctx.open)
        return whole.index_add(0, rows, part), None, None


class _Join(Function):
    """The features ``[streams, B, …, C]`` after all seeds ``s [R, B, …, C]`` of a slot, which saw ``x``, have joined by
    their operators; ``gate`` of those that have one.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, s: Tensor, x: Tensor, gate: Tensor | None, groups: SlotGroups) -> Tensor:
        ctx.groups = groups
        ctx.save_for_backward(h, s, x, gate)
        if not groups.blended:
            return h
        joined = h.clone()
        for item in groups.blended:
            own, grown, seen = _taken(h, s, x, item.streams, item.positions)
            gated = gate if item.operator is Blend.GATE else None
            joined.index_copy_(0, item.streams, blend(item.operator, own, grown, seen, item.alpha, gated))
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, s, x, gate = ctx.saved_tensors
        grad = grads[0].contiguous()  # a mean over pixels hands back channels first: strided copies from here on
        grad_h, grad_x, grad_gate = grad, None, None
        grad_s = grad.index_select(0, ctx.groups.streams)  # of a seed in TRAINING it is the host's own
        if ctx.groups.blended:
            grad_h = grad.clone()
        for item in ctx.groups.blended:
            own, grown, seen = _taken(h, s, x, item.streams, item.positions)
            gated = gate if item.operator is Blend.GATE else None
            sent = grad_s.index_select(0, item.positions)
            of_h, of_s, of_x, of_gate = blend_gradients(item.operator, sent, own, grown, seen, item.alpha, gated)
            grad_h.index_copy_(0, item.streams, of_h)
            grad_s.index_copy_(0, item.positions, of_s)
            if of_x is not None:
                grad_x = x.new_zeros(x.shape).index_copy_(0, item.positions, of_x)
            grad_gate = of_gate if of_gate is not None else grad_gate
        return grad_h, grad_s, grad_x, grad_gate, None


def _taken(h: Tensor, s: Tensor, x: Tensor, streams: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of the host's features, of the seeds' and of what these saw."""
    return h.index_select(0, streams), s.index_select(0, positions), x.index_select(0, positions)
