"""Networks that never grow, and a linear classifier, trained and scored as hosts are.

Of the tasks alone: a linear classifier and networks of several sizes, since a weak host makes any growth look good. Of
a policy: the network that it ended with, trained from the first step with every seed in place.
"""

import warnings
from collections.abc import Iterator, Sequence
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
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks.blueprints import Blueprint, blueprints_of
from simic.growth.networks.family import family_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.growth.networks.tabular import TOGETHER
from simic.params import Host, Params, Runtime, Train
from simic.training import worker_layout

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

LINEAR = "linear classifier"
# Inverse strengths of the L2 penalty that the validation split chooses from; the grid is ours.
PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0)
MOST_ITERATIONS = 500
CNN_WIDTHS = ((4, 8), (8, 16), (4, 8, 16))
WIDTHS = {"mlp": ((8,), (16,), (32, 32), (64, 64, 64)), "tables": ((64, 64),)}
COLUMNS_OF_A_SEED = ("stage", "blueprint", "operator", "alpha", "alpha_target", "germinations")


@dataclass(frozen=True)
class StaticNetwork:
    """A kind of network that is trained without growing: its host, and the seeds that it has from the start."""

    name: str
    host: HostSpec
    blueprints: tuple[Blueprint, ...]
    slots: Slots


