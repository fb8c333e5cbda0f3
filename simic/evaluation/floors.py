"""What costs no decision: a linear classifier, and networks of several sizes that never grow.

A weak host makes any growth look good; a score stands beside what these reach on the same tasks.
"""

import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.data.batches import Dataset, HeldOut
from simic.evaluation.costs import BACKWARD_AND_FORWARD
from simic.evaluation.result import Fixed
from simic.evaluation.scoring import EVALUATION_ITERATION
from simic.evaluation.static_final import Regime
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.family import family_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.growth.networks.tables import TOGETHER
from simic.params import Host, Params
from simic.training import worker_layout

LINEAR, FINE_TUNED = "linear classifier", "full fine-tuning"
# Inverse strengths of the L2 penalty that the validation split chooses from; the grid is ours.
PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0)
MOST_ITERATIONS = 500
EVERYWHERE = "{} in every slot"  # of a blueprint
CNN_WIDTHS = ((4, 8), (8, 16), (4, 8, 16))
WIDTHS = {"mlp": ((8,), (16,), (32, 32), (64, 64, 64)), "tables": ((64, 64),)}

Samples = tuple[NDArray[np.float64], NDArray[np.int64]]  # of one split of one task: x [n, D], y [n]


def floors(
    params: Params, held_out: HeldOut, tasks: Tensor, device: torch.device, lengths: Sequence[int]
) -> dict[int, dict[str, Fixed]]:
    """By number of epochs and name, each on every row (host, task of ``tasks [E]``), trained and scored as the hosts of
    an evaluation.
    """
    found: dict[int, dict[str, Fixed]] = {length: {} for length in lengths}
    if not params.headroom.floors:
        return found
    if len(held_out.train.shape) > 1:  # tokens are no numbers
        linear = linear_floor(held_out, tasks)
        for length in lengths:
            found[length][LINEAR] = linear
    regime = Regime(params.train, held_out.train, held_out.test, tasks, EVALUATION_ITERATION)
    family = params.train.host.family
    networks = {
        name: static_network(params, regime, build_host(host, regime.data.shape, regime.data.classes), device, lengths)
        for name, host in sizes(family).items()
    }
    if family == TOGETHER.family:
        networks[TOGETHER.name] = _together(params, regime, device, lengths)
    for name, by_length in (networks | adapted(params, regime, device, lengths)).items():
        for length, each in zip(lengths, by_length, strict=True):
            found[length][name] = each
    return found


def _together(params: Params, regime: Regime, device: torch.device, lengths: Sequence[int]) -> list[Fixed]:
    """The usual host with every seed of its family from the start, in this process: it is no blueprint of theirs."""
    host, rows = build_host(params.train.host, regime.data.shape, regime.data.classes), len(regime.tasks)
    runtime, optimizer = params.runtime, params.train.host_optimizer
    ids = torch.arange(rows)
    population = Population(host, (TOGETHER,), ids, params.rng_seed, optimizer, device, runtime.backend)
    return regime.run(population, _filled(rows, host, device, 0), _epochs(rows, lengths, device))


def adapted(params: Params, regime: Regime, device: torch.device, lengths: Sequence[int]) -> dict[str, list[Fixed]]:
    """Of a trained host that came with the data: all of it trained on, and frozen with a seed of one blueprint in every
    slot, of each that the budget allows so often.
    """
    if regime.data.host is None:
        return {}
    host = build_host(params.train.host, regime.data.shape, regime.data.classes, regime.data.host)
    found = {FINE_TUNED: static_network(params, regime, replace(host, frozen=False), device, lengths)}
    for kind, item in enumerate(blueprints_of(host.family)):
        if sum(item.params(shape) for shape in host.seed_shapes) <= params.train.lifecycle.param_budget * host.params:
            found[EVERYWHERE.format(item.name)] = static_network(params, regime, host, device, lengths, kind)
    return found


def linear_floor(held_out: HeldOut, tasks: Tensor) -> Fixed:
    """Multinomial logistic regression on the flattened inputs of each task, fitted to its training split; the penalty
    is chosen on its validation split, and FLOPs count every one that was tried. All hosts of a task share one.
    """
    splits = held_out.train, held_out.val, held_out.test
    by_task = {task: _fitted(*(_samples(split, task) for split in splits)) for task in set(tasks.tolist())}
    accuracy, params, flops, training = zip(*(by_task[task] for task in tasks.tolist()), strict=True)
    return Fixed(
        test_accuracy_pct=accuracy,
        epochs=(0,) * len(tasks),
        params=params,
        flops_per_sample=flops,
        training_flops=training,
    )


def _samples(data: Dataset, task: int) -> Samples:
    rows = slice(task * len(data), (task + 1) * len(data))
    return data.x[rows].flatten(1).double().cpu().numpy(), data.y[rows].cpu().numpy()


def _fitted(train: Samples, val: Samples, test: Samples) -> tuple[float, int, int, int]:
    """Test accuracy in points, parameters, FLOPs per sample and FLOPs of training."""
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
        found.append((model.score(*val), model))
    _, best = max(found, key=lambda each: each[0])  # of equals, the most penalised
    flops = 2 * best.coef_.size
    training = BACKWARD_AND_FORWARD * iterations * len(train[0]) * flops
    accuracy = round(100.0 * float(best.score(*test)), 4)
    return accuracy, best.coef_.size + best.intercept_.size, flops, training


def sizes(family: str) -> dict[str, Host]:
    """The static networks of a sweep by name, small to large; of families without widths here, every preset."""
    if family in ("cnn", "adapted_cnn"):
        hosts = [Host(family=family, preset="baseline", widths=widths, kernel_size=3) for widths in CNN_WIDTHS]
    elif family in WIDTHS:
        hosts = [Host(family=family, preset="baseline", widths=widths) for widths in WIDTHS[family]]
    else:
        hosts = [Host(family=family, preset=preset) for preset in family_of(family).presets]
    return {f"static {host.family}, {list(host.widths) if host.widths else host.preset}": host for host in hosts}


def static_network(
    params: Params,
    regime: Regime,
    host: HostSpec,
    device: torch.device,
    lengths: Sequence[int],
    kind: int | None = None,
) -> list[Fixed]:
    """That network on every row, after each of so many epochs of one training. ``kind``: the blueprint of a seed in
    every slot, from the start.
    """
    rows = len(regime.tasks)
    slots = Slots.empty(rows, host.slots, device) if kind is None else _filled(rows, host, device, kind)
    runtime, optimizer = params.runtime, params.train.host_optimizer
    compose = worker_layout.population(runtime, worker_layout.layout(runtime, rows, device))
    kinds, ids = blueprints_of(host.family), torch.arange(rows)
    with closing(compose(host, kinds, ids, params.rng_seed, optimizer, device, runtime.backend)) as population:
        return regime.run(population, slots, _epochs(rows, lengths, device))


def _filled(rows: int, host: HostSpec, device: torch.device, kind: int) -> Slots:
    """A seed of that blueprint in every slot, from the start."""
    slots = Slots.empty(rows, host.slots, device)
    columns = {"stage": int(Stage.FOSSILIZED), "blueprint": kind, "germinations": 1, "alpha": 1.0}
    return replace(slots, **{name: torch.full_like(getattr(slots, name), value) for name, value in columns.items()})


def _epochs(rows: int, lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(lengths, device=device)[:, None].expand(-1, rows).contiguous()
