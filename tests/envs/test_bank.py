"""Many tasks side by side: a host sees its own and nothing of the others."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from tests.growth.worlds import small
from tests.standard import HostOptimizer, PPOParams, Train

from .conftest import QUICK
from .transitions import random_step

CLASSES = (4, 2, 4, 3)  # of each task
TRAINING, VALIDATION = 96, 48  # samples of each task
STEPS = 7


def task(number: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Which of the first bands of two rows is the brightest; other samples for another seed."""
    draw = torch.Generator().manual_seed(1000 * seed + number)
    x = torch.randn(samples, 1, 8, 8, generator=draw)
    return x, x.view(samples, 4, 16).mean(2)[:, : CLASSES[number]].argmax(1)


def bank(seeds: Iterable[int] = (0, 0, 0, 0), tasks: Iterable[int] = range(4)) -> tuple[Dataset, Dataset]:
    """Training and validation samples; a seed for each task."""
    found = []
    for samples, offset in ((TRAINING, 1), (VALIDATION, 2)):
        parts = [task(number, samples, 3 * seed + offset) for number, seed in zip(tasks, seeds, strict=True)]
        x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        found.append(Dataset(x, y, 4, tuple(CLASSES[number] for number in tasks)))
    return found[0], found[1]


def make(data: tuple[Dataset, Dataset], ids: list[int], backend: str = "loop", **keywords) -> GrowthEnv:
    optimizer, envs = keywords.pop("host_optimizer", HostOptimizer()), keywords.pop("of", len(ids))
    train = Train(
        host=small(keywords.pop("family", "cnn")), envs=envs, episode_steps=STEPS, batch_size=16,
        batches_per_epoch=2, lifecycle=QUICK, host_optimizer=optimizer, ppo=PPOParams(minibatches=1),
    )  # fmt: skip
    return GrowthEnv(train, 7, *data, torch.tensor(ids), "cpu", backend, **keywords)


def episode(env: GrowthEnv, tasks: list[int] | None) -> list[dict[str, Tensor]]:
    """All there is to see of every host under random legal actions; last, its parameters."""
    options = {"iteration": 3} | ({} if tasks is None else {"tasks": torch.tensor(tasks)})
    seen, _ = env.reset(options=options)
    found = []
    for _ in range(env.steps):
        seen, told = random_step(env, seen)
        found.append(told)
    for row in range(env.num_envs):
        parameters = env.population.named_parameters(env.slots, row)
        found[-1] |= {f"{name} of {row}": value[None] for name, value in parameters.items()}
    return found


def of(played: list[dict[str, Tensor]], row: int) -> list[bytes]:
    """One host, byte for byte."""
    found = []
    for step in played:
        for name, values in sorted(step.items()):
            own = name.rpartition(" of ")
            if not own[1]:
                found.append(values[row].numpy().tobytes())
            elif own[2] == str(row):
                found.append(own[0].encode() + values.numpy().tobytes())
    return found


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("family", ["cnn", "mlp"])
def test_samples_of_other_tasks_change_no_bit_of_a_host(family, backend):
    tasks = [0, 1, 2, 3, 1, 0]
    before = episode(make(bank(), list(range(6)), backend, family=family), tasks)
    after = episode(make(bank(seeds=(9, 0, 9, 9)), list(range(6)), backend, family=family), tasks)
    assert [of(before, row) == of(after, row) for row in range(6)] == [number == 1 for number in tasks]


def test_a_host_plays_alike_in_any_company_on_any_tasks():
    mine = episode(make(bank(), [0, 1, 2, 3]), [0, 1, 2, 3])
    others = episode(make(bank(), [8, 1, 5, 6]), [3, 1, 0, 0])
    assert of(mine, 1) == of(others, 1) and of(mine, 0) != of(others, 0)
    for ids, tasks in (([1], [1]), ([7, 2, 9, 4, 0, 1], [0, 2, 1, 3, 1, 1])):
        assert of(episode(make(bank(), ids), tasks), len(ids) - 1) == of(mine, 1)


def test_tasks_are_those_of_training_in_turn_within_and_across_iterations():
    env = make(bank(), list(range(64)), train_tasks=3)
    firsts = set()
    for env.rng_seed in range(40):
        drawn = []
        for env.iteration in range(3):
            drawn.append(env._drawn_tasks())
        table = torch.cat(drawn)
        assert torch.equal(table, (table[0] + torch.arange(3 * 64)) % 3)
        firsts.add(int(table[0]))
    assert firsts == {0, 1, 2}
