"""Networks that never grow, and a linear classifier, trained and scored as hosts are.

Of the tasks alone: a linear classifier and networks of several sizes, since a weak host makes any growth look good. Of
a policy: the network that it ended with, trained from the first step with every seed in place.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.data.batches import Dataset, HeldOut, epoch_order
from simic.evaluation.result import Fixed
from simic.evaluation.scoring import BACKWARD_AND_FORWARD, EVALUATION_ITERATION, epoch_samples
from simic.growth.batch.population import Population
from simic.growth.batch.shards import Shards, recovered
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks.blueprints import Blueprint, blueprints_of
from simic.growth.networks.family import family_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.growth.networks.tabular import TOGETHER
from simic.params import Host, Params, Train
from simic.training import worker_layout

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

LINEAR = "linear classifier"
# Inverse strengths of the L2 penalty that the validation split chooses from; the grid is ours.
PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0)
MOST_ITERATIONS = 500
CNN_WIDTHS = ((4, 8), (8, 16), (4, 8, 16))
WIDTHS = {"mlp": ((8,), (16,), (32, 32), (64, 64, 64)), "tables": ((64, 64),)}
KEPT_OF_A_SEED = ("stage", "blueprint", "operator", "alpha", "alpha_target", "germinations")

Network = tuple[str, HostSpec, tuple[Blueprint, ...], Slots]  # its name; what it can grow, and what it has grown


# --- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regime:
    """How networks are trained and scored: as the hosts of the episode ``iteration`` whose tasks are ``tasks [E]``, in
    the same order of samples.
    """

    train: Train
    data: Dataset
    test: Dataset
    tasks: Tensor
    iteration: int

    @property
    def epoch_flops_per_flop(self) -> int:
        """FLOPs of an epoch over those of one sample's forward pass."""
        return BACKWARD_AND_FORWARD * epoch_samples(self.train, len(self.data))

    def run(self, population: Population | Shards, slots: Slots, epochs: Tensor) -> list[Fixed]:
        """Train fresh networks with the seeds of ``slots`` and score them after each row of ``epochs [R, E]``; the
        population ends after the last. A network that has had its epochs goes on and is scored no more. Answers that
        are not finite are wrong ones.
        """
        accuracy = recovered(population, lambda: self._accuracy(population, slots, epochs))
        params = population.host.params + population.seed_params(slots).sum(dim=1)
        flops = population.host.flops_per_sample + population.seed_flops(slots).sum(dim=1)
        return [
            Fixed(
                test_accuracy_pct=tuple(round(value, 4) for value in row.double().tolist()),
                epochs=tuple(count.tolist()),
                params=tuple(params.tolist()),
                flops_per_sample=tuple(flops.tolist()),
                training_flops=tuple((count * self.epoch_flops_per_flop * flops).tolist()),
            )
            for row, count in zip(accuracy, epochs, strict=True)
        ]

    def _accuracy(self, population: Population | Shards, slots: Slots, epochs: Tensor) -> Tensor:
        """Return points on the test split, ``[R, E]``."""
        present, train, samples = slots.blueprint >= 0, self.train, len(self.data)
        population.reset(self.iteration, self.tasks)
        population.germinate(slots, present, self.data)
        accuracy = torch.zeros(epochs.shape, device=epochs.device)
        for epoch in range(1, int(epochs.max()) + 1):
            # In the order of the environment's step of that number.
            where = population.rng_seed, self.iteration, population.env_ids, epoch
            order = epoch_order(*where, samples, train.batch_size, train.batches_per_epoch)
            population.train_epoch(slots, self.data, order + (self.tasks * samples)[:, None, None])
            due = epochs == epoch
            if due.any():
                answers = population.evaluate(slots, self.test, torch.zeros_like(present)[None])
                accuracy = torch.where(due, 100.0 * answers.correct[0].float().mean(dim=1), accuracy)
        return accuracy


# --- networks of several sizes ---------------------------------------------------------------------------------------


def static_baselines(
    params: Params, held_out: HeldOut, tasks: Tensor, device: torch.device, lengths: Sequence[int]
) -> dict[int, dict[str, Fixed]]:
    """Train every baseline on every row (host, task of ``tasks [E]``), as the hosts of an evaluation; return them by
    number of epochs and name.
    """
    if not params.headroom.floors:
        return {length: {} for length in lengths}
    regime = Regime(params.train, held_out.train, held_out.test, tasks, EVALUATION_ITERATION)
    trained, rows = dict[str, list[Fixed]](), len(tasks)
    if len(held_out.train.shape) > 1:  # tokens are no numbers
        trained[LINEAR] = [linear_classifier(held_out, tasks)] * len(lengths)
    runtime, optimizer = params.runtime, params.train.host_optimizer
    compose = worker_layout.population(runtime, worker_layout.layout(runtime, rows, device))
    epochs = torch.tensor(lengths, device=device)[:, None].expand(-1, rows).contiguous()
    for name, host, kinds, slots in _networks(params, regime, device):
        described = host, kinds, torch.arange(rows), params.rng_seed, optimizer, device
        with closing(compose(*described, runtime.backend)) as population:
            trained[name] = regime.run(population, slots, epochs)
    return {length: {name: each[place] for name, each in trained.items()} for place, length in enumerate(lengths)}


