"""Many tasks side by side: a host sees its task's samples and nothing of other hosts or tasks."""

import pytest
import torch

from simic.data.batches import Dataset
from tests.growth.worlds import make_data

from .transitions import random_step

CLASSES = (4, 2, 4, 3)  # of each task


def split(samples: int, seeds: list[int]) -> Dataset:
    """Samples of four tasks; a seed for each of them."""
    parts = [make_data(samples, 100 * task + seed) for task, seed in enumerate(seeds)]
    labels = [part.y % classes for part, classes in zip(parts, CLASSES, strict=True)]
    return Dataset(torch.cat([part.x for part in parts]), torch.cat(labels), 4, CLASSES)


def bank(*seeds: int) -> tuple[Dataset, Dataset]:
    return split(64, [1 + 3 * seed for seed in seeds]), split(48, [2 + 3 * seed for seed in seeds])


def episode(make_env, data, ids: list[int], tasks: list[int], **kind) -> list[list[bytes]]:
    """All that random legal actions come to and the parameters at the end, of each host, byte for byte."""
    env_ids = torch.tensor(ids)
    env = make_env(len(ids), steps=6, batch_size=16, data=data, env_ids=env_ids, **kind)
    observation, _ = env.reset(options={"iteration": 3, "tasks": torch.tensor(tasks)})
    hosts = [[] for _ in ids]
    for _ in range(env.steps):
        observation, columns = random_step(env, observation)
        for row, host in enumerate(hosts):
            host += [columns[name][row].numpy().tobytes() for name in sorted(columns)]
    for row, host in enumerate(hosts):
        for name, value in env.population.named_parameters(env.slots, row).items():
            host += [name.encode(), value.numpy().tobytes()]
    return hosts


@pytest.mark.parametrize(("family", "backend"), [("cnn", "loop"), ("mlp", "vmap")])
def test_other_hosts_and_samples_of_other_tasks_change_no_bit_of_a_host(make_env, family, backend):
    kind = {"family": family, "backend": backend}
    hosts = episode(make_env, bank(0, 0, 0, 0), [0, 1, 2, 3], [0, 1, 2, 3], **kind)
    changed = episode(make_env, bank(9, 0, 9, 9), [0, 1, 2, 3], [0, 1, 2, 3], **kind)
    assert [host == changed_host for host, changed_host in zip(hosts, changed, strict=True)] == [
        task == 1 for task in range(4)
    ]
    if backend == "loop":  # of one kernel for all hosts, the last bits depend on how many they are
        ids = [7, 2, 9, 4, 0, 1]
        company = episode(make_env, bank(9, 0, 9, 9), ids, [0, 2, 1, 3, 1, 1], **kind)
        single = episode(make_env, bank(9, 0, 9, 9), [1], [1], **kind)
        assert hosts[1] == company[5] == single[0] and changed[0] != company[4]


def test_tasks_are_those_of_training_in_turn_within_and_across_iterations(make_env):
    env = make_env(64, data=bank(0, 0, 0, 0), train_tasks=3)
    firsts = set()
    for env.rng_seed in range(40):
        tasks = []
        for env.iteration in range(3):
            tasks.append(env._drawn_tasks())
        table = torch.cat(tasks)
        assert torch.equal(table, (table[0] + torch.arange(3 * 64)) % 3)
        firsts.add(int(table[0]))
    assert firsts == {0, 1, 2}
