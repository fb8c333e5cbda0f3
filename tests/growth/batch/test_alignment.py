"""Alignment of untrained seeds with labels: beside the reference, by task, and what it is for."""

import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.growth.batch.alignment import TASKS_AT_ONCE, Alignments
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from tests.standard import Host

from ..worlds import population_of

TABLE, IMAGES = Host(family="tables", preset="baseline"), Host(family="cnn", preset="baseline")
BLUEPRINTS = blueprints_of("tables")
D, N = 5, 1100


def data(tasks: int, labels) -> Dataset:
    """Standard normal rows, labelled by a function of a row."""
    x = torch.randn(tasks * N, 1, 1, D, generator=torch.Generator().manual_seed(7))
    y = labels(x[:, 0, 0])
    return Dataset(x, y, int(y.max()) + 1, (int(y.max()) + 1,) * tasks)


def of(dataset: Dataset, tasks: Tensor) -> Tensor:
    host = build_host(TABLE, dataset.shape, dataset.classes)
    return Alignments.on(host, BLUEPRINTS, dataset).of(tasks)


def test_it_does_not_depend_on_which_tasks_are_asked_for():
    dataset = data(TASKS_AT_ONCE + 3, lambda x: (x[:, 0] * x[:, 1] > 0).long())
    every = of(dataset, torch.arange(dataset.tasks))
    some = torch.tensor([TASKS_AT_ONCE + 1, 4, 4, 0])
    assert of(dataset, some).equal(every[some])


def test_seeds_that_read_features_have_none():
    host = build_host(IMAGES, (1, 8, 8), 2)
    dataset = Dataset(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]), 2)
    assert population_of(host, 3).aligned(dataset).equal(torch.zeros(3, len(blueprints_of(host.family))))
