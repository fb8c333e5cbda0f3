"""Compiled hosts for tables against the plain pass, which other tests hold to networks under torch.optim."""

from dataclasses import replace

import pytest
import torch

from simic.errors import SimicError
from simic.growth.batch.arena import Rows
from simic.growth.batch.compiled import CompiledHosts
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import HostOptimizer

from ..worlds import (
    DATA,
    make_order,
    make_population,
    make_table,
    mixed_slots,
    parameters,
    population_of,
    small,
)

ENVS = 3 * len(blueprints_of("tables"))
SAMPLES = 96
# Of hosts and seeds apart, and clipped: no number may stand in for another.
OPTIMIZER = HostOptimizer(weight_decay=0.5, seed_weight_decay=0.1, max_grad_norm=0.4)


@pytest.fixture
def tasks(monkeypatch) -> torch.Tensor:
    """Which task each host has: the odd ones have fewer classes."""
    monkeypatch.setitem(DATA, "tables", make_table(tasks=2, samples=SAMPLES))
    return torch.arange(ENVS) % 2


def grown(
    backend: str, tasks: torch.Tensor, full: bool, preset: str = "baseline"
) -> tuple[Population, Slots]:
    """Hosts with seeds of every blueprint that add; ``full``: all at alpha 1, as by default, else in every stage."""
    params = small("tables").model_copy(update={"preset": preset})
    host = build_host(params, DATA["tables"].shape, DATA["tables"].classes)
    population = population_of(host, ENVS, backend, tasks=tasks, optimizer=OPTIMIZER)
    slots = mixed_slots(population)
    slots = replace(slots, operator=torch.zeros_like(slots.operator))
    # Other ones beside each other in a host.
    kinds = torch.arange(ENVS)[:, None] + 3 * torch.arange(host.slots)
    kinds = kinds % len(population.blueprints)
    slots = replace(slots, blueprint=torch.where(slots.stage > 0, kinds, -1))
    if full:
        live = slots.stage > 0
        slots = replace(
            slots,
            stage=torch.where(live, int(Stage.HOLDING), slots.stage),
            alpha=live.float(),
        )
    population.germinate(slots, slots.stage > 0, DATA["tables"])
    return population, slots


@pytest.mark.parametrize("preset", ["baseline", "triple"])
@pytest.mark.parametrize("full", [True, False])
def test_an_epoch_and_its_evaluation_equal_the_plain_ones(
    tasks, full: bool, preset: str, monkeypatch
) -> None:
    order = make_order(ENVS, 3, 16) + SAMPLES * tasks[:, None, None]
    measured = {}
    for backend in ("vmap", "auto"):
        population, slots = grown(backend, tasks, full, preset)
        # All seeds, some of them, and others.
        places = torch.arange(ENVS)[:, None] + torch.arange(population.host.slots)
        off = torch.stack(
            (torch.zeros_like(places, dtype=torch.bool), places % 3 > 0, places % 2 > 0)
        )
        stats = [population.train_epoch(slots, DATA["tables"], order) for _ in range(2)]
        answers = population.evaluate(slots, DATA["tables"], off)
        measured[backend] = (*map(vars, stats), vars(answers), parameters(population))
    for plain, compiled in zip(*measured.values(), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=2e-3, atol=2e-4, equal_nan=True)
    # It was the compiled loops that ran.
    monkeypatch.setattr(CompiledHosts, "train", None)
    with pytest.raises(TypeError):
        population.train_epoch(slots, DATA["tables"], order)


