"""The forward pass of a population: host segments and grafted seeds of all streams, batched or one by one.

Both ways take the same weights and plan. One by one is the obvious way, the oracle of the batched one; a host's results
are then bit-equal whatever the structure of the others.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from simic.errors import SimicError
from simic.growth.batch.groups import Blended, Plan, SlotGroups
from simic.growth.batch.template import Template, by_row
from simic.growth.life.vocabulary import Blend
from simic.growth.networks.blueprints import Blueprint
from simic.growth.networks.grafting import StraightThrough, blend, blend_gradients
from simic.growth.networks.hosts import HostSpec
from simic.transfer import CPU

Backend = Literal["auto", "vmap", "loop"]

MAP_DIMS = 3  # C, H, W
# Entries of a host's largest feature map in a minibatch from which hosts run faster one after the other, measured on
# two CPU cores (docs/history/experiments.md). It does not depend on the number of hosts.
APART_FROM = 70_000


class Templates:
    """The modules of a population, built once: segments and head of the host, blueprints and gate of each slot.
    Unless ``checked``, each blueprint is tried first.
    """

    def __init__(
        self,
        host: HostSpec,
        blueprints: tuple[Blueprint, ...],
        checked: bool = False,
    ) -> None:
        template = partial(Template, features_last=host.features_last)
        segments = [template(build, f"host segment {k}") for k, build in enumerate(host.segments)]
        self.host = (*segments, template(host.head, "host head", borrowed=tuple(host.tied)))
        self.seeds = tuple(
            tuple(
                template(partial(item.build, shape), f"blueprint {item.name} at slot {k}")
                for item in blueprints
            )
            for k, shape in enumerate(host.seed_shapes)
        )
        self.gates = [
            template(partial(host.gate, shape), f"gate at slot {k}")
            for k, shape in enumerate(host.slot_shapes)
        ]
        if not checked:
            _check(host, blueprints, self.seeds)
        self.reads_input = host.reads_input
        # Entries of a sample's largest feature map at a slot; 0 where features are not maps.
        self.map_entries = max(
            (math.prod(shape) for shape in host.slot_shapes if len(shape) == MAP_DIMS), default=0
        )
        # Which parameters of the first segment the head borrows.
        self._lent_parameters = [segments[0].names.index(name) for name in host.tied.values()]

    def of_host(self, tensors: list[Tensor]) -> list[list[Tensor]]:
        """Split the tensors of a row of the host into those of each segment and the head."""
        remaining = iter(tensors)
        parts = [[next(remaining) for _ in template.names] for template in self.host]
        parts[-1] += [parts[0][index] for index in self._lent_parameters]
        return parts


def _check(
    host: HostSpec,
    blueprints: tuple[Blueprint, ...],
    seeds: tuple[tuple[Template, ...], ...],
) -> None:
    """Raise SimicError unless every seed keeps its features' shape and has something to learn."""
    for shape, templates in zip(host.seed_shapes, seeds, strict=True):
        for item, template in zip(blueprints, templates, strict=True):
            if item.reads_input is not host.reads_input:
                source = "the sample" if host.reads_input else "features"
                raise SimicError(
                    f"{template.name}: a seed of family {host.family} must read {source}"
                )
            if template.layout.params == 0:
                raise SimicError(
                    f"{template.name}: has no parameters, so nothing of it could learn"
                )
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


def run_streams(
    backend: Backend,
    templates: Templates,
    weights: Weights,
    plan: Plan,
    x: Tensor,
) -> Tensor:
    """Run hosts and seeds of all streams.

    Args:
        backend: ``vmap`` runs all streams together, ``loop`` each by itself, ``auto`` as is faster.
        templates: Their modules.
        weights: Their parameters.
        plan: Which seed runs in which stream.
        x: Samples of each host, ``[E, B, …, C]``.

    Returns:
        Logits ``[streams, B, classes]``.
    """
    # Measured on two CPU cores: hosts with large maps run faster one after the other.
    if backend == "auto":
        is_large = x.shape[1] * templates.map_entries >= APART_FROM
        backend = "loop" if x.device == CPU and is_large else "vmap"
    run = _run_one_by_one if backend == "loop" else _run_batched
    return run(templates, weights, plan, x)


