"""Stands between an environment and its population, and remembers what passed: samples of an epoch, answers."""

from typing import Any

import torch
from torch import Tensor

from simic.audit.reference.world.validation import On
from simic.data.batches import Dataset
from simic.growth.batch.groups import Flags, SlotState
from simic.growth.batch.population import Answers, Population, flags_of
from simic.growth.batch.statistics import TrainStats
from simic.growth.life.vocabulary import Slots


class WorldWitness:
    """Does what the population does. ``order [E, n, B]`` are the rows of the last epoch's data."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.order = torch.empty(0)
        self.data: Dataset | None = None
        self._on: Flags | None = None
        self._correct = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.population, name)

    def train_epoch(self, slots: Slots, data: Dataset, order: Tensor, state: SlotState | None = None) -> TrainStats:
        """As the population's."""
        self.order, self.data = order, data
        return self.population.train_epoch(slots, data, order, state)

    def evaluate(self, slots: Slots, data: Dataset, off: Tensor | Flags, state: SlotState | None = None) -> Answers:
        """As the population's."""
        found = self.population.evaluate(slots, data, off, state)
        self._on = SlotState.read(slots).acting & ~flags_of(off)
        self._correct = found.correct
        return found

    def correct(self, row: int, on: On) -> Tensor | None:
        """Which samples ``[N]`` the network of a host with these seeds on answered rightly; None if it was not run."""
        if self._on is None:
            return None
        for configuration, flags in enumerate(self._on[:, row]):
            if frozenset(flags.nonzero()[0].tolist()) == on:
                return self._correct[configuration, row]
        return None
