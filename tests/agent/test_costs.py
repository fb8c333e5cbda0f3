"""Neither transfers nor Python grow with what is computed: large networks, many heads or hosts cost no more of them."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO, collect, gae
from simic.agent.spec import ActionSpec, Head
from tests import standard

from .test_transfers import CountReads
from .worlds import HIERARCHY, SEEN, SMALL, TensorWorld, episodes, make_policy, make_rollout


class Operations(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def reads_of_an_update(envs: int, units: int, heads: int) -> Counter[str]:
    settings = standard.PPOParams(epochs=1, minibatches=2, target_kl=None)
    sizes = SMALL.model_copy(update={"encoder_units": units, "core_units": units})
    extra = tuple(Head(f"more_{k}", 2) for k in range(heads - len(HIERARCHY.heads)))
    table = tuple((*row, *(True for _ in extra)) for row in HIERARCHY.relevance)
    policy = ActorCritic(ActionSpec(HIERARCHY.heads + extra, table), SEEN, sizes, rng_seed=1)
    rollout = make_rollout(policy, episodes(envs, 4), 4)
    ppo = PPO(policy, settings, rng_seed=1, total_updates=2)
    ppo.reads_are_free = False  # as on a GPU
    with CountReads() as mode:
        ppo.update(rollout, 0)
    return Counter(mode.reads)


def test_an_update_asks_as_often_for_a_large_network_as_for_a_small_one() -> None:
    """Not once per tensor, per head or per environment: statistics are stacked and fetched together."""
    small = reads_of_an_update(envs=4, units=6, heads=4)
    assert small["cpu"] > 0
    assert reads_of_an_update(envs=4, units=40, heads=4) == small
    assert reads_of_an_update(envs=4, units=6, heads=9)["cpu"] == small["cpu"]
    assert reads_of_an_update(envs=12, units=6, heads=4) == small


@pytest.mark.parametrize("steps", [3, 9])
def test_advantages_are_one_scan_for_all_environments(steps: int) -> None:
    counts = []
    for envs in (2, 50):
        numbers, flags = torch.zeros(steps, envs), torch.zeros(steps, envs, dtype=torch.bool)
        with Operations() as mode:
            gae(numbers, numbers, numbers, flags, flags, ~flags, 0.9, 0.9)
        counts.append(mode.count)
    assert counts[0] == counts[1] > 0


class Quiet(TensorWorld):
    """A world whose own flags cost the same for any number of environments."""

    def step(self, actions: torch.Tensor, /):
        flags, _ = torch.zeros(self.num_envs, dtype=torch.bool), actions
        self.time += 1
        return self.observation(), flags.float(), flags, flags, None


def test_acting_costs_as_many_operations_for_many_environments_as_for_few() -> None:
    policy, counts, reads = make_policy(), [], []
    for envs in (2, 40):
        world = Quiet(list(range(envs)), {})
        with CountReads() as asked, Operations() as done:
            collect(world, policy, Normalizers(), 0, rng_seed=1, steps=3)
        counts.append(done.count)
        reads.append(asked.reads)
    assert (counts[0], reads[0]) == (counts[1], reads[1])
