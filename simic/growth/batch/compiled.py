"""Hosts for tables on a CPU through compiled loops: which of them can, an epoch, and an evaluation.

A host's numbers do not depend on the hosts beside it. How fast it is: docs/history/experiments.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.data.batches import Dataset
from simic.errors import SimicError
from simic.growth.batch.arena import ADAM_BETAS, MOMENTS, Rows
from simic.growth.batch.forward import Templates, seed_name
from simic.growth.batch.groups import Flags, Integers, SlotState
from simic.growth.batch.statistics import SeedNorms, TrainStats, train_statistics
from simic.growth.compiled.hosts import NO_SEED, evaluate_hosts, train_hosts
from simic.growth.compiled.seeds import KINDS
from simic.growth.life.vocabulary import Blend, Stage
from simic.growth.networks.hosts import HostSpec
from simic.params import HostOptimizer
from simic.threads import share

HOSTS_AT_ONCE = 32  # that a thread takes: with fewer it would come for more too often


class CompiledHosts:
    """Trains and evaluates hosts whose slots are all at the first layer.

    Args:
        host: Their kind.
        templates: Its blueprints.
        optimizer: AdamW's settings.
    """

    def __init__(self, host: HostSpec, templates: Templates, optimizer: HostOptimizer) -> None:
        self._host = host
        self._optimizer = optimizer
        # They are the same at every slot.
        self._seeds = templates.seeds[0]
        # Those of a user are not among the loops.
        self._kinds = [KINDS.get(type(seed.module)) for seed in self._seeds]
        # Columns, units of both layers and classes, of the weights of the host.
        (units, columns), _, (units2, _), _, (classes, _), _ = [
            shape for template in templates.host for shape in template.layout.shapes
        ]
        self._widths = (columns, units, units2, classes)

    def runs(self, state: SlotState, learning: Flags) -> Flags:
        """Tell which hosts run here, bool ``[E]``: those all of whose seeds add.

        Args:
            state: Their slots.
            learning: Seeds that take part, bool ``[E, K]``.
        """
        known = np.array([kind is not None for kind in self._kinds])
        is_known = known[state.blueprint]
        adds = (state.operator == Blend.ADD) | (state.stage == Stage.TRAINING)
        return (~learning | (is_known & adds)).all(1)

    def train(
        self,
        hosts: Integers,
        state: SlotState,
        alpha: Tensor,
        data: Dataset,
        tasks: Tensor,
        order: Tensor,
        stores: Mapping[str, Rows],
        learning_rate: float,
    ) -> TrainStats:
        """Train some hosts for an epoch, in place; ``runs`` is true of them.

        Args:
            hosts: Their places in the population, ``[G]``.
            state: Slots of all hosts.
            alpha: Amplitudes ``[E, K]``.
            data: The training split.
            tasks: Of the hosts, ``[E]``.
            order: Rows of the data, ``[E, batches, batch size]``.
            stores: Where parameters live.
            learning_rate: Of this epoch.
        """
        # Losses, shares of right answers and norms of each host and minibatch, and norms of seeds by slot.
        shape = len(state.stage), order.shape[1]
        by_slot = state.stage.shape[1], *shape
        measured = *(np.empty(shape, np.float32) for _ in range(3)), np.empty(by_slot, np.float32)
        settings = (
            float(learning_rate),
            self._optimizer.weight_decay,
            self._optimizer.seed_weight_decay,
            self._optimizer.max_grad_norm,
            *ADAM_BETAS,
        )
        # A seed in TRAINING adds nothing.
        in_training = torch.from_numpy(state.stage == Stage.TRAINING)
        alphas = alpha.float().masked_fill(in_training, torch.nan).contiguous()
        # Hosts with seeds of the same blueprints at a time, some to each thread that is free.
        lacking = self._lacking(data, tasks)
        groups = list(_by_blueprints(hosts, state, state.learning))
        # What every part reads, made once.
        columns = (
            data.x.flatten(1).numpy(),
            data.y.numpy(),
            order.numpy(),
            lacking,
            alphas.numpy(),
            state.frozen,
        )

        def train(part: tuple[list[int], Integers]) -> None:
            blueprints, places = part
            train_hosts(
                self._widths,
                settings,
                _rows_of(stores["host"]),
                self._seed_groups(blueprints, stores),
                measured,
                places,
                *columns,
            )

        share(train, _in_parts(groups))
        # The rest is summarised as of every other family.
        loss, accuracy, norm = (torch.from_numpy(values[hosts].T) for values in measured[:3])
        return train_statistics(
            loss,
            accuracy,
            norm,
            self._host.params,
            self._seed_norms(hosts, groups, measured[3]),
            self._host.slots,
            self._optimizer.max_grad_norm,
        )

    def _seed_norms(
        self, hosts: Integers, groups: list[tuple[list[int], Integers]], norms: NDArray[Any]
    ) -> list[SeedNorms]:
        """Gather what was measured ``[K, E, batches]`` of the seeds that ran."""
        return [
            SeedNorms(
                slot,
                torch.from_numpy(np.searchsorted(hosts, places)),
                torch.from_numpy(norms[slot, places].T),
                self._seeds[blueprint].layout.params,
            )
            for blueprints, places in groups
            for slot, blueprint in enumerate(blueprints)
            if blueprint >= 0
        ]

    def evaluate(
        self,
        hosts: Integers,
        state: SlotState,
        alpha: Tensor,
        data: Dataset,
        tasks: Tensor,
        off: Flags,
        stores: Mapping[str, Rows],
    ) -> tuple[Tensor, Tensor]:
        """Compute right answers ``[Cfg, G, N]`` and mean losses ``[Cfg, G]`` of some hosts; ``runs`` is true of them.

        Args:
            hosts: As of ``train``, like ``state``, ``alpha``, ``tasks`` and ``stores``.
            state: Slots of all hosts.
            alpha: Amplitudes.
            data: N samples of each task.
            tasks: Of the hosts.
            off: Seeds that are switched off, bool ``[Cfg, E, K]``.
            stores: Where parameters live.
        """
        # Each host is run with those of its seeds that its configurations ask for.
        on = state.acting & ~off
        correct = np.empty((*on.shape[:2], len(data)), np.bool_)
        loss = np.empty(on.shape[:2], np.float32)
        columns = (
            data.x.view(data.tasks, len(data), -1).numpy(),
            data.y.view(data.tasks, len(data)).numpy(),
            tasks.numpy(),
            self._lacking(data, tasks),
            stores["host"].param.numpy(),
        )
        alphas = alpha.float().contiguous().numpy()

        def evaluate(part: tuple[list[int], Integers]) -> None:
            blueprints, places = part
            seeds = self._seed_groups(blueprints, stores)
            evaluate_hosts(self._widths, seeds, places, *columns, alphas, on, correct, loss)

        # In parts too, as threads end together then.
        share(evaluate, _in_parts(_by_blueprints(hosts, state, np.logical_or.reduce(on))))
        return torch.from_numpy(correct[:, hosts]), torch.from_numpy(loss[:, hosts])

    def _seed_groups(
        self, blueprints: list[int], stores: Mapping[str, Rows]
    ) -> tuple[tuple[int, int, tuple[NDArray[Any], ...]], ...]:
        """List for each slot the number of its blueprint in the loops, its features, and where its seeds live."""
        return tuple(
            self._seed_group(seed_name(slot, blueprint), blueprint, stores)
            for slot, blueprint in enumerate(blueprints)
        )

    def _seed_group(
        self, name: str, blueprint: int, stores: Mapping[str, Rows]
    ) -> tuple[int, int, tuple[NDArray[Any], ...]]:
        if blueprint < 0:
            steps = stores["host"].tensors["step"].numpy()
            nothing = np.zeros((len(steps), 0), np.float32)
            return NO_SEED, 0, (nothing, nothing, nothing, steps)
        kind = self._kinds[blueprint]
        assert kind is not None
        seed = self._seeds[blueprint]
        features = seed.layout.shapes[seed.names.index("out")][0]
        return kind, features, _rows_of(stores[name])

    def _lacking(self, data: Dataset, tasks: Tensor) -> Flags:
        """Mark the classes that the task of a host does not have, ``[E, classes]``; refuse labels beyond them.

        Raises:
            SimicError: telling the labels.
        """
        # The loops ask for no bounds: such a label would be written somewhere.
        least, largest = data.label_range
        if least < 0 or largest >= data.classes:
            raise SimicError(f"labels {least} to {largest}: allowed are 0 to {data.classes - 1}")
        if data.lacking is None:
            return np.zeros((len(tasks), data.classes), np.bool_)
        return data.lacking[tasks].numpy()


def _by_blueprints(
    hosts: Integers, state: SlotState, running: Flags
) -> Iterator[tuple[list[int], Integers]]:
    """Group hosts by the blueprints of the seeds that run ``[E, K]``; −1: none."""
    blueprints = np.where(running, state.blueprint, -1)[hosts]
    kinds, group = np.unique(blueprints, axis=0, return_inverse=True)
    for number, kind in enumerate(kinds.tolist()):
        yield kind, hosts[group.reshape(-1) == number]


def _in_parts(
    groups: Iterable[tuple[list[int], Integers]],
) -> list[tuple[list[int], Integers]]:
    """Cut groups of hosts into parts of a few, so that threads end together."""
    return [
        (blueprints, places[first : first + HOSTS_AT_ONCE])
        for blueprints, places in groups
        for first in range(0, len(places), HOSTS_AT_ONCE)
    ]


def _rows_of(store: Rows) -> tuple[NDArray[Any], ...]:
    """View parameters, moments and steps of a store."""
    return tuple(store.tensors[name].numpy() for name in ("param", *MOMENTS["adamw"], "step"))
