"""What holds on a GPU: the same numbers as on the CPU, the same bits twice, few waits. Without one the CPU takes its
place, so that all but the last test run everywhere.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Slots
from simic.growth.networks.blueprints import blueprints_of
from simic.params import HostOptimizer, Runtime, Train
from simic.training import machine

from ..worlds import DATA, FAMILIES, make_host, make_order, make_population, mixed_slots, parameters

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def deterministic():
    """As a run sets it."""
    before = torch.are_deterministic_algorithms_enabled()
    machine.configure(Runtime(device=DEVICE.type, threads=1))
    yield
    torch.use_deterministic_algorithms(before)


def on_device(data: Dataset) -> Dataset:
    return Dataset(data.x.to(DEVICE), data.y.to(DEVICE), data.classes)


def twin(family: str, envs: int) -> tuple[Population, Slots]:
    """The population of ``make_population`` with the seeds of ``mixed_slots``, moved."""
    near = make_population(family, envs)
    slots = mixed_slots(near)
    far = Population(make_host(family), blueprints_of(family), torch.arange(envs), 3, HostOptimizer(), DEVICE)
    far.reset(0)
    moved = Slots(**{name: value.to(DEVICE) for name, value in vars(slots).items()})
    far.germinate(moved, moved.germinations > 0)
    far.load_state_dict(near.state_dict())
    return far, moved


@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_steps_give_the_parameters_of_the_cpu(family: str) -> None:
    near, (far, moved) = make_population(family, 12), twin(family, 12)
    slots, order = mixed_slots(near), make_order(12, 20, 16)
    near.train_epoch(slots, DATA[family], order)
    far.train_epoch(moved, on_device(DATA[family]), order.to(DEVICE))
    for name, value in parameters(near).items():
        torch.testing.assert_close(parameters(far)[name].cpu(), value, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_epoch_gives_the_same_bits(family: str) -> None:
    ends = []
    for _ in range(2):
        far, moved = twin(family, 12)
        far.train_epoch(moved, on_device(DATA[family]), make_order(12, 5, 16).to(DEVICE))
        ends.append(parameters(far))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("family", ["cnn", "mlp"])
def test_a_step_waits_for_the_device_twice(family: str) -> None:
    data = on_device(DATA[family])
    host = {"family": family, "preset": "baseline"}
    train = Train(envs=16, episode_steps=4, batch_size=32, host=host, batches_per_epoch=2)
    env = GrowthEnv(train, 7, data, data, device=DEVICE)
    env.reset()
    wait = torch.zeros(16, len(env.action_spec.heads), dtype=torch.int64, device=DEVICE)
    env.step(wait)  # what is built at first use may wait
    with waits() as seen:
        env.step(wait)
    assert len(seen) == (2 if DEVICE.type == "cuda" else 0)


@contextmanager
def waits() -> Iterator[list[str]]:
    """What CUDA's debug mode says of each wait; nothing on a CPU."""
    found: list[str] = []
    gpu = DEVICE.type == "cuda"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if gpu:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if gpu:
                torch.cuda.set_sync_debug_mode("default")
    found += [str(each.message) for each in seen if "synchronizing" in str(each.message)]


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
def test_memory_that_runs_out_halves_the_group() -> None:
    far, moved = twin("cnn", 12)
    held, limit = torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory, 2**21
    torch.cuda.set_per_process_memory_fraction(held + limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        far.train_epoch(moved, on_device(DATA["cnn"]), make_order(12, 2, 96).to(DEVICE))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert far.group < 12
