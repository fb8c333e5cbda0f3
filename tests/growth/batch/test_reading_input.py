"""Seeds that read the sample: what a host learns does not depend on how its neighbours' seeds join."""

import torch

from simic.data.batches import Dataset
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Host, HostOptimizer

from ..worlds import generator, make_order

ALPHA = 0.5


def trained(operators: list[Blend], backend: str) -> torch.Tensor:
    """Parameters of the first host after an epoch, with a seed in BLENDING in every host."""
    x = torch.randn(64, 1, 1, 6, generator=generator(0))
    data, envs = Dataset(x, (x[:, 0, 0, 0] > 0).long(), 2), len(operators)
    host = build_host(Host(family="tables", preset="baseline"), (1, 1, 6), 2)
    population = Population(host, blueprints_of("tables"), torch.arange(envs), 3, HostOptimizer(), "cpu", backend)
    population.reset(0)
    empty = Slots.empty(envs, 1).state_dict()
    mine = {"stage": int(Stage.BLENDING), "blueprint": 0, "alpha": ALPHA, "germinations": 1}
    state = {name: torch.full_like(values, mine.get(name, 0)) for name, values in empty.items()}
    slots = Slots(**{**state, "operator": torch.tensor([[int(each)] for each in operators])})
    population.germinate(slots, slots.stage > 0, data)
    population.train_epoch(slots, data, make_order(envs, 3, 16, 64)[:1].expand(envs, -1, -1))
    return population.snapshot().stores["host"].param[0]


def test_a_blending_seed_leaves_the_gradient_of_its_host_as_it_is() -> None:
    alone = trained([Blend.ADD], "vmap")
    for operators in ([Blend.ADD, Blend.ADD], [Blend.ADD, Blend.MULTIPLY], [Blend.ADD, Blend.GATE]):
        for backend in ("vmap", "loop"):
            torch.testing.assert_close(trained(operators, backend), alone, rtol=1e-5, atol=1e-6)


def test_what_is_computed_once_for_all_rows_is_no_part_of_a_rows_flops() -> None:
    """12 columns, 32 units: of 144 features and of 12, a product with B; the mean's product is one for all rows."""
    flops = {item.name: item.flops((12, 32)) for item in blueprints_of("tables")}
    assert (flops["bins"], flops["sort"]) == (2 * 144 * 32, 2 * 12 * 32)
