"""A trained host is the same in every row, keeps every bit, and its seeds learn."""

import pytest
import torch
from torch.nn import functional as F

from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch.population import Population
from simic.growth.export import grown_network
from simic.growth.life.vocabulary import Action, Slots
from simic.growth.networks.hosts import build_host
from simic.growth.pretrained import train_host
from simic.params import Host
from tests.standard import HostOptimizer, PPOParams, Train

from .worlds import DATA, make_order, mixed_slots, population_of

HOST = Host(family="adapted_cnn", preset="baseline", widths=(8, 8, 16))
SOURCE, EPOCHS = DATA["cnn"], 10


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return train_host(HOST, SOURCE, 1, EPOCHS)


def make_frozen(weights: dict[str, torch.Tensor], backend: str = "vmap", name: str = "sgd") -> Population:
    host = build_host(HOST, SOURCE.shape, SOURCE.classes, weights)
    return population_of(host, 6, backend, HostOptimizer(name=name, weight_decay=0.1))


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.flatten() for value in weights.values()])


def test_training_it_is_a_function_of_the_seed_and_it_learns(weights) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = train_host(HOST, SOURCE, 1, EPOCHS)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(flat(weights), flat(again))
    assert not torch.equal(flat(weights), flat(train_host(HOST, SOURCE, 2, EPOCHS)))
    fresh = train_host(HOST, SOURCE, 1, 0)
    networks = [grown_network(make_frozen(each), Slots.empty(6, 3), 0) for each in (weights, fresh)]
    with torch.no_grad():
        trained, untrained = (F.cross_entropy(network(SOURCE.x), SOURCE.y) for network in networks)
    assert trained < untrained - 0.02


@pytest.mark.parametrize(("backend", "name"), [("vmap", "sgd"), ("vmap", "adamw"), ("loop", "adamw")])
def test_a_frozen_host_keeps_every_bit_and_its_seeds_learn(weights, backend: str, name: str) -> None:
    population = make_frozen(weights, backend, name)
    slots = mixed_slots(population)
    before = population.state_dict()
    population.train_epoch(slots, SOURCE, make_order(6, 4, 16))
    after = population.state_dict()
    for key in (key for key in before if key.startswith("host/")):
        assert torch.equal(before[key], after[key]), key
    assert all(torch.equal(row, flat(weights)) for row in after["host/param"])
    seeds = [key for key in before if key.startswith("seed.") and key.endswith("/param")]
    assert seeds and any(not torch.equal(before[key], after[key]) for key in seeds)


def test_an_environment_takes_the_host_that_came_with_its_data(weights) -> None:
    data = Dataset(SOURCE.x, SOURCE.y, SOURCE.classes, host=weights)
    train = Train(host=HOST, envs=2, episode_steps=2, batch_size=16, ppo=PPOParams(minibatches=1))
    env = GrowthEnv(train, 1, data, data)
    env.reset()
    first = env.state.measured.accuracy
    env.step(Action.wait(2))
    assert torch.equal(first, env.state.measured.accuracy) and first[0] == first[1]
    other = train.model_copy(update={"host": Host(family="adapted_cnn", preset="baseline")})
    with pytest.raises(SimicError, match=r"segments\.1\.\* has the tensors .* set train.host to that one"):
        GrowthEnv(other, 1, data, data)