def _run_batched(templates: Templates, weights: Weights, plan: Plan, x: Tensor) -> Tensor:
    """Run all streams at once, one group per slot and blueprint."""
    h = x
    for k, (template, tensors, hosts) in enumerate(
        zip(templates.host, weights.host, plan.hosts, strict=True)
    ):
        # A segment of the host; a host's weights serve all its streams.
        if hosts is not None:
            tensors = [tensor.index_select(0, hosts) for tensor in tensors]
        h = template.run(tensors, h)
        if k == len(plan.slots):
            break

        # The slot behind it: streams split, and seeds join theirs.
        parents = plan.parents[k]
        groups = plan.slots[k]
        if parents is not None:
            h = h.index_select(0, parents)
        if groups is not None:
            h = _graft(templates, weights, groups, k, h, x)
    return h


def _graft(
    templates: Templates,
    weights: Weights,
    groups: SlotGroups,
    slot: int,
    h: Tensor,
    samples: Tensor,
) -> Tensor:
    """Run the seeds of a slot and join them to the features of their streams."""
    # A seed that reads the sample adds to the features; where all add, no copy of the features is needed.
    if templates.reads_input:
        samples = samples.index_select(0, groups.hosts)
        if groups.added is not None:
            output = _run_seeds(
                templates,
                weights,
                groups,
                slot,
                samples,
            )
            return h.index_add(0, groups.streams, output * groups.added.view(-1, 1, 1))
        h, x = fork(h, groups.streams, groups.open_positions)
        s = x + _run_seeds(templates, weights, groups, slot, samples)
    else:
        h, x = fork(h, groups.streams, groups.open_positions)
        s = _run_seeds(templates, weights, groups, slot, x)
    # The gate looks at what the seed read, so isolation holds for it too.
    gate = None
    if gated := groups.gated():
        gate = templates.gates[slot].run(
            weights.grafted[gate_name(slot)], x.index_select(0, gated.positions)
        )
    joined: Tensor = _Join.apply(
        h,
        s,
        x,
        gate,
        groups,
    )
    return joined


