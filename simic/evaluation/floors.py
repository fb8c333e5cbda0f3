"""What costs no decision: a linear classifier, and networks of several sizes that never grow.

A weak host makes any growth look good; a score stands beside what these reach on the same tasks.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.errors import SimicError
from simic.evaluation.costs import BACKWARD_AND_FORWARD
from simic.evaluation.static_final import Course, FixedNetworks
from simic.growth.batch.population import Population
from simic.growth.batch.shards import Shards
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.family import family_of
from simic.growth.networks.hosts import build_host
from simic.params import Host

# Inverse strengths of the L2 penalty that the validation split chooses from; the grid is ours.
PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0)
MOST_ITERATIONS = 500
CNN_WIDTHS = ((4, 8), (8, 16), (4, 8, 16), (8, 16, 32), (16, 32, 64))
MLP_WIDTHS = ((8,), (16,), (32, 32), (64, 64, 64))


@dataclass(frozen=True)
class LinearFloor:
    """Multinomial logistic regression on the flattened inputs of one task; FLOPs count every penalty that was tried."""

    test_accuracy_pct: float
    penalty: float
    params: int
    training_flops: int


def linear_floor(train: Dataset, val: Dataset, test: Dataset) -> list[LinearFloor]:
    """One for each task: fitted to ``train``, the penalty chosen on ``val``; SimicError for tokens."""
    if len(train.shape) == 1:
        raise SimicError(f"linear floor: samples of shape {train.shape} are tokens: must be images or tables")
    return [_fitted(*(_samples(split, task) for split in (train, val, test))) for task in range(train.tasks)]


def _samples(data: Dataset, task: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(task * len(data), (task + 1) * len(data))
    return data.x[rows].flatten(1).double().cpu().numpy(), data.y[rows].cpu().numpy()


def _fitted(
    train: tuple[np.ndarray, np.ndarray], val: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
) -> LinearFloor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    found, iterations = [], 0
    for penalty in PENALTIES:
        model = LogisticRegression(C=penalty, max_iter=MOST_ITERATIONS)
        with warnings.catch_warnings():
            # One that was stopped early is a candidate as any other: the validation split judges it.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(*train)
        iterations += int(model.n_iter_.sum())
        found.append((model.score(*val), -penalty, model))
    _, negative, best = max(found, key=lambda each: each[:2])  # of equals, the most penalised
    return LinearFloor(
        test_accuracy_pct=100.0 * float(best.score(*test)),
        penalty=-negative,
        params=best.coef_.size + best.intercept_.size,
        training_flops=BACKWARD_AND_FORWARD * iterations * len(train[0]) * 2 * best.coef_.size,
    )


def sizes(family: str) -> list[Host]:
    """The static networks of a sweep, small to large; of families without widths of their own here, every preset."""
    if family == "cnn":
        return [Host(family=family, preset="baseline", widths=widths, kernel_size=3) for widths in CNN_WIDTHS]
    if family == "mlp":
        return [Host(family=family, preset="baseline", widths=widths) for widths in MLP_WIDTHS]
    return [Host(family=family, preset=preset) for preset in family_of(family).presets]


def size_sweep(
    course: Course,
    hosts: Sequence[Host],
    env_ids: Tensor,
    rng_seed: int,
    compose: Callable[..., Population | Shards] = Population,
    backend: str = "auto",
) -> list[FixedNetworks]:
    """Each of ``hosts`` alone, trained on every row (task of ``course.tasks [E]``, host of ``env_ids [E]``) for the
    epochs of an episode. Costs ``len(hosts) * E`` host trainings of other sizes.
    """
    found = []
    for config in hosts:
        host = build_host(config, course.data.shape, course.data.classes)
        device, optimizer = course.tasks.device, course.train.host_optimizer
        population = compose(host, blueprints_of(host.family), env_ids, rng_seed, optimizer, device, backend)
        epochs = torch.full((1, len(env_ids)), course.train.episode_steps, device=device)
        try:
            found += course.take(population, Slots.empty(len(env_ids), host.slots, device), epochs)
        finally:
            population.close()
    return found