# --- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regime:
    """Train and score networks as the hosts of the episode ``iteration`` whose tasks are ``tasks [E]``, in the same
    order of samples.
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

    def run(self, population: Population, slots: Slots, epochs: Tensor) -> list[Fixed]:
        """Train fresh networks and score each when it has had its epochs; it goes on then, but is scored no more.

        Args:
            population: where they are trained; it is left as after the last epoch.
            slots: their seeds.
            epochs: after how many each network is scored, int64 ``[R, E]``: R times.

        Returns:
            One result for each of R; answers that are not finite count as wrong.
        """
        accuracy = self._accuracy(population, slots, epochs)
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

    def _accuracy(self, population: Population, slots: Slots, epochs: Tensor) -> Tensor:
        """Train, and measure points on the test split, ``[R, E]``."""
        present = slots.blueprint >= 0
        samples = len(self.data)
        population.reset(self.iteration, self.tasks)
        population.germinate(slots, present, self.data)
        accuracy = torch.zeros(epochs.shape, device=epochs.device)
        for epoch in range(1, int(epochs.max()) + 1):
            # The samples are in the order of the environment's step of that number.
            order = epoch_order(
                population.rng_seed,
                self.iteration,
                population.env_ids,
                epoch,
                samples,
                self.train.batch_size,
                self.train.batches_per_epoch,
            )
            population.train_epoch(slots, self.data, order + (self.tasks * samples)[:, None, None])
            due = epochs == epoch
            if due.any():
                nothing_off = torch.zeros_like(present)[None]
                answers = population.evaluate(slots, self.test.of("test"), nothing_off)
                accuracy = torch.where(
                    due, 100.0 * answers.correct[0].float().mean(dim=1), accuracy
                )
        return accuracy


def open_population(
    train: Train,
    rng_seed: int,
    runtime: Runtime,
    network: StaticNetwork,
    env_ids: Tensor,
    device: torch.device,
) -> Population:
    """Make a population of static networks, shared out to the cores.

    Args:
        train: how they are trained.
        rng_seed: seed of the run.
        runtime: how to compute.
        network: their kind.
        env_ids: global numbers of the hosts, int64 ``[E]``.
        device: where to compute.
    """
    population = Population(
        network.host,
        network.blueprints,
        env_ids,
        rng_seed,
        train.host_optimizer,
        device,
        runtime.backend,
    )
    population.group = worker_layout.hosts_together(runtime, len(env_ids), device)
    return population


# --- networks of several sizes ---------------------------------------------------------------------------------------


def static_baselines(
    params: Params, held_out: HeldOut, tasks: Tensor, device: torch.device, lengths: Sequence[int]
) -> dict[int, dict[str, Fixed]]:
    """Train every baseline on every row, as the hosts of an evaluation.

    Args:
        params: those of the run.
        held_out: the held-out tasks.
        tasks: of each row, int64 ``[E]``.
        device: where to compute.
        lengths: after how many epochs networks are scored.

    Returns:
        Results by number of epochs and name; none with ``headroom.floors: false``.
    """
    if not params.headroom.floors:
        return {length: {} for length in lengths}
    # They are trained as the hosts of the evaluation: same samples in the same order.
    train = params.train
    regime = Regime(train, held_out.train, held_out.test, tasks, EVALUATION_ITERATION)
    rows = torch.arange(len(tasks))
    results = dict[str, list[Fixed]]()
    if len(held_out.train.shape) > 1:  # tokens are no numbers
        results[LINEAR] = [linear_classifier(held_out, tasks)] * len(lengths)
    # One training serves all lengths: nothing of it depends on when it ends.
    epochs = torch.tensor(lengths, device=device)[:, None].expand(-1, len(rows)).contiguous()
    for network in _networks(train.host, regime, device):
        population = open_population(train, params.rng_seed, params.runtime, network, rows, device)
        results[network.name] = regime.run(population, network.slots, epochs)
    return {
        length: {name: of_lengths[place] for name, of_lengths in results.items()}
        for place, length in enumerate(lengths)
    }


def _networks(trained_host: Host, regime: Regime, device: torch.device) -> Iterator[StaticNetwork]:
    """Yield hosts of several sizes, and for tables all modules at once."""
    rows = len(regime.tasks)
    shape = regime.data.shape
    classes = regime.data.classes
    for name, size in sizes(trained_host.family).items():
        host = build_host(size, shape, classes)
        yield StaticNetwork(
            name, host, blueprints_of(host.family), Slots.empty(rows, host.slots, device)
        )
    if trained_host.family == TOGETHER.family:
        host = build_host(trained_host, shape, classes)
        yield StaticNetwork(TOGETHER.name, host, (TOGETHER,), filled(rows, host.slots, device))


def sizes(family: str) -> dict[str, Host]:
    """List the static networks of a sweep by name, small to large; of families without widths here, every preset."""
    if family == "cnn":
        hosts = [
            Host(family=family, preset="baseline", widths=widths, kernel_size=3)
            for widths in CNN_WIDTHS
        ]
    elif family in WIDTHS:
        hosts = [Host(family=family, preset="baseline", widths=widths) for widths in WIDTHS[family]]
    else:
        hosts = [Host(family=family, preset=preset) for preset in family_of(family).presets]
    return {
        f"static {host.family}, {list(host.widths) if host.widths else host.preset}": host
        for host in hosts
    }


def filled(rows: int, slots: int, device: torch.device) -> Slots:
    """Fill all slots with seeds of the first blueprint, which act from the first step on.

    Args:
        rows: how many hosts there are.
        slots: of a host.
        device: where to compute.
    """
    empty = Slots.empty(rows, slots, device)
    columns = {"stage": int(Stage.FOSSILIZED), "blueprint": 0, "germinations": 1, "alpha": 1.0}
    return replace(
        empty,
        **{name: torch.full_like(getattr(empty, name), value) for name, value in columns.items()},
    )


# --- a linear classifier ---------------------------------------------------------------------------------------------


def linear_classifier(held_out: HeldOut, tasks: Tensor) -> Fixed:
    """Fit multinomial logistic regression to the flattened inputs of each task; its validation split chooses the
    penalty, and FLOPs count every one that was tried. All hosts of a task share one.
    """
    by_task = {task: _fit_linear_classifier(held_out, task) for task in set(tasks.tolist())}
    accuracy, params, flops, training = zip(
        *(by_task[task] for task in tasks.tolist()), strict=True
    )
    return Fixed(
        test_accuracy_pct=accuracy,
        epochs=(0,) * len(tasks),
        params=params,
        flops_per_sample=flops,
        training_flops=training,
    )


def _fit_linear_classifier(held_out: HeldOut, task: int) -> tuple[float, int, int, int]:
    """Fit one task: test accuracy in points, parameters, FLOPs per sample and FLOPs of training."""

    def samples(data: Dataset) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        rows = slice(task * len(data), (task + 1) * len(data))
        x = data.x[rows].flatten(1).double()
        return x.cpu().numpy(), data.y[rows].cpu().numpy()

    # The test split decides nothing: validation chooses the penalty.
    train = samples(held_out.train.of("train"))
    val = samples(held_out.val.of("val"))
    test = samples(held_out.test.of("test"))
    models = list(logistic_models(*train, PENALTIES, MOST_ITERATIONS))
    best = max(models, key=lambda model: model.score(*val))  # of equals, the most penalised
    accuracy = round(100.0 * float(best.score(*test)), 4)
    weights = np.size(best.coef_)
    flops = 2 * weights
    iterations = sum(int(model.n_iter_.sum()) for model in models)
    training_flops = BACKWARD_AND_FORWARD * iterations * len(train[0]) * flops
    return accuracy, weights + np.size(best.intercept_), flops, training_flops


def logistic_models(
    x: NDArray[np.floating], y: NDArray[np.int64], strengths: Sequence[float], most_iterations: int
) -> "Iterator[LogisticRegression]":
    """Fit logistic regressions, one with each inverse strength of the L2 penalty.

    One that was stopped early is a candidate like any other: a validation split judges it.

    Args:
        x: samples ``[N, D]``.
        y: classes ``[N]``.
        strengths: inverse strengths of the penalty.
        most_iterations: of the solver.
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
    population: Population,
    regime: Regime,
    slots: Slots,
    training_flops: Tensor,
    epochs: int,
) -> list[Fixed]:
    """Train the networks that a policy ended with from the first step: for as many epochs as its episode had, and for
    as many as its FLOPs pay.

    What is left of an epoch is not trained, but one epoch is. A host without seeds is the static network.

    Args:
        population: where they are trained; it is reset.
        regime: how they are trained.
        slots: their seeds, as ``from_the_start`` gives them.
        training_flops: of the policy's episode, int64 ``[E]``.
        epochs: of the policy's episode.

    Returns:
        The results at equal epochs and at equal FLOPs.
    """
    # A policy's hosts were small at first, so its FLOPs pay fewer epochs of the network that it ended with.
    flops = population.host.flops_per_sample + population.seed_flops(slots).sum(dim=1)
    affordable = (training_flops // (regime.epoch_flops_per_flop * flops)).clamp(min=1)
    equal = torch.full_like(affordable, epochs)
    return regime.run(population, slots, torch.stack((equal, affordable)))


def from_the_start(final: Slots) -> Slots:
    """Select the seeds that are FOSSILIZED, and no others.

    The number of the germination stays: it names the stream of a seed's first weights.
    """
    fossilized = final.stage == Stage.FOSSILIZED
    empty = Slots.empty(*final.shape, device=final.stage.device)
    columns = {
        name: torch.where(fossilized, getattr(final, name), getattr(empty, name))
        for name in COLUMNS_OF_A_SEED
    }
    return replace(empty, **columns)