def _run_seeds(
    templates: Templates,
    weights: Weights,
    groups: SlotGroups,
    slot: int,
    x: Tensor,
) -> Tensor:
    """Run the seeds of a slot on their inputs ``[R, B, …]``, blueprint by blueprint."""
    parts = x.split([last - first for _, first, last in groups.blueprints])
    outputs = [
        templates.seeds[slot][kind].run(weights.grafted[seed_name(slot, kind)], part)
        for (kind, _, _), part in zip(groups.blueprints, parts, strict=True)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _run_one_by_one(templates: Templates, weights: Weights, plan: Plan, x: Tensor) -> Tensor:
    """Run one stream after the other, each on contiguous tensors of its own."""
    features = list(x.contiguous().split(1))
    for k, (template, tensors, hosts) in enumerate(
        zip(templates.host, weights.host, plan.hosts, strict=True)
    ):
        # A segment of the host.
        rows = by_row(tensors, len(features))
        owners = range(len(features)) if hosts is None else hosts.tolist()
        features = [
            template.run_one(rows[host], h) for host, h in zip(owners, features, strict=True)
        ]
        if k == len(plan.slots):
            break

        # The slot behind it.
        parents = plan.parents[k]
        groups = plan.slots[k]
        if parents is not None:
            features = [features[parent] for parent in parents.tolist()]
        if groups is not None:
            _graft_one_by_one(templates, weights, groups, k, features, x)
    return torch.cat(features)


def _graft_one_by_one(
    templates: Templates,
    weights: Weights,
    groups: SlotGroups,
    slot: int,
    features: list[Tensor],
    samples: Tensor,
) -> None:
    """Replace the features of each stream that has a seed."""
    streams = groups.streams.tolist()
    hosts = groups.hosts.tolist()
    open_positions = set(groups.open_positions.tolist())
    blended = {
        position: (item, row)
        for item in groups.blended
        for row, position in enumerate(item.positions.tolist())
    }
    gates = by_row(weights.grafted.get(gate_name(slot), []), 0)
    for kind, first, last in groups.blueprints:
        template = templates.seeds[slot][kind]
        seeds = by_row(weights.grafted[seed_name(slot, kind)], last - first)
        for position, seed in enumerate(seeds, start=first):
            # What the seed makes of the features, or of its host's samples.
            h = features[streams[position]]
            x = h if position in open_positions else h.detach()
            if templates.reads_input:
                s = x + template.run_one(seed, samples[hosts[position], None])
            else:
                s = template.run_one(seed, x)

            # How it joins them: in TRAINING by its gradient alone, later by its operator.
            if position not in blended:
                h = StraightThrough.apply(h, s)
            else:
                item, row = blended[position]
                gate = (
                    templates.gates[slot].run_one(gates[row], x)
                    if item.operator is Blend.GATE
                    else None
                )
                h = blend(
                    item.operator,
                    h,
                    s,
                    x,
                    item.alpha[row : row + 1],
                    gate,
                )
            features[streams[position]] = h


# --- where the seeds of a slot leave the stacked features and join them again ----------------------------------------

# Gradients are written out: composed of single operations, every blueprint and operator would cost a full-sized array
# of zeros, a copy and a sum in the backward pass. The formulas are those of networks/grafting.py; rows are chosen by
# index, so nothing of a seed that does not act reaches its host.


def fork(h: Tensor, rows: Tensor, open_positions: Tensor) -> tuple[Tensor, Tensor]:
    """Copy the features that seeds read.

    Args:
        h: Features of all streams.
        rows: Streams of the seeds ``[R]``, all different.
        open_positions: Which of the rows send a gradient back.

    Returns:
        The features as they are, and those of the rows, ``[R, B, …, C]``.
    """
    # Isolated seeds read detached features: no gradient of theirs reaches the host.
    if not len(open_positions):
        return h, h.detach().index_select(0, rows)
    forked: tuple[Tensor, Tensor] = _Fork.apply(h, rows, open_positions)
    return forked


class _Fork(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, rows: Tensor, open_positions: Tensor) -> tuple[Tensor, Tensor]:
        ctx.rows = rows
        ctx.open_positions = open_positions
        return h, h.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad_h, grad_x = grads
        rows = ctx.rows
        if len(ctx.open_positions) < len(rows):
            rows = rows[ctx.open_positions]
            grad_x = grad_x.index_select(0, ctx.open_positions)
        return grad_h.index_add(0, rows, grad_x), None, None


class _Join(Function):
    """The features ``[streams, B, …, C]`` after all seeds ``s [R, B, …, C]`` of a slot, which read ``x``, have joined
    by their operators; ``gate`` of those that have one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        s: Tensor,
        x: Tensor,
        gate: Tensor | None,
        groups: SlotGroups,
    ) -> Tensor:
        ctx.groups = groups
        ctx.save_for_backward(h, s, x, gate)
        if not groups.blended:
            return h
        # By index: rows without a seed, or with one that does not act, keep every bit.
        joined = h.clone()
        for item in groups.blended:
            operands = _operands(
                h,
                s,
                x,
                item,
            )
            gated = gate if item.operator is Blend.GATE else None
            joined.index_copy_(0, item.streams, blend(item.operator, *operands, item.alpha, gated))
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, s, x, gate = ctx.saved_tensors
        groups: SlotGroups = ctx.groups
        # The backward of a mean over pixels has the strides of channels first: copied once, not in each use.
        grad = grads[0].contiguous()
        # Without a blended seed: the host's gradient passes, and seeds in TRAINING get the same.
        grad_h = grad.clone() if groups.blended else grad
        grad_s = grad.index_select(0, groups.streams)
        grad_x = None
        grad_gate = None
        for item in groups.blended:
            # Rows of a blended seed are replaced by what its operator hands back.
            gated = gate if item.operator is Blend.GATE else None
            outgoing = grad_s.index_select(0, item.positions)
            h_part, s_part, x_part, gate_part = blend_gradients(
                item.operator,
                outgoing,
                *_operands(h, s, x, item),
                item.alpha,
                gated,
            )
            grad_h.index_copy_(0, item.streams, h_part)
            grad_s.index_copy_(0, item.positions, s_part)
            if x_part is not None:
                grad_x = x.new_zeros(x.shape).index_copy_(0, item.positions, x_part)
            if gate_part is not None:
                grad_gate = gate_part
        return grad_h, grad_s, grad_x, grad_gate, None


def _operands(h: Tensor, s: Tensor, x: Tensor, item: Blended) -> tuple[Tensor, Tensor, Tensor]:
    """Select the rows of the seeds that join by one operator: host features, seed features, and the seeds' inputs."""
    return (
        h.index_select(0, item.streams),
        s.index_select(0, item.positions),
        x.index_select(0, item.positions),
    )