def _networks(params: Params, regime: Regime, device: torch.device) -> Iterator[Network]:
    """Yield hosts of several sizes, and for tables all modules at once."""
    given, rows, shape, classes = params.train.host, len(regime.tasks), regime.data.shape, regime.data.classes
    for name, size in sizes(given.family).items():
        host = build_host(size, shape, classes)
        yield name, host, blueprints_of(host.family), Slots.empty(rows, host.slots, device)
    if given.family == TOGETHER.family:
        host = build_host(given, shape, classes)
        yield TOGETHER.name, host, (TOGETHER,), filled(rows, host, device, 0)


def sizes(family: str) -> dict[str, Host]:
    """Return the static networks of a sweep by name, small to large; of families without widths here, every preset."""
    if family == "cnn":
        hosts = [Host(family=family, preset="baseline", widths=widths, kernel_size=3) for widths in CNN_WIDTHS]
    elif family in WIDTHS:
        hosts = [Host(family=family, preset="baseline", widths=widths) for widths in WIDTHS[family]]
    else:
        hosts = [Host(family=family, preset=preset) for preset in family_of(family).presets]
    return {f"static {host.family}, {list(host.widths) if host.widths else host.preset}": host for host in hosts}


def filled(rows: int, host: HostSpec, device: torch.device, kind: int) -> Slots:
    """Return slots that all hold a seed of that blueprint."""
    slots = Slots.empty(rows, host.slots, device)
    columns = {"stage": int(Stage.FOSSILIZED), "blueprint": kind, "germinations": 1, "alpha": 1.0}
    return replace(slots, **{name: torch.full_like(getattr(slots, name), value) for name, value in columns.items()})


# --- a linear classifier ---------------------------------------------------------------------------------------------


def linear_classifier(held_out: HeldOut, tasks: Tensor) -> Fixed:
    """Fit multinomial logistic regression to the flattened inputs of each task; its validation split chooses the
    penalty, and FLOPs count every one that was tried. All hosts of a task share one.
    """
    by_task = {task: _fitted(held_out, task) for task in set(tasks.tolist())}
    accuracy, params, flops, training = zip(*(by_task[task] for task in tasks.tolist()), strict=True)
    return Fixed(
        test_accuracy_pct=accuracy,
        epochs=(0,) * len(tasks),
        params=params,
        flops_per_sample=flops,
        training_flops=training,
    )


def _fitted(held_out: HeldOut, task: int) -> tuple[float, int, int, int]:
    """Return test accuracy in points, parameters, FLOPs per sample and FLOPs of training."""

    def samples(data: Dataset) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        rows = slice(task * len(data), (task + 1) * len(data))
        return data.x[rows].flatten(1).double().cpu().numpy(), data.y[rows].cpu().numpy()

    train, val, test = map(samples, (held_out.train, held_out.val, held_out.test))
    models = list(logistic_models(*train, PENALTIES, MOST_ITERATIONS))
    iterations = sum(int(model.n_iter_.sum()) for model in models)
    best = max(models, key=lambda model: model.score(*val))  # of equals, the most penalised
    weights, biases = np.size(best.coef_), np.size(best.intercept_)
    training = BACKWARD_AND_FORWARD * iterations * len(train[0]) * 2 * weights
    return round(100.0 * float(best.score(*test)), 4), weights + biases, 2 * weights, training


def logistic_models(
    x: NDArray[np.floating], y: NDArray[np.int64], strengths: Sequence[float], most_iterations: int
) -> "Iterator[LogisticRegression]":
    """Yield a logistic regression fitted with each inverse strength of the L2 penalty. One that was stopped early is a
    candidate as any other: a validation split judges it.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    for strength in strengths:
        model = LogisticRegression(C=strength, max_iter=most_iterations)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x, y)
        yield model


# --- the network that a policy ended with ----------------------------------------------------------------------------


def static_final(
    population: Population | Shards, regime: Regime, final: Slots, spent: Tensor, epochs: int
) -> list[Fixed]:
    """Train networks with the FOSSILIZED seeds of ``final`` from the first step, with the weights that they began with:
    for as many ``epochs`` as the episode had, and for as many as ``spent`` pays.

    ``spent [E]`` int64 are the FLOPs of the policy's episode without validation; what is left of an epoch is not
    trained, but one epoch is. A host with nothing kept is the static network. The population is reset.
    """
    slots = from_the_start(final)
    flops = population.host.flops_per_sample + population.seed_flops(slots).sum(dim=1)
    affordable = (spent // (regime.epoch_flops_per_flop * flops)).clamp(min=1)
    equal = torch.full_like(affordable, epochs)
    return regime.run(population, slots, torch.stack((equal, affordable)))


def from_the_start(final: Slots) -> Slots:
    """Return slots that hold what is FOSSILIZED in ``final`` and nothing else; the number of the germination names the
    stream of a seed's first weights.
    """
    kept, empty = final.stage == Stage.FOSSILIZED, Slots.empty(*final.shape, device=final.stage.device)
    columns = {name: torch.where(kept, getattr(final, name), getattr(empty, name)) for name in KEPT_OF_A_SEED}
    return replace(empty, **columns)