def test_a_host_is_the_same_in_any_company(tasks) -> None:
    """Bit for bit: how hosts are shared out to processes changes nothing."""
    order = make_order(ENVS, 3, 16) + SAMPLES * tasks[:, None, None]
    off = torch.zeros(1, ENVS, 1, dtype=torch.bool)
    population, slots = grown("auto", tasks, full=False)
    few = torch.arange(1, ENVS, 5)
    start = {name: store.clone() for name, store in population._stores.items()}
    stats = population.train_epoch(slots, DATA["tables"], order)
    answers = population.evaluate(slots, DATA["tables"], off)

    # The same hosts without most of the others.
    smaller = make_population("tables", len(few), "auto", tasks=tasks[few], optimizer=OPTIMIZER)
    smaller._stores = {
        name: Rows({key: tensor[few] for key, tensor in store.tensors.items()})
        for name, store in start.items()
    }
    of_few = Slots(**{name: column[few] for name, column in vars(slots).items()})
    stats_of_few = smaller.train_epoch(of_few, DATA["tables"], order[few])
    answers_of_few = smaller.evaluate(of_few, DATA["tables"], off[:, few])
    for name, column in vars(stats_of_few).items():
        torch.testing.assert_close(
            column, getattr(stats, name)[few], rtol=0, atol=0, equal_nan=True
        )
    assert torch.equal(answers_of_few.loss, answers.loss[:, few])
    assert torch.equal(answers_of_few.correct, answers.correct[:, few])
    assert torch.equal(smaller._stores["host"].param, population._stores["host"].param[few])


def test_seeds_that_do_not_add_run_beside_the_others(tasks) -> None:
    """They go the plain way, and every host keeps its place."""
    order = make_order(ENVS, 2, 16) + SAMPLES * tasks[:, None, None]
    off = torch.zeros(1, ENVS, 1, dtype=torch.bool)
    measured = {}
    for backend in ("vmap", "auto"):
        population, slots = grown(backend, tasks, full=True)
        multiplies = torch.arange(ENVS)[:, None] % 2 == 1
        slots = replace(slots, operator=torch.where(multiplies, int(Blend.MULTIPLY), 0))
        stats = population.train_epoch(slots, DATA["tables"], order)
        answers = population.evaluate(slots, DATA["tables"], off)
        measured[backend] = vars(stats), vars(answers)
    for plain, compiled in zip(*measured.values(), strict=True):
        torch.testing.assert_close(compiled, plain, rtol=2e-3, atol=2e-4, equal_nan=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_host_with_a_non_finite_logit_is_never_right_and_reaches_nobody(
    tasks, value: float
) -> None:
    results = []
    for broken in (False, True):
        population, slots = grown("auto", tasks, full=True)
        if broken:
            population._stores["host"].param[0, -1] = value  # the bias of the last class
        stats = population.train_epoch(
            slots, DATA["tables"], make_order(ENVS, 1, 16) + SAMPLES * tasks[:, None, None]
        )
        off = torch.zeros(1, ENVS, 1, dtype=torch.bool)
        results.append((stats, population.evaluate(slots, DATA["tables"], off)))
    (_, answers), (stats, broken_answers) = results
    assert not stats.finite[0] and not broken_answers.correct[0, 0].any()
    assert stats.finite[1:].all()
    assert torch.equal(answers.correct[:, 1:], broken_answers.correct[:, 1:])


def test_of_equal_classes_the_first_is_the_answer(tasks) -> None:
    population, slots = grown("auto", tasks, full=True)
    for store in population._stores.values():
        store.param.zero_()
    data = DATA["tables"]
    answers = population.evaluate(slots, data, torch.zeros(1, ENVS, 1, dtype=torch.bool))
    assert torch.equal(answers.correct[0], data.y.view(2, SAMPLES)[tasks] == 0)


@pytest.mark.parametrize("label", [-1, 9])
def test_a_label_beyond_the_classes_is_refused(tasks, label: int) -> None:
    """The loops have no bounds: it would be written somewhere."""
    population, slots = grown("auto", tasks, full=True)
    data = DATA["tables"]
    labels = data.y.clone()
    labels[5] = label
    off = torch.zeros(1, ENVS, 1, dtype=torch.bool)
    with pytest.raises(SimicError, match=f"labels .*{label}"):
        population.evaluate(slots, replace(data, y=labels), off)
