"""What holds on a GPU: the same numbers as on the CPU, the same bits twice, groups where memory runs out. Without one
the CPU takes its place, so that all but the last test run everywhere (waits: tests/envs/test_simulated_device.py).
"""

import pytest
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.growth.batch.groups import Integers
from simic.growth.batch.population import Population, TrainStats
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Runtime
from simic.training import machine
from tests.standard import HostOptimizer

from ..worlds import (
    DATA,
    FAMILIES,
    make_host,
    make_order,
    make_population,
    mixed_slots,
    parameters,
    stored,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TRIED = pytest.mark.parametrize("family", FAMILIES if DEVICE.type == "cuda" else ("mlp",))


@pytest.fixture(autouse=True)
def deterministic():
    """As a run sets it."""
    before = torch.are_deterministic_algorithms_enabled()
    machine.configure(Runtime(device=DEVICE.type, threads=1))
    yield
    torch.use_deterministic_algorithms(before)


def twin(family: str, envs: int) -> tuple[Population, Slots, Dataset]:
    """The population of ``make_population`` with the seeds of ``mixed_slots``, and its data, moved."""
    near = make_population(family, envs)
    slots = mixed_slots(near)
    far = Population(
        make_host(family), blueprints_of(family), torch.arange(envs), 3, HostOptimizer(), DEVICE
    )
    far.reset(0)
    moved = Slots(**{name: value.to(DEVICE) for name, value in vars(slots).items()})
    far.germinate(moved, moved.germinations > 0, DATA[family])
    for name, store in near._stores.items():
        for part, tensor in store.tensors.items():
            far._stores[name].tensors[part].copy_(tensor)
    data = DATA[family]
    return far, moved, Dataset(data.x.to(DEVICE), data.y.to(DEVICE), data.classes)


@TRIED
def test_an_epoch_gives_the_same_bits_twice_and_the_parameters_of_the_cpu(family: str) -> None:
    order = make_order(12, 8, 16)
    ends = []
    for _ in range(2):
        far, moved, data = twin(family, 12)
        far.train_epoch(moved, data, order.to(DEVICE))
        ends.append(parameters(far))
    near = make_population(family, 12)
    near.train_epoch(mixed_slots(near), DATA[family], order)
    for name, value in parameters(near).items():
        assert torch.equal(ends[0][name], ends[1][name]), name
        torch.testing.assert_close(ends[0][name].cpu(), value, atol=1e-4, rtol=1e-4)


# --- groups where memory does not hold all hosts at once ---


class Full(Population):
    """Memory for ``room`` hosts at once: a mock, since the CPU's allocator raises no such error."""

    room = 3
    refused = 0

    def _train(self, hosts: Integers, *arguments: object) -> TrainStats:
        self._ask(hosts)
        return super()._train(hosts, *arguments)  # pyright: ignore[reportArgumentType]

    def _evaluate(self, hosts: Integers, *arguments: object) -> tuple[Tensor, Tensor]:
        self._ask(hosts)
        return super()._evaluate(hosts, *arguments)  # pyright: ignore[reportArgumentType]

    def _ask(self, hosts: Integers) -> None:
        if len(hosts) > self.room:
            self.refused += 1
            raise torch.OutOfMemoryError


def test_without_memory_for_all_hosts_they_run_in_groups() -> None:
    roomy = make_population("cnn", 8, backend="loop")
    full = make_population("cnn", 8, backend="loop", kind=Full)
    slots = mixed_slots(roomy)
    order = make_order(8, 3, 16)
    data = DATA["cnn"]
    mixed_slots(full)
    stats, grouped_stats = (
        population.train_epoch(slots, data, order) for population in (roomy, full)
    )
    assert (full.group, full.refused) == (2, 2)  # 8, then 4
    for name, value in vars(stats).items():
        assert torch.equal(value.nan_to_num(-1), getattr(grouped_stats, name).nan_to_num(-1)), name
    off = torch.zeros(1, len(roomy), roomy.host.slots, dtype=torch.bool)
    first = roomy.evaluate(slots, data, off)
    second = full.evaluate(slots, data, off)
    assert torch.equal(first.correct, second.correct) and torch.equal(first.loss, second.loss)
    assert full.refused == 2
    full_rows = stored(full._stores)
    roomy_rows = stored(roomy._stores)
    assert all(torch.equal(tensor, roomy_rows[name]) for name, tensor in full_rows.items())
