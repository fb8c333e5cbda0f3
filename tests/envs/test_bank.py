"""Many tasks side by side: a host sees its own and nothing of the others."""

import pytest
import torch
from torch import Tensor

from simic.data.batches import Dataset
from tests.growth.worlds import make_data

from .transitions import random_step

CLASSES = (4, 2, 4, 3)  # of each task
STEPS = 6


def bank(seeds: tuple[int, ...] = (0, 0, 0, 0)) -> tuple[Dataset, Dataset]:
    """Training and validation samples of four tasks; a seed for each of them."""
    found = []
    for samples, offset in ((64, 1), (48, 2)):
        parts = [
            make_data(samples, 100 * number + 3 * seed + offset)
            for number, seed in enumerate(seeds)
        ]
        y = torch.cat([part.y % classes for part, classes in zip(parts, CLASSES, strict=True)])
        found.append(Dataset(torch.cat([part.x for part in parts]), y, 4, CLASSES))
    return found[0], found[1]


def episode(
    make_env, data: tuple[Dataset, Dataset], ids: list[int], tasks: list[int], **kind
) -> list[dict[str, Tensor]]:
    """All there is to see of every host under random legal actions; last, its parameters."""
    env = make_env(
        len(ids), steps=STEPS, batch_size=16, data=data, env_ids=torch.tensor(ids), **kind
    )
    seen, _ = env.reset(options={"iteration": 3, "tasks": torch.tensor(tasks)})
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


@pytest.mark.parametrize(("family", "backend"), [("cnn", "loop"), ("mlp", "vmap")])
def test_samples_of_other_tasks_change_no_bit_of_a_host(make_env, family, backend):
    tasks, kind = [0, 1, 2, 3, 1, 0], {"family": family, "backend": backend}
    before = episode(make_env, bank(), list(range(6)), tasks, **kind)
    after = episode(make_env, bank(seeds=(9, 0, 9, 9)), list(range(6)), tasks, **kind)
    assert [of(before, row) == of(after, row) for row in range(6)] == [
        number == 1 for number in tasks
    ]


def test_a_host_plays_alike_in_any_company_on_any_tasks(make_env):
    mine = episode(make_env, bank(), [0, 1, 2, 3], [0, 1, 2, 3])
    others = episode(make_env, bank(), [7, 2, 9, 4, 0, 1], [0, 2, 1, 3, 1, 1])
    assert of(mine, 1) == of(others, 5) == of(episode(make_env, bank(), [1], [1]), 0)
    assert of(mine, 0) != of(others, 4)  # the same host, on another task


def test_tasks_are_those_of_training_in_turn_within_and_across_iterations(make_env):
    env = make_env(64, data=bank(), train_tasks=3)
    firsts = set()
    for env.rng_seed in range(40):
        drawn = []
        for env.iteration in range(3):
            drawn.append(env._drawn_tasks())
        table = torch.cat(drawn)
        assert torch.equal(table, (table[0] + torch.arange(3 * 64)) % 3)
        firsts.add(int(table[0]))
    assert firsts == {0, 1, 2}
