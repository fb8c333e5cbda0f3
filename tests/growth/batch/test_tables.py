"""Hosts for tables go in parts with like seeds: the same numbers as one by one, of any task and in any company."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from simic.data.batches import Dataset
from simic.growth.batch.population import ALIKE_HOSTS, Population
from simic.growth.export import grown_network, load_grown, write_network
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Host, HostOptimizer
from tests import standard

from ..worlds import DATA, make_order, make_population, make_table, mixed_slots, one_seed, population_of

KINDS = blueprints_of("tables")
ADAMW = standard.HostOptimizer(name="adamw", learning_rate=1e-3, weight_decay=0.02, seed_weight_decay=0.02)
SGD = standard.HostOptimizer()
TASKS = make_table(tasks=4, samples=40, seed=3)
HOSTS = 2 * ALIKE_HOSTS + 10  # three parts


def every_blueprint(population: Population, stage: Stage, operator: Blend, alpha: float) -> Slots:
    """Of seeds in one stage by one operator, of three ages, the blueprints in turn."""
    kinds = torch.arange(len(population)) % len(KINDS)
    slots = one_seed(population, stage, kinds, operator, alpha)
    return replace(slots, age=1 + torch.arange(len(population))[:, None] % 3)


def off(population: Population) -> Tensor:
    """Everything as it is, and without the seed."""
    return torch.stack([torch.full((len(population), 1), flag) for flag in (False, True)])


def several_tasks(hosts: int, backend: str, optimizer: HostOptimizer = ADAMW) -> Population:
    host = build_host(Host(family="tables", preset="baseline", widths=(8, 8)), TASKS.shape, TASKS.classes)
    return population_of(host, hosts, backend, optimizer, tasks=torch.arange(hosts) % TASKS.tasks)


def order_of(population: Population, data: Dataset, batches: int = 3, batch: int = 16) -> Tensor:
    own = make_order(len(population), batches, batch, len(data))
    return own + (population.tasks * len(data))[:, None, None]


# --- the same numbers as something slower ---


def test_parts_of_like_hosts_give_each_host_its_own_task_order_and_answers() -> None:
    """More hosts than a part holds, of tasks with different classes, against the loop."""
    found = []
    for backend in ("vmap", "loop"):
        population = several_tasks(HOSTS, backend)
        slots = mixed_slots_of_tasks(population)
        stats = population.train_epoch(slots, TASKS, order_of(population, TASKS))
        found.append((population.state_dict(), stats, population.evaluate(slots, TASKS, off(population))))
    (mine, stats, answers), (theirs, expected, said) = found
    for name, tensor in theirs.items():
        if name.endswith("/param"):
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=1e-4, msg=name)
    for name in ("loss", "accuracy", "host_grad_norm", "seed_grad_norm"):
        ours, loops = getattr(stats, name), getattr(expected, name)
        torch.testing.assert_close(ours, loops, rtol=1e-3, atol=1e-4, equal_nan=True, msg=name)
    torch.testing.assert_close(answers.loss, said.loss, rtol=1e-4, atol=1e-4)
    assert (answers.correct != said.correct).float().mean() < 1e-3
    assert len(answers.loss[0].unique()) > 0.9 * HOSTS, "hosts that answer alike would hide a wrong place"


def mixed_slots_of_tasks(population: Population, seed: int = 0) -> Slots:
    """As ``mixed_slots``, fitted to the several tasks."""
    tasks, population.tasks = population.tasks, torch.zeros_like(population.tasks)
    slots = mixed_slots(population, seed)
    population.tasks = tasks
    population.germinate(slots, slots.stage > 0, TASKS)
    return slots


# --- germination ---


@pytest.mark.parametrize("operator", list(Blend))
@pytest.mark.parametrize(
    ("stage", "alpha"), [(Stage.GERMINATED, 0.0), (Stage.TRAINING, 0.0), (Stage.BLENDING, 0.6), (Stage.HOLDING, 1.0)]
)
def test_germination_changes_no_answer(stage: Stage, alpha: float, operator: Blend) -> None:
    """Not even of a seed that acts at once, at full strength: its matrix starts at zero."""
    population = make_population("tables", len(KINDS))
    bare = population.evaluate(Slots.empty(len(KINDS), 1), DATA["tables"], off(population)[:1])
    slots = every_blueprint(population, stage, operator, alpha)
    with_seed = population.evaluate(slots, DATA["tables"], off(population)[:1])
    assert torch.equal(with_seed.loss, bare.loss) and torch.equal(with_seed.correct, bare.correct)


# --- what leaves the population ---


@pytest.mark.parametrize("item", KINDS, ids=lambda item: item.name)
def test_an_exported_network_gives_the_committed_answers_on_raw_rows(item, tmp_path) -> None:
    """As a plain module and as a program that needs torch alone; the rows as they come, seen by host and seed."""
    population = make_population("tables", 2, optimizer=standard.HostOptimizer(name="adamw", learning_rate=0.03))
    slots = one_seed(population, Stage.FOSSILIZED, KINDS.index(item), alpha=1.0)
    population.train_epoch(slots, DATA["tables"], make_order(2, 30, 16))
    network = grown_network(population, slots, 1, committed=True)
    path = write_network(network, tmp_path / "grown", [], "# A network\n")
    unseen = make_table(seed=8)
    answers = population.evaluate(slots, unseen, off(population)[:1])
    bare = population.evaluate(slots, unseen, off(population)[1:])
    programs = network, load_grown(path), torch.export.load(path / "network.pt2").module()
    for program in programs:
        with torch.no_grad():
            logits = program(unseen.x)
            few = torch.cat([program(unseen.x[row : row + 1]) for row in range(3)])
        torch.testing.assert_close(few, logits[:3], rtol=1e-5, atol=1e-5)
        loss = nn.functional.cross_entropy(logits, unseen.y)
        assert loss.item() == pytest.approx(answers.loss[0, 1].item(), abs=1e-5)
        assert (logits.argmax(1) == unseen.y).float().mean() == answers.correct[0, 1].float().mean()
    assert abs(answers.loss[0, 1] - bare.loss[0, 1]) > 1e-3, "a seed that does nothing would show nothing"
    assert network.structure.params == population.host.params + int(population.seed_params(slots)[1])
