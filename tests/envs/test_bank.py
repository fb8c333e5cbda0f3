"""Many tasks side by side: a host sees its own and nothing of the others."""

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from simic.data.batches import Dataset
from simic.envs import rewards
from simic.envs.growth_env import GrowthEnv
from tests.growth.worlds import small
from tests.standard import HostOptimizer, PPOParams, Train

from .conftest import QUICK
from .transitions import SETTING, random_step, transition

CLASSES = (4, 2, 4, 3)  # of each task
TRAINING, VALIDATION = 96, 48  # samples of each task
BACKENDS = ("loop", "vmap")
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


@pytest.mark.parametrize("backend", BACKENDS)
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bank_of_one_task_is_a_data_set(backend):
    """And so is the first task of a larger bank, if it has all classes."""
    alone = bank(seeds=(0,), tasks=(0,))
    plain = tuple(Dataset(data.x, data.y, data.classes) for data in alone)
    expected = episode(make(plain, [0, 1, 2], backend), None)
    wide = tuple(replace(data, task_classes=(4, 4, 4, 4)) for data in bank())
    for data, tasks in ((alone, None), (wide, [0, 0, 0])):
        found = episode(make(data, [0, 1, 2], backend), tasks)
        assert all(of(found, row) == of(expected, row) for row in range(3))


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


# --- tasks of several numbers of classes ---


def test_the_loss_is_rewarded_in_units_of_the_own_chance(make_slots):
    """Two hosts together are paid what each is paid alone."""
    chances = torch.tensor([math.log(10), math.log(2)], dtype=torch.float64)

    def paid(chances: Tensor, losses: list[float]) -> dict[str, Tensor]:
        setting, loss = replace(SETTING, chance_loss=chances), torch.tensor(losses)
        slots = make_slots([[0]] * len(losses))
        ledgers = rewards.start("loss", slots, loss + 0.1, setting)
        step = transition(slots, slots, loss=loss, committed_loss=loss, ended=True, terminal=True, ledgers=ledgers)
        return rewards.components("loss", step, setting)

    together = paid(chances, [0.5, 0.5])
    for row in range(2):
        alone = paid(chances[row : row + 1], [0.5])
        assert all(torch.equal(value[row : row + 1], alone[name]) for name, value in together.items())
    assert together["loss_improvement"][0] != together["loss_improvement"][1]
    assert together["loss_terminal"][0] > together["loss_terminal"][1]
