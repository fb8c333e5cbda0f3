"""A host trained on one task before it is frozen and adapted to others."""

import torch
from torch import Tensor

from simic.data.batches import Dataset, epoch_order
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Host, HostOptimizer

BATCH_SIZE = 64
LAST_RATES = (0.1, 0.01)  # of the learning rate, for the last fifth of the epochs each


def train_host(host: Host, data: Dataset, rng_seed: int, epochs: int) -> dict[str, Tensor]:
    """Return trained weights by the names of an exported network; on one thread, whatever the machine's cores."""
    optimizer = HostOptimizer(name="sgd", learning_rate=0.05, weight_decay=5e-4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        spec = build_host(host, data.shape, data.classes)
        one = torch.zeros(1, dtype=torch.int64)
        population = Population(spec, blueprints_of(host.family), one, rng_seed, optimizer)
        population.reset(0)
        slots = Slots.empty(1, spec.slots)
        for epoch in range(epochs):
            late = epoch * 5 // epochs - 2  # 1 and 2 in the last two fifths
            population.learning_rate = optimizer.learning_rate * (1.0, *LAST_RATES)[max(0, late)]
            order = epoch_order(rng_seed, 0, one, epoch, len(data), BATCH_SIZE)
            population.train_epoch(slots, data, order)
        return population.named_parameters(slots, 0)
    finally:
        torch.set_num_threads(threads)
