"""The fused epoch of hosts for tables against the plain pass, which other tests hold to networks under torch.optim."""

from dataclasses import replace

import pytest
import torch

from simic.growth.batch import fused
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of

from ..worlds import DATA, make_order, make_population, make_table, mixed_slots, parameters

ENVS = 3 * len(blueprints_of("tables"))
SAMPLES = 96


@pytest.fixture
def tasks(monkeypatch) -> torch.Tensor:
    """Which task each host has: the odd ones have fewer classes."""
    monkeypatch.setitem(DATA, "tables", make_table(tasks=2, samples=SAMPLES))
    return torch.arange(ENVS) % 2


def grown(backend: str, tasks: torch.Tensor, full: bool) -> tuple[Population, Slots]:
    """Hosts with seeds of every blueprint that add; ``full``: all at alpha 1, as by default, else in every stage."""
    population = make_population("tables", ENVS, backend, tasks=tasks)
    slots = replace(mixed_slots(population), operator=torch.zeros(ENVS, 1, dtype=torch.int64))
    kinds = torch.arange(ENVS)[:, None] % len(population.blueprints)
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


@pytest.mark.parametrize("at_once", [fused.MOST_NUMBERS, 1])
@pytest.mark.parametrize("full", [True, False])
def test_an_epoch_and_its_evaluation_equal_the_plain_ones(
    tasks, full: bool, at_once: int, monkeypatch
) -> None:
    """With all samples at once, and with few."""
    monkeypatch.setattr(fused, "MOST_NUMBERS", at_once)
    order = make_order(ENVS, 3, 16) + SAMPLES * tasks[:, None, None]
    off = torch.stack((torch.zeros(ENVS, 1, dtype=torch.bool), torch.arange(ENVS)[:, None] % 3 > 0))
    measured = {}
    for backend in ("vmap", "auto"):
        population, slots = grown(backend, tasks, full)
        stats = [population.train_epoch(slots, DATA["tables"], order) for _ in range(2)]
        answers = population.evaluate(slots, DATA["tables"], off)
        measured[backend] = (*map(vars, stats), vars(answers), parameters(population))
    for plain, of_fused in zip(*measured.values(), strict=True):
        torch.testing.assert_close(of_fused, plain, rtol=2e-3, atol=2e-4, equal_nan=True)
    # It was the fused pass that ran.
    monkeypatch.setattr(fused, "train", None)
    with pytest.raises(TypeError):
        population.train_epoch(slots, DATA["tables"], order)


def test_seeds_that_do_not_add_run_plainly(tasks, monkeypatch) -> None:
    monkeypatch.setattr(fused, "train", None)
    monkeypatch.setattr(fused, "evaluate", None)
    population, slots = grown("auto", tasks, full=True)
    slots = replace(slots, operator=torch.full_like(slots.operator, int(Blend.MULTIPLY)))
    population.train_epoch(slots, DATA["tables"], make_order(ENVS, 1, 16))
    population.evaluate(slots, DATA["tables"], torch.zeros(1, ENVS, 1, dtype=torch.bool))


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


def test_of_equal_classes_the_first_is_the_answer() -> None:
    logits = torch.tensor([[[1.0, 0.0, 2.0], [1.0, 3.0, 2.0], [0.0, 3.0, 2.0]]])
    for answer, right in ((0, [True, False, True]), (1, [False, True, False]), (2, [False] * 3)):
        _, correct = fused._scores(logits, torch.full((1, 3), answer))
        assert correct[0].tolist() == right
