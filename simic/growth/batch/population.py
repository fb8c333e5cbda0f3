"""E growing hosts as one computation: initialise, train an epoch, evaluate configurations, roll back."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from simic import rng
from simic.data.batches import Dataset
from simic.growth.batch.alignment import Alignments
from simic.growth.batch.arena import MOMENTS, Arena, Block, Rows
from simic.growth.batch.forward import (
    Backend,
    Templates,
    Weights,
    gate_name,
    run_streams,
    seed_name,
)
from simic.growth.batch.groups import (
    Flags,
    Integers,
    Plan,
    SlotState,
    evaluation_plan,
    training_plan,
)
from simic.growth.batch.statistics import SeedNorms, TrainStats, score, train_statistics
from simic.growth.batch.template import Fits, RowLayout, Template, channels_last
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import Blueprint, built, count_flops
from simic.growth.networks.hosts import HostSpec
from simic.params import HostOptimizer
from simic.rng import Purpose
from simic.threads import OwnOfThread, share
from simic.transfer import CPU, upload

if TYPE_CHECKING:
    from simic.growth.batch.compiled import CompiledHosts

# Samples (of sequences: tokens) of a pass, so that features stay in cache.
EVALUATION_POSITIONS = 192
# Last counter of the initialisation keys.
SEED_MODULE = 0
GATE_MODULE = 1

T = TypeVar("T")


@dataclass(frozen=True)
class EpochResult:
    """What an epoch measured by minibatch: losses and shares of right answers ``[n, G]``, and norms by block."""

    losses: Tensor
    accuracies: Tensor
    norms: list[Tensor]


@dataclass(frozen=True)
class Answers:
    """Answers of every configuration on every sample; a network with non-finite logits is never correct."""

    correct: Tensor  # [Cfg, E, N]: bool, of sequences the share of right tokens in float32
    loss: Tensor  # [Cfg, E] mean cross-entropy in nats


class Population:
    """E hosts of one kind with their seeds, trained together.

    ``learning_rate`` may be changed between epochs. ``group`` hosts run together, at first all: on a CPU threads share
    the groups, elsewhere a group is as large as the memory was seen to hold. Seed and gate rows are allocated per slot
    and blueprint when the first host germinates one.

    Args:
        host: Their kind.
        blueprints: Kinds of seeds.
        env_ids: Global numbers of the hosts, int64 ``[E]``.
        rng_seed: Keys first parameters.
        optimizer: How hosts and seeds train.
        device: Where they are.
        backend: ``auto``, ``vmap`` or ``loop``.
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
    ) -> None:
        self.host = host
        self.blueprints = blueprints
        self.rng_seed = rng_seed
        self.optimizer = optimizer
        self.device = torch.device(device)
        self.env_ids = env_ids.to(self.device)
        self.templates = Templates(host, blueprints)
        self.learning_rate = optimizer.learning_rate
        self.group = len(env_ids)
        self.backend: Backend = backend
        self._seed_params, self._seed_flops, self._gate_params, self._gate_flops = self._counts()
        # Which parameters start at zero under MULTIPLY, by slot and blueprint.
        self._closing = [
            [
                template.columns(item.closing).to(device)
                for template, item in zip(templates, blueprints, strict=True)
            ]
            for templates in self.templates.seeds
        ]
        self.iteration = -1
        self.tasks = torch.zeros_like(self.env_ids)
        self._stores: dict[str, Rows] = {}
        self._snapshot: dict[str, Rows] = {}
        self._fits = Fits()
        self._alignments: Alignments | None = None
        # Weights are plugged into these, so two threads must not run the same.
        self._runnable = OwnOfThread(
            partial(
                Templates,
                host,
                blueprints,
                checked=True,
            ),
            self.templates,
        )
        self._compiled: CompiledHosts | None = None
        # Loops are of hosts for tables, on a CPU, under AdamW.
        on_cpu = self.device == CPU and backend == "auto"
        if on_cpu and host.family == "tables" and optimizer.name == "adamw":
            # numba takes half a second to import.
            from simic.growth.batch import compiled

            self._compiled = compiled.CompiledHosts(host, self.templates, optimizer)

    def __len__(self) -> int:
        return len(self.env_ids)

    # --- structure ---

    def reset(
        self,
        iteration: int,
        tasks: Tensor | None = None,
        env_ids: Tensor | None = None,
    ) -> None:
        """Initialise fresh hosts by hash of (rng_seed, iteration, env id); every seed is gone.

        Args:
            iteration: Names the episode.
            tasks: Each host's task of the data, ``[E]``; None: the first.
            env_ids: Other numbers of the hosts, ``[E]``.
        """
        self.iteration = iteration
        self.env_ids = self.env_ids if env_ids is None else env_ids
        self.tasks = torch.zeros_like(self.env_ids) if tasks is None else tasks
        # Each host has a stream of its own, so it is the same in any company.
        key = partial(
            rng.key, self.rng_seed, Purpose.HOST_INIT, iteration, self.env_ids, device=self.device
        )
        rows = [template.draw(key(segment)) for segment, template in enumerate(self.templates.host)]
        self._stores = {}
        hosts = torch.arange(len(self), device=self.device)
        self._store("host").start(hosts, torch.cat(rows, 1))

    def germinate(
        self,
        slots: Slots,
        rows: Tensor | Flags,
        data: Dataset,
        state: SlotState | None = None,
    ) -> None:
        """Initialise seeds and gates by hash of (iteration, env id, slot, nth germination).

        Moments and steps are zero. Under MULTIPLY the blueprint's closing parameters start at zero.

        Args:
            slots: The slots, in which the seeds already stand.
            rows: Where they are new, bool ``[E, K]``.
            data: The training split: what a blueprint fits is fitted to the first samples of the host's task.
            state: What was read of ``slots``, if it was.
        """
        state = state or SlotState.read(slots)
        is_new = flags_of(rows)
        for slot in np.flatnonzero(is_new.any(0)).tolist():
            hosts = np.flatnonzero(is_new[:, slot])
            self._germinate(
                slots,
                slot,
                hosts,
                state.blueprint[hosts, slot],
                data,
            )

    def _germinate(
        self, slots: Slots, slot: int, hosts: Integers, kinds: Integers, data: Dataset
    ) -> None:
        # Where and when a seed germinates names its stream, so others never change it.
        rows = upload(hosts, self.device)
        germination = slots.germinations[rows, slot]
        first = self.rng_seed, Purpose.SEED_INIT, self.iteration, self.env_ids[rows], slot
        key = partial(rng.key, *first, germination, device=self.device)
        streams = key(SEED_MODULE)
        # Every seed has a gate, since SET_ALPHA_TARGET may make GATE its operator later.
        gates = self.templates.gates[slot].draw(key(GATE_MODULE))
        self._store(gate_name(slot)).start(rows, gates)
        multiplies = slots.operator[rows, slot] == Blend.MULTIPLY

        def start(kind: int) -> None:
            places = upload(np.flatnonzero(kinds == kind), self.device)
            template = self.templates.seeds[slot][kind]
            param = template.draw(streams[places])
            if template.fits:
                tasks = self.tasks[rows[places]]
                param = template.with_fit(param, self._fits.of(template, data, tasks))
            # h (1 + α tanh(s − x)) is h at germination only where the seed is the identity.
            closed = multiplies[places, None] & self._closing[slot][kind]
            store = self._store(seed_name(slot, kind))
            store.start(rows[places], param.masked_fill_(closed, 0.0))

        # Seeds of one kind are drawn, and fitted, together.
        share(start, np.unique(kinds).tolist())

    def aligned(self, data: Dataset) -> Tensor:
        """Measure the alignment of each blueprint with each host's task in ``data``, the training split, ``[E, P]``; 0
        where seeds read features of the host.
        """
        if not self.host.reads_input:
            return torch.zeros(len(self), len(self.blueprints), device=self.device)
        if self._alignments is None or self._alignments.data is not data:
            self._alignments = Alignments(
                self._runnable, self.blueprints, data.of("train"), self._fits
            )
        return self._alignments.of(self.tasks)

    # --- training ---

    def train_epoch(
        self,
        slots: Slots,
        data: Dataset,
        order: Tensor,
        state: SlotState | None = None,
    ) -> TrainStats:
        """Train hosts and learning seeds for an epoch, in place.

        Args:
            slots: The slots.
            data: The training split.
            order: Rows of the data, int64 ``[E, batches, batch size]``.
            state: What was read of ``slots``, if it was.
        """
        state = state or SlotState.read(slots)
        train = data.of("train")
        fast, others = self._shared_out(state, state.learning)
        parts = self._in_groups(
            others,
            lambda hosts: self._train(
                hosts,
                state.of(hosts),
                slots.alpha,
                train,
                order,
            ),
        )
        if len(fast):
            assert self._compiled is not None
            parts.append(
                self._compiled.train(
                    hosts=fast,
                    state=state,
                    alpha=slots.alpha,
                    data=train,
                    tasks=self.tasks,
                    order=order,
                    stores=self._stores,
                    learning_rate=self.learning_rate,
                )
            )
        # In the order of the hosts.
        places = upload(np.argsort(np.concatenate((others, fast))), self.device)
        stats = TrainStats(
            **{name: column[places] for name, column in vars(TrainStats.joined(parts)).items()}
        )
        return replace(stats, finite=stats.finite & self._stores["host"].param.isfinite().all(1))

    def _train(
        self,
        hosts: Integers,
        state: SlotState,
        alpha: Tensor,
        data: Dataset,
        order: Tensor,
    ) -> TrainStats:
        """Train some hosts for an epoch; nothing is written before its end."""
        # What trains, gathered.
        rows = upload(hosts, self.device)
        plan = training_plan(state, alpha[rows], self.host.isolated)
        blocks = self._blocks(plan, rows)
        arena = Arena(
            blocks,
            self.learning_rate,
            self.optimizer,
            self.device,
        )
        lacking = self._lacking(data, rows)
        order = order.index_select(0, rows)
        result = self._train_batches(
            arena,
            plan,
            data,
            order,
            lacking,
        )
        arena.scatter()

        # Statistics of the epoch.
        seed_norms = [
            SeedNorms(
                int(block.name.split(".")[1]),
                block.places,
                norm,
                block.columns.params,
            )
            for block, norm in zip(blocks, result.norms, strict=True)
            if block.name.startswith("seed.")
        ]
        return train_statistics(
            result.losses,
            result.accuracies,
            result.norms[0],
            self.host.params,
            seed_norms,
            self.host.slots,
            self.optimizer.max_grad_norm,
        )

    def _train_batches(
        self,
        arena: Arena,
        plan: Plan,
        data: Dataset,
        order: Tensor,
        lacking: Tensor | None,
    ) -> EpochResult:
        """Make a step for each minibatch."""
        # Gradients are recorded of what trains, in its buffers.
        leaves = [
            [tensor.requires_grad_() for tensor in tensors.trained] for tensors in arena.blocks
        ]
        weights = self._weights(
            [tensors.block for tensors in arena.blocks],
            [tensors.params for tensors in arena.blocks],
        )
        losses: list[Tensor] = []
        corrects: list[Tensor] = []
        norms: list[list[Tensor]] = []
        for batch in order.unbind(1):
            x = data.x.index_select(0, batch.flatten()).unflatten(0, batch.shape)
            y = data.y.index_select(0, batch.flatten()).unflatten(0, batch.shape)
            logits = run_streams(
                self.backend,
                self._runnable(),
                weights,
                plan,
                channels_last(x),
            )
            loss, correct = score(logits, y, lacking)
            loss = loss.mean(1)
            # A sum over hosts: each host's gradient is its own loss's.
            _write_gradients(loss.sum(), leaves, [tensors.grads for tensors in arena.blocks])
            norms.append(arena.update())
            losses.append(loss.detach())
            corrects.append(correct.float().mean(1))
        by_block = [torch.stack(block) for block in zip(*norms, strict=True)]
        return EpochResult(torch.stack(losses), torch.stack(corrects), by_block)

    def _shared_out(self, state: SlotState, running: Flags) -> tuple[Integers, Integers]:
        """List the hosts that run compiled, and the others.

        Args:
            state: All slots.
            running: Seeds that take part, bool ``[E, K]``.
        """
        # Each host goes one way: seeds of a user, gates and other devices are no matter of the loops.
        everybody = np.arange(len(self))
        if self._compiled is None:
            return everybody[:0], everybody
        is_compiled = self._compiled.runs(state, running)
        return everybody[is_compiled], everybody[~is_compiled]

    def _in_groups(self, hosts: Integers, work: Callable[[Integers], T]) -> list[T]:
        """Do ``work`` on hosts, ``group`` at a time."""
        # Cut by size alone: which thread does a group decides no bit.
        firsts = range(0, len(hosts), self.group)
        parts = [hosts[first : first + self.group] for first in firsts]
        by_part = share(lambda part: self._as_memory_allows(part, work), parts)
        return [result for results in by_part for result in results]

    def _as_memory_allows(self, hosts: Integers, work: Callable[[Integers], T]) -> list[T]:
        """Do ``work`` on hosts together; where memory does not suffice, the group is halved for good."""
        first = 0
        results: list[T] = []
        while first < len(hosts):
            part = hosts[first : first + self.group]
            try:
                results.append(work(part))
            # Work writes nothing before its end, so the same hosts can go again in smaller parts.
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                self.group = (len(part) + 1) // 2
                continue
            first += len(part)
        return results

    def _blocks(self, plan: Plan, rows: Tensor) -> list[Block]:
        """List what trains of hosts in these rows: they, then per slot the groups of seeds and the gates of gated
        seeds.
        """
        # No host is ever frozen; a seed is while it is ramped down to be pruned.
        places = torch.arange(len(rows), device=self.device)
        blocks = [
            self._block(
                "host",
                rows,
                places,
                np.zeros(len(rows), bool),
            )
        ]
        for slot, groups in enumerate(plan.slots):
            if groups is None:
                continue
            for kind, first, last in groups.blueprints:
                places = groups.hosts[first:last]
                frozen = groups.frozen[first:last]
                blocks.append(
                    self._block(
                        seed_name(slot, kind),
                        rows,
                        places,
                        frozen,
                    )
                )
            if gated := groups.gated():
                places = groups.hosts[gated.positions]
                blocks.append(
                    self._block(
                        gate_name(slot),
                        rows,
                        places,
                        gated.frozen,
                    )
                )
        return blocks

    def _block(self, name: str, rows: Tensor, places: Tensor, frozen: Flags) -> Block:
        decay = self.optimizer.weight_decay if name == "host" else self.optimizer.seed_weight_decay
        return Block(
            name,
            self._stores[name],
            rows[places],
            places,
            frozen,
            decay,
            self._columns(name),
        )

    def _weights(self, blocks: list[Block], tensors: list[list[Tensor]]) -> Weights:
        by_name = {block.name: params for block, params in zip(blocks, tensors, strict=True)}
        return Weights(self.templates.of_host(by_name.pop("host")), by_name)

    # --- evaluation ---

    @torch.no_grad()
    def evaluate(
        self,
        slots: Slots,
        data: Dataset,
        off: Tensor | Flags,
        state: SlotState | None = None,
    ) -> Answers:
        """Evaluate configurations on all samples, in one pass that shares what they have in common.

        Args:
            slots: The slots.
            data: The samples.
            off: Seeds that are forced out of the forward, bool ``[Cfg, E, K]``; the others are at live alpha.
            state: What was read of ``slots``, if it was.
        """
        state = state or SlotState.read(slots)
        flags = flags_of(off)
        on = state.acting & ~flags
        fast, others = self._shared_out(state, np.logical_or.reduce(on))
        parts = self._in_groups(
            others,
            lambda hosts: self._evaluate(
                hosts, state.of(hosts), slots.alpha, data, flags[:, hosts]
            ),
        )
        if len(fast):
            assert self._compiled is not None
            parts.append(
                self._compiled.evaluate(
                    hosts=fast,
                    state=state,
                    alpha=slots.alpha,
                    data=data,
                    tasks=self.tasks,
                    off=flags,
                    stores=self._stores,
                )
            )
        # In the order of the hosts.
        correct, loss = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        places = upload(np.argsort(np.concatenate((others, fast))), self.device)
        return Answers(correct[:, places], loss[:, places])

    def _evaluate(
        self,
        hosts: Integers,
        state: SlotState,
        alpha: Tensor,
        data: Dataset,
        off: Flags,
    ) -> tuple[Tensor, Tensor]:
        """Compute correct answers ``[Cfg, hosts, N]`` and mean loss ``[Cfg, hosts]``."""
        rows = upload(hosts, self.device)
        plan, stream_of = evaluation_plan(state, off, alpha[rows])
        blocks = self._blocks(plan, rows)
        weights = self._weights(blocks, [block.gathered() for block in blocks])
        lacking = self._lacking(data, rows)
        owner = plan.hosts[-1]  # of each stream, where there are more streams than hosts
        if owner is not None and lacking is not None:
            lacking = lacking[owner]

        # A few samples at a time.
        corrects: list[Tensor] = []
        losses: list[Tensor] = []
        chunk = max(1, EVALUATION_POSITIONS // data.y[0].numel())
        for start in range(0, len(data), chunk):
            x, y = self._samples(data, rows, slice(start, start + chunk))
            logits = run_streams(
                self.backend,
                self._runnable(),
                weights,
                plan,
                x,
            )
            loss, correct = score(logits, y if owner is None else y[owner], lacking)
            losses.append(loss)
            corrects.append(correct)
        return torch.cat(corrects, 1)[stream_of], torch.cat(losses, 1).mean(1)[stream_of]

    def _samples(self, data: Dataset, hosts: Tensor, samples: slice) -> tuple[Tensor, Tensor]:
        """Take samples of the task of each of some hosts: ``x [G, n, …]``, ``y [G, n, …]``."""
        # A single task is not copied for each host, only viewed.
        if data.tasks > 1:
            x, y = data.of_tasks(self.tasks[hosts], samples)
            return channels_last(x), y
        x = channels_last(data.x[None, samples])
        y = data.y[None, samples]
        return x.expand(len(hosts), *x.shape[1:]), y.expand(len(hosts), *y.shape[1:])

    def _lacking(self, data: Dataset, hosts: Tensor) -> Tensor | None:
        """Tell which classes the hosts' tasks do not have, bool ``[G, classes]``; None where none lacks any."""
        return None if data.lacking is None else data.lacking[self.tasks[hosts]]

    # --- what it weighs ---

    def seed_params(self, slots: Slots) -> Tensor:
        """Count the parameters of each seed, with its gate if it has one ``[E, K]`` int64; 0 without a seed."""
        return self._weigh(slots, self._seed_params, self._gate_params)

    def seed_flops(self, slots: Slots) -> Tensor:
        """Count the FLOPs per sample of each seed, with its gate if it has one ``[E, K]`` int64; 0 without a seed."""
        return self._weigh(slots, self._seed_flops, self._gate_flops)

    def _weigh(self, slots: Slots, seeds: Tensor, gates: Tensor) -> Tensor:
        # Slots without a live seed look up the first blueprint, and are masked at the end.
        columns = torch.arange(self.host.slots, device=self.device)
        has_gate = slots.operator == Blend.GATE
        weight = seeds[columns, slots.blueprint.clamp(min=0)] + gates * has_gate
        return weight * in_stages(slots.stage, LIVE_STAGES)

    def _counts(self) -> list[Tensor]:
        """Count parameters and FLOPs of the blueprints ``[K, P]`` and of the gates ``[K]``."""
        seed_shapes = self.host.seed_shapes
        gates = list(zip(self.templates.gates, self.host.slot_shapes, strict=True))
        tables = (
            [[blueprint.params(shape) for blueprint in self.blueprints] for shape in seed_shapes],
            [[blueprint.flops(shape) for blueprint in self.blueprints] for shape in seed_shapes],
            [gate.layout.params for gate, _ in gates],
            [
                count_flops(built(partial(self.host.gate, shape), shape), shape)
                for _, shape in gates
            ],
        )
        return [torch.tensor(table, device=self.device) for table in tables]

    # --- rollback ---

    def take_snapshot(self) -> None:
        """Remember all parameters and optimizer state; the snapshot before is forgotten."""
        self._snapshot = {name: store.clone() for name, store in self._stores.items()}

    def refresh_snapshot(self, hosts: Tensor, slots: Slots) -> None:
        """Update the snapshot in ``hosts [E]`` bool: hosts and FOSSILIZED seeds; who restores prunes all others."""

        def refresh(item: tuple[str, Rows]) -> None:
            name, store = item
            # A gate is stored by slot, a seed by slot and blueprint.
            rows = hosts
            if name != "host":
                kind, slot, *blueprint = name.split(".")
                rows = hosts & (slots.stage[:, int(slot)] == Stage.FOSSILIZED)
                if kind == "seed":
                    rows = rows & (slots.blueprint[:, int(slot)] == int(blueprint[0]))
            if name not in self._snapshot:
                self._snapshot[name] = self._new_store(name)
            self._snapshot[name].copy_where(rows, store)

        share(refresh, self._stores.items())

    def restore(self, hosts: Tensor) -> None:
        """Put ``hosts [E]`` bool and their seeds back to the snapshot, optimizer state included; leave all others.

        The caller prunes the seeds that are not FOSSILIZED.
        """
        for name, store in self._snapshot.items():
            self._stores[name].copy_where(hosts, store)

    def named_parameters(self, slots: Slots, row: int) -> dict[str, Tensor]:
        """Copy the parameters of a host and its seeds to the CPU, named as in ``GrownNetwork``."""
        # Name, template and row of each module.
        owners: list[tuple[str, Template, Tensor]] = []
        widths = [template.layout.width for template in self.templates.host]
        segments = self._stores["host"].param[row].split(widths)
        for k, (template, flat) in enumerate(zip(self.templates.host, segments, strict=True)):
            owners.append((f"segments.{k}" if k < self.host.slots else "head", template, flat))
        for slot in in_stages(slots.stage[row], LIVE_STAGES).nonzero().flatten().tolist():
            kind = int(slots.blueprint[row, slot])
            seed = self._stores[seed_name(slot, kind)].param[row]
            gate = self._stores[gate_name(slot)].param[row]
            owners.append((f"joints.{slot}.seed", self.templates.seeds[slot][kind], seed))
            owners.append((f"joints.{slot}.gate", self.templates.gates[slot], gate))
        return {
            f"{owner}.{name}": tensor[0].cpu().clone()
            for owner, template, flat in owners
            for name, tensor in zip(template.names, template.layout.unpack(flat[None]), strict=True)
        }

    def _columns(self, name: str) -> RowLayout:
        """Look up the layout of a row of the store of this name."""
        kind, *indices = name.split(".")
        if kind == "seed":
            return self.templates.seeds[int(indices[0])][int(indices[1])].layout
        if kind == "gate":
            return self.templates.gates[int(indices[0])].layout
        layouts = [template.layout for template in self.templates.host]
        return RowLayout(
            [shape for layout in layouts for shape in layout.shapes],
            [trains for layout in layouts for trains in layout.trained],
        )

    def _store(self, name: str) -> Rows:
        """Get the store of this name, allocated at first use."""
        if name not in self._stores:
            self._stores[name] = self._new_store(name)
        return self._stores[name]

    def _new_store(self, name: str) -> Rows:
        columns = self._columns(name)
        return Rows.zeros(
            len(self),
            columns,
            MOMENTS[self.optimizer.name],
            self.device,
        )


def _write_gradients(loss: Tensor, leaves: list[list[Tensor]], buffers: list[list[Tensor]]) -> None:
    """Differentiate by the leaves of each block, into buffers of their shape."""
    flat = [tensor for tensors in leaves for tensor in tensors]
    # What took no part, such as a seed at amplitude 0, gets zeros.
    grads = torch.autograd.grad(
        loss,
        flat,
        allow_unused=True,
        materialize_grads=True,
    )
    for buffer, grad in zip(
        (tensor for tensors in buffers for tensor in tensors), grads, strict=True
    ):
        buffer.copy_(grad)


def flags_of(values: Tensor | Flags) -> Flags:
    """Bring flags to the CPU."""
    return values.cpu().numpy() if isinstance(values, Tensor) else values
