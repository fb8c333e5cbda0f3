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
    """Trains and evaluates hosts with one slot.

    Args:
        host: Their kind.
        templates: Its blueprints.
        optimizer: AdamW's settings.
    """

    def __init__(self, host: HostSpec, templates: Templates, optimizer: HostOptimizer) -> None:
        self._host = host
        self._optimizer = optimizer
        self._seeds = templates.seeds[0]
        # Those of a user are not among the loops.
        self._kinds = [KINDS.get(type(seed.module)) for seed in self._seeds]
        # Columns, units of both layers and classes, of the weights of the host.
        (units, columns), _, (units2, _), _, (classes, _), _ = [
            shape for template in templates.host for shape in template.layout.shapes
        ]
        self._widths = (columns, units, units2, classes)

    def runs(self, state: SlotState, learning: Flags) -> Flags:
        """Tell which hosts run here, bool ``[E]``: those without a seed, and those whose seed adds.

        Args:
            state: Their slots.
            learning: Seeds that take part, bool ``[E, 1]``.
        """
        known = np.array([kind is not None for kind in self._kinds])
        is_known = known[state.blueprint[:, 0]]
        adds = (state.operator[:, 0] == Blend.ADD) | (state.stage[:, 0] == Stage.TRAINING)
        return ~learning[:, 0] | (is_known & adds)

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
            alpha: Amplitudes ``[E, 1]``.
            data: The training split.
            tasks: Of the hosts, ``[E]``.
            order: Rows of the data, ``[E, batches, batch size]``.
            stores: Where parameters live.
            learning_rate: Of this epoch.
        """
        # Losses, shares of right answers, and norms of hosts and seeds, of each host and minibatch.
        shape = len(state.stage), order.shape[1]
        measured = tuple(np.empty(shape, np.float32) for _ in range(4))
        settings = (
            float(learning_rate),
            self._optimizer.weight_decay,
            self._optimizer.seed_weight_decay,
            self._optimizer.max_grad_norm,
            *ADAM_BETAS,
        )
        # A seed in TRAINING adds nothing.
        in_training = torch.from_numpy(state.stage == Stage.TRAINING)
        alphas = alpha.float().masked_fill(in_training, torch.nan)[:, 0].contiguous()
        # Hosts with seeds of one blueprint at a time, some to each thread that is free.
        lacking = self._lacking(data, tasks)
        by_blueprint = list(_by_blueprint(hosts, state, state.learning))
        # What every part reads, made once.
        columns = (
            data.x.flatten(1).numpy(),
            data.y.numpy(),
            order.numpy(),
            lacking,
            alphas.numpy(),
            state.frozen[:, 0],
        )

        def train(part: tuple[int, Integers]) -> None:
            blueprint, places = part
            train_hosts(
                *self._kind(blueprint),
                settings,
                _rows_of(stores["host"]),
                self._seed_rows(blueprint, stores),
                measured,
                places,
                *columns,
            )

        share(train, _in_parts(by_blueprint))
        # Only seeds that ran have norms.
        norms: list[SeedNorms] = []
        for blueprint, places in by_blueprint:
            if blueprint >= 0:
                among = torch.from_numpy(np.searchsorted(hosts, places))
                by_batch = torch.from_numpy(measured[3][places].T)
                norms.append(
                    SeedNorms(
                        0,
                        among,
                        by_batch,
                        self._seeds[blueprint].layout.params,
                    )
                )
        # The rest is summarised as of every other family.
        loss, accuracy, norm, _ = (torch.from_numpy(values[hosts].T) for values in measured)
        return train_statistics(
            loss, accuracy, norm, self._host.params, norms, 1, self._optimizer.max_grad_norm
        )

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
            off: Seeds that are switched off, bool ``[Cfg, E, 1]``.
            stores: Where parameters live.
        """
        # Each host is run without its seed, with it, or both: as its configurations ask.
        on = (state.acting & ~off)[..., 0]
        correct = np.empty((*on.shape, len(data)), np.bool_)
        loss = np.empty(on.shape, np.float32)
        columns = (
            data.x.view(data.tasks, len(data), -1).numpy(),
            data.y.view(data.tasks, len(data)).numpy(),
            tasks.numpy(),
            self._lacking(data, tasks),
            stores["host"].param.numpy(),
        )
        alphas = alpha[:, 0].float().contiguous().numpy()

        def evaluate(part: tuple[int, Integers]) -> None:
            blueprint, places = part
            seeds = self._seed_rows(blueprint, stores)[0]
            evaluate_hosts(
                *self._kind(blueprint), places, *columns, seeds, alphas, on, correct, loss
            )

        # In parts too, as threads end together then.
        running = np.logical_or.reduce(on)[:, None]
        share(evaluate, _in_parts(_by_blueprint(hosts, state, running)))
        return torch.from_numpy(correct[:, hosts]), torch.from_numpy(loss[:, hosts])

    def _kind(self, blueprint: int) -> tuple[int, tuple[int, ...]]:
        """Tell the number of a blueprint in the loops, and the widths of hosts with its seeds; −1: without."""
        if blueprint < 0:
            return NO_SEED, (*self._widths, 0)
        kind = self._kinds[blueprint]
        assert kind is not None
        seed = self._seeds[blueprint]
        return kind, (*self._widths, seed.layout.shapes[seed.names.index("out")][0])

    def _seed_rows(self, blueprint: int, stores: Mapping[str, Rows]) -> tuple[NDArray[Any], ...]:
        """View where the seeds of a blueprint live; −1: nowhere."""
        if blueprint >= 0:
            return _rows_of(stores[seed_name(0, blueprint)])
        steps = stores["host"].tensors["step"].numpy()
        nothing = np.zeros((len(steps), 0), np.float32)
        return nothing, nothing, nothing, steps

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


def _by_blueprint(
    hosts: Integers, state: SlotState, running: Flags
) -> Iterator[tuple[int, Integers]]:
    """Group hosts by the blueprint of the seed that runs ``[E, 1]``; −1: none."""
    blueprints = np.where(running[:, 0], state.blueprint[:, 0], -1)[hosts]
    for blueprint in np.unique(blueprints).tolist():
        yield blueprint, hosts[blueprints == blueprint]


def _in_parts(by_blueprint: Iterable[tuple[int, Integers]]) -> list[tuple[int, Integers]]:
    """Cut groups of hosts into parts of a few, so that threads end together."""
    return [
        (blueprint, places[first : first + HOSTS_AT_ONCE])
        for blueprint, places in by_blueprint
        for first in range(0, len(places), HOSTS_AT_ONCE)
    ]


def _rows_of(store: Rows) -> tuple[NDArray[Any], ...]:
    """View parameters, moments and steps of a store."""
    return tuple(store.tensors[name].numpy() for name in ("param", *MOMENTS["adamw"], "step"))
