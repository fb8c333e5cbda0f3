"""E growing hosts as one computation: initialise, train an epoch, evaluate configurations, save and restore."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from simic import rng
from simic.data.batches import Dataset
from simic.growth.batch.alignment import Alignments
from simic.growth.batch.arena import MOMENTS, Arena, Block, Rows, named
from simic.growth.batch.forward import Backend, Templates, Weights, gate_name, run_streams, seed_name
from simic.growth.batch.groups import Flags, Integers, Plan, SlotState, alike, evaluation_plan, training_plan
from simic.growth.batch.statistics import SeedNorms, TrainStats, score, train_statistics
from simic.growth.batch.template import Fits, RowLayout, Template, channels_last
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import Blueprint, count_flops
from simic.growth.networks.hosts import HostSpec
from simic.params import HostOptimizer
from simic.rng import Purpose
from simic.transfer import CPU, upload

ALIKE_HOSTS = 128  # of hosts for tables, a part at a time: their features stay in cache too
EVALUATION_POSITIONS = 192  # samples (of sequences: tokens) per pass, so that features stay in cache
SEED_MODULE, GATE_MODULE = 0, 1  # last counter of the initialisation keys

T = TypeVar("T")


@dataclass(frozen=True)
class Answers:
    """Answers of every configuration on every sample; a network with non-finite logits is never correct."""

    correct: Tensor  # [Cfg, E, N]: bool, of sequences the share of right tokens in float32
    loss: Tensor  # [Cfg, E] mean cross-entropy in nats


@dataclass(frozen=True)
class Snapshot:
    """Parameters and optimizer state of all hosts and their seeds at one time (or, merged, at one time per host)."""

    stores: dict[str, Rows]


class Population:
    """E hosts of one kind with their seeds, trained together; ``backend``: auto, vmap or loop.
    ``checked``: another process has tried the blueprints, and is asked what seeds weigh.

    ``learning_rate`` may be changed between epochs. ``group`` hosts run at once, as many as the memory was seen to
    hold; at first all. Seed and gate rows are allocated per slot and blueprint when the first host germinates one.
    """

    def __init__(
        self,
        host: HostSpec,
        blueprints: tuple[Blueprint, ...],
        env_ids: Tensor,
        rng_seed: int,
        optimizer: HostOptimizer,
        device: torch.device | str = "cpu",
        backend: Backend = "auto",
        checked: bool = False,
    ) -> None:
        self.host, self.blueprints, self.rng_seed, self.optimizer = host, blueprints, rng_seed, optimizer
        self.device = torch.device(device)
        self.env_ids = env_ids.to(self.device)
        self.templates = Templates(host, blueprints, checked)
        self.learning_rate = optimizer.learning_rate
        self.group = len(env_ids)
        self.backend: Backend = backend
        if not checked:
            self._seed_params, self._seed_flops, self._gate_params, self._gate_flops = self._counts()
        self._closing = [
            [template.columns(item.closing).to(device) for template, item in zip(kinds, blueprints, strict=True)]
            for kinds in self.templates.seeds
        ]
        self.iteration = -1
        self.tasks = torch.zeros_like(self.env_ids)
        self._stores: dict[str, Rows] = {}
        self._fits = Fits()
        self._alignments: Alignments | None = None

    def __len__(self) -> int:
        return len(self.env_ids)

    def close(self) -> None:
        """Do nothing: no other process has to be ended."""

    # --- structure ---

    def reset(self, iteration: int, tasks: Tensor | None = None, env_ids: Tensor | None = None) -> None:
        """Initialise fresh hosts by hash of (rng_seed, iteration, env id), each for its task of the data ``[E]``
        (default: the first of all); every seed is gone. ``env_ids`` rename the hosts.
        """
        self.iteration = iteration
        self.env_ids = self.env_ids if env_ids is None else env_ids
        self.tasks = torch.zeros_like(self.env_ids) if tasks is None else tasks
        key = partial(rng.key, self.rng_seed, Purpose.HOST_INIT, iteration, self.env_ids, device=self.device)
        rows = [template.draw(key(segment)) for segment, template in enumerate(self.templates.host)]
        self._stores = {}
        self._store("host").start(torch.arange(len(self), device=self.device), torch.cat(rows, 1))

    def germinate(self, slots: Slots, rows: Tensor | Flags, data: Dataset, state: SlotState | None = None) -> None:
        """Initialise the seeds and gates of ``rows [E, K]`` bool by hash of (iteration, env id, slot, nth germination);
        moments and steps are zero. Under MULTIPLY the blueprint's closing parameters start at zero. What a blueprint
        fits to data is fitted to the first samples of the host's task in ``data``, the training split.

        Here as below, ``state`` is what was read of ``slots``, if it was.
        """
        state, chosen = state or SlotState.read(slots), flags_of(rows)
        for slot in np.flatnonzero(chosen.any(0)).tolist():
            for kind in np.unique(state.blueprint[chosen[:, slot], slot]).tolist():
                which = np.flatnonzero(chosen[:, slot] & (state.blueprint[:, slot] == kind))
                self._germinate(slots, slot, kind, upload(which, self.device), data)

    def _germinate(self, slots: Slots, slot: int, kind: int, hosts: Tensor, data: Dataset) -> None:
        key = partial(rng.key, self.rng_seed, Purpose.SEED_INIT, self.iteration, self.env_ids[hosts], slot)
        germination = slots.germinations[hosts, slot]
        template, gate = self.templates.seeds[slot][kind], self.templates.gates[slot]
        param = template.draw(key(germination, SEED_MODULE, device=self.device))
        if template.fits:
            param = template.with_fit(param, self._fits.of(template, data, self.tasks[hosts]))
        closed = (slots.operator[hosts, slot] == Blend.MULTIPLY)[:, None] & self._closing[slot][kind]
        self._store(seed_name(slot, kind)).start(hosts, param.masked_fill(closed, 0.0))
        gate_param = gate.draw(key(germination, GATE_MODULE, device=self.device))
        self._store(gate_name(slot)).start(hosts, gate_param)

    def aligned(self, data: Dataset) -> Tensor:
        """Return the alignment of each blueprint with each host's task in ``data``, the training split, ``[E, P]``; 0
        where seeds read features of the host.
        """
        if not self.host.reads_input:
            return torch.zeros(len(self), len(self.blueprints), device=self.device)
        if self._alignments is None or self._alignments.data is not data:
            self._alignments = Alignments(self.templates.seeds[0], self.blueprints, data, self._fits)
        return self._alignments.of(self.tasks)

    # --- training ---

    def train_epoch(self, slots: Slots, data: Dataset, order: Tensor, state: SlotState | None = None) -> TrainStats:
        """Train in one pass over ``order [E, n, B]`` (rows of the data); update hosts and learning seeds in place."""
        state = state or SlotState.read(slots)
        parts, places = self._in_groups(
            state, lambda hosts: self._train(hosts, state.of(hosts), slots.alpha, data, order)
        )
        stats = TrainStats.joined(parts)
        if places is not None:
            stats = TrainStats(**{name: column[places] for name, column in vars(stats).items()})
        return replace(stats, finite=stats.finite & self._stores["host"].param.isfinite().all(1))

    def _train(self, hosts: Integers, state: SlotState, alpha: Tensor, data: Dataset, order: Tensor) -> TrainStats:
        """Train some hosts for an epoch; nothing is written before its end."""
        chosen = upload(hosts, self.device)
        plan = training_plan(state, alpha[chosen], self.host.isolated)
        blocks = self._blocks(plan, chosen)
        arena = Arena(blocks, self.learning_rate, self.optimizer, self.device)
        leaves = arena.leaves()
        weights = self._weights(blocks, arena.params)
        losses, corrects, norms = [], [], []
        lacking = self._lacking(data, chosen)
        for batch in order[chosen].unbind(1):
            x, y = (part.index_select(0, batch.flatten()).unflatten(0, batch.shape) for part in (data.x, data.y))
            logits = run_streams(self.backend, self.templates, weights, plan, channels_last(x))
            loss, correct = score(logits, y, lacking)
            loss = loss.mean(1)
            # A sum over hosts: each host's gradient is its own loss's.
            norms.append(arena.update(_gradients(loss.sum(), leaves)))
            losses.append(loss.detach())
            corrects.append(correct.float().mean(1))
        arena.scatter()
        per_block = [torch.stack(block) for block in zip(*norms, strict=True)]
        seeds = [
            SeedNorms(int(block.name.split(".")[1]), block.places, norm, block.columns.params)
            for block, norm in zip(blocks, per_block, strict=True)
            if block.name.startswith("seed.")
        ]
        return train_statistics(
            torch.stack(losses),
            torch.stack(corrects),
            per_block[0],
            self.host.params,
            seeds,
            self.host.slots,
            self.optimizer.max_grad_norm,
        )

    def _in_groups(self, state: SlotState, work: Callable[[Integers], T]) -> tuple[list[T], Tensor | None]:
        """Do ``work`` on all hosts, ``group`` at a time; where memory does not suffice, the group is halved for good.
        Small hosts go in parts of ``ALIKE_HOSTS`` with like seeds; then also the place of each host among the results.
        """
        small = self.host.reads_input and self.device == CPU
        hosts = alike(state) if small else np.arange(len(self))
        most = min(ALIKE_HOSTS, self.group) if small else self.group
        done, results = 0, []
        while done < len(self):
            part = hosts[done : done + most]
            try:
                results.append(work(part))
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self.group = most = (len(part) + 1) // 2
                continue
            done += len(part)
        return results, upload(np.argsort(hosts), self.device) if small else None

    def _blocks(self, plan: Plan, everyone: Tensor) -> list[Block]:
        """Return what trains: the hosts, then per slot the groups of seeds and the gates of gated seeds."""
        everybody = torch.arange(len(everyone), device=self.device)
        blocks = [self._block("host", everyone, everybody, np.zeros(len(everyone), dtype=bool))]
        for slot, groups in enumerate(plan.slots):
            if groups is None:
                continue
            for kind, first, last in groups.blueprints:
                places = groups.hosts[first:last]
                blocks.append(self._block(seed_name(slot, kind), everyone, places, groups.frozen[first:last]))
            if gated := groups.gated():
                places = groups.hosts[gated.positions]
                blocks.append(self._block(gate_name(slot), everyone, places, gated.frozen))
        return blocks

    def _block(self, name: str, everyone: Tensor, places: Tensor, frozen: Flags) -> Block:
        decay = self.optimizer.weight_decay if name == "host" else self.optimizer.seed_weight_decay
        return Block(name, self._stores[name], everyone[places], places, frozen, decay, self._columns(name))

    def _weights(self, blocks: list[Block], tensors: list[list[Tensor]]) -> Weights:
        by_name = {block.name: own for block, own in zip(blocks, tensors, strict=True)}
        return Weights(self.templates.of_host(by_name.pop("host")), by_name)

    # --- evaluation ---

    @torch.no_grad()
    def evaluate(self, slots: Slots, data: Dataset, off: Tensor | Flags, state: SlotState | None = None) -> Answers:
        """Evaluate every configuration ``off [Cfg, E, K]`` bool (seeds forced out of the forward; the others at live
        alpha) on all samples, in one pass that shares what configurations have in common.
        """
        state, flags = state or SlotState.read(slots), flags_of(off)
        parts, places = self._in_groups(
            state, lambda hosts: self._evaluate(hosts, state.of(hosts), slots.alpha, data, flags[:, hosts])
        )
        correct, loss = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        return Answers(correct, loss) if places is None else Answers(correct[:, places], loss[:, places])

    def _evaluate(
        self, hosts: Integers, state: SlotState, alpha: Tensor, data: Dataset, off: Flags
    ) -> tuple[Tensor, Tensor]:
        """Return correct answers ``[Cfg, hosts, N]`` and mean loss ``[Cfg, hosts]``."""
        correct, loss = [], []
        chosen = upload(hosts, self.device)
        plan, stream_of = evaluation_plan(state, off, alpha[chosen])
        blocks = self._blocks(plan, chosen)
        weights = self._weights(blocks, [block.gathered() for block in blocks])
        chunk = max(1, EVALUATION_POSITIONS // data.y[0].numel())
        owner, lacking = plan.hosts[-1], self._lacking(data, chosen)
        if owner is not None and lacking is not None:
            lacking = lacking[owner]
        for start in range(0, len(data), chunk):
            x, y = self._samples(data, chosen, slice(start, start + chunk))
            logits = run_streams(self.backend, self.templates, weights, plan, x)
            scored = score(logits, y if owner is None else y[owner], lacking)
            loss.append(scored[0])
            correct.append(scored[1])
        return torch.cat(correct, 1)[stream_of], torch.cat(loss, 1).mean(1)[stream_of]

    def _samples(self, data: Dataset, hosts: Tensor, samples: slice) -> tuple[Tensor, Tensor]:
        """Return samples of the task of each of some hosts: ``x [G, n, …]``, ``y [G, n, …]``."""
        if data.tasks > 1:
            x, y = data.of_tasks(self.tasks[hosts], samples)
            return channels_last(x), y
        x, y = channels_last(data.x[None, samples]), data.y[None, samples]
        return x.expand(len(hosts), *x.shape[1:]), y.expand(len(hosts), *y.shape[1:])

    def _lacking(self, data: Dataset, hosts: Tensor) -> Tensor | None:
        """Return the classes that the hosts' tasks do not have, bool ``[G, classes]``; None where none lacks any."""
        return None if data.lacking is None else data.lacking[self.tasks[hosts]]

    # --- what it weighs ---

    def seed_params(self, slots: Slots) -> Tensor:
        """Return the parameters of each seed, with its gate if it has one ``[E, K]`` int64; 0 without a seed."""
        return self._weigh(slots, self._seed_params, self._gate_params)

    def seed_flops(self, slots: Slots) -> Tensor:
        """Return the FLOPs per sample of each seed, with its gate if it has one ``[E, K]`` int64; 0 without a seed."""
        return self._weigh(slots, self._seed_flops, self._gate_flops)

    def _weigh(self, slots: Slots, seeds: Tensor, gates: Tensor) -> Tensor:
        columns = torch.arange(self.host.slots, device=self.device)
        weight = seeds[columns, slots.blueprint.clamp(min=0)] + gates * (slots.operator == Blend.GATE)
        return weight * in_stages(slots.stage, LIVE_STAGES)

    def _counts(self) -> list[Tensor]:
        """Return the parameters and FLOPs of the blueprints ``[K, P]`` and of the gates ``[K]``."""
        shapes, own = self.host.slot_shapes, self.host.seed_shapes
        seeds = [[[b.params(shape) for b in self.blueprints] for shape in own]]
        seeds.append([[b.flops(shape) for b in self.blueprints] for shape in own])
        gates = [[template.layout.params for template in self.templates.gates]]
        gates.append([count_flops(t.module, shape) for t, shape in zip(self.templates.gates, shapes, strict=True)])
        return [torch.tensor(table, device=self.device) for table in (*seeds, *gates)]

    # --- saving ---

    def snapshot(self) -> Snapshot:
        """Return a copy of all parameters and optimizer state."""
        return Snapshot({name: store.clone() for name, store in self._stores.items()})

    def refresh(self, snapshot: Snapshot, rows: Tensor, slots: Slots) -> None:
        """Update a snapshot in ``rows [E]`` bool: hosts and FOSSILIZED seeds; who restores prunes all others."""
        for name, store in self._stores.items():
            kept = rows
            if name != "host":
                kind, slot, *which = name.split(".")
                kept = rows & (slots.stage[:, int(slot)] == Stage.FOSSILIZED)
                kept = kept if kind == "gate" else kept & (slots.blueprint[:, int(slot)] == int(which[0]))
            if name not in snapshot.stores:
                snapshot.stores[name] = self._new_store(name)
            snapshot.stores[name].copy_where(kept, store)

    def restore(self, snapshot: Snapshot, rows: Tensor) -> None:
        """Put host and seeds of ``rows [E]`` bool back to the snapshot, optimizer state included; leave all others.

        The caller prunes the seeds that are not FOSSILIZED.
        """
        for name, store in snapshot.stores.items():
            self._stores[name].copy_where(rows, store)

    def named_parameters(self, slots: Slots, row: int) -> dict[str, Tensor]:
        """Return copies on the CPU of the parameters of a host and its seeds, named as in ``export.GrownNetwork``."""
        owners: list[tuple[str, Template, Tensor]] = []
        segments = self._stores["host"].param[row].split([template.layout.width for template in self.templates.host])
        for k, (template, flat) in enumerate(zip(self.templates.host, segments, strict=True)):
            owners.append((f"segments.{k}" if k < self.host.slots else "head", template, flat))
        for slot in in_stages(slots.stage[row], LIVE_STAGES).nonzero().flatten().tolist():
            kind = int(slots.blueprint[row, slot])
            seed, gate = self.templates.seeds[slot][kind], self.templates.gates[slot]
            owners.append((f"joints.{slot}.seed", seed, self._stores[seed_name(slot, kind)].param[row]))
            owners.append((f"joints.{slot}.gate", gate, self._stores[gate_name(slot)].param[row]))
        return {
            f"{owner}.{name}": tensor[0].cpu().clone()
            for owner, template, flat in owners
            for name, tensor in zip(template.names, template.layout.unpack(flat[None]), strict=True)
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of everything that mutates."""
        state = {"iteration": torch.tensor(self.iteration), "group": torch.tensor(self.group)}
        return state | {"tasks": self.tasks.clone()} | named(self._stores)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict`` bit for bit; a state of other shapes is a SimicError."""
        self._stores = self._stores_of(state)  # first: where it refuses, nothing has changed
        self.iteration, self.group = int(state["iteration"]), int(state["group"])
        self.tasks = state["tasks"].to(self.device).clone()

    def _stores_of(self, state: dict[str, Tensor]) -> dict[str, Rows]:
        names = dict.fromkeys(key.partition("/")[0] for key in state if "/" in key)
        return {name: self._new_store(name).fill(name, state) for name in names}

    def _columns(self, name: str) -> RowLayout:
        """Return the layout of a row of the store of this name."""
        kind, *place = name.split(".")
        if kind == "seed":
            return self.templates.seeds[int(place[0])][int(place[1])].layout
        if kind == "gate":
            return self.templates.gates[int(place[0])].layout
        layouts = [template.layout for template in self.templates.host]
        return RowLayout(
            [shape for layout in layouts for shape in layout.shapes],
            [trains for layout in layouts for trains in layout.trained],
        )

    def _store(self, name: str) -> Rows:
        """Return the rows of this name, allocated at first use."""
        if name not in self._stores:
            self._stores[name] = self._new_store(name)
        return self._stores[name]

    def _new_store(self, name: str) -> Rows:
        return Rows.zeros(len(self), self._columns(name).width, MOMENTS[self.optimizer.name], self.device)


def _gradients(loss: Tensor, leaves: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the gradients of the leaves of each block."""
    flat = [tensor for tensors in leaves for tensor in tensors]
    grads = iter(torch.autograd.grad(loss, flat, allow_unused=True, materialize_grads=True))
    return [[next(grads) for _ in tensors] for tensors in leaves]


def flags_of(values: Tensor | Flags) -> Flags:
    """Return flags on the CPU."""
    return values.cpu().numpy() if isinstance(values, Tensor) else values
