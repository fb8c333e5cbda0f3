"""Shapley values against a brute-force oracle on games with a known worth for every set of seeds."""

from itertools import permutations
from math import factorial

import pytest
import torch

from simic import rng
from simic.envs.shapley import shapley
from simic.growth.batch.population import Answers

SAMPLES = 40


def game(slots: int, envs: int = 2, seed: int = 0):
    """Worth of every set of seeds per sample ``[2^K, E, N]`` as right or wrong, and the evaluation that reads it."""
    generator = torch.Generator().manual_seed(seed)
    answers = torch.rand(2**slots, envs, SAMPLES, generator=generator) < 0.5
    bits = 2 ** torch.arange(slots)
    asked = []

    def evaluate(off: torch.Tensor) -> Answers:
        asked.append(len(off))
        number = ((~off & acting).long() * bits).sum(dim=2)
        rows = torch.arange(envs)
        return Answers(answers[number, rows], torch.ones(number.shape))

    acting = torch.ones(envs, slots, dtype=torch.bool)
    return answers, evaluate, acting, asked


def by_permutations(answers: torch.Tensor, players: list[int], env: int) -> dict[int, float]:
    """Mean marginal of every player over all orders, in points, from the definition."""
    worth = (100 * answers[:, env].double().mean(dim=1)).tolist()
    total = dict.fromkeys(players, 0.0)
    orders = list(permutations(players))
    for order in orders:
        members = 0
        for player in order:
            joined = members + 2**player
            total[player] += worth[joined] - worth[members]
            members = joined
    return {player: value / len(orders) for player, value in total.items()}


def streams(envs: int, rng_seed: int = 1) -> torch.Tensor:
    return rng.key(rng_seed, rng.Purpose.SHAPLEY, torch.arange(envs))


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_exact_values_are_the_mean_marginals_over_all_orders(slots):
    answers, evaluate, acting, asked = game(slots)
    found = shapley(acting, evaluate, streams(2))
    assert asked == [2**slots]
    for env in range(2):
        for slot, value in by_permutations(answers, list(range(slots)), env).items():
            assert float(found[env, slot]) == pytest.approx(value, abs=1e-6)


def test_hosts_with_fewer_acting_seeds_keep_their_own_values():
    answers, evaluate, acting, _ = game(4, envs=3)
    acting[1] = torch.tensor([False, True, False, True])
    acting[2] = False
    found = shapley(acting, evaluate, streams(3))
    assert torch.equal(found.isnan(), ~acting)
    for env, players in ((0, [0, 1, 2, 3]), (1, [1, 3])):
        for slot, value in by_permutations(answers, players, env).items():
            assert float(found[env, slot]) == pytest.approx(value, abs=1e-6)


def test_sampled_values_agree_with_exact_ones_within_their_error():
    """7 seeds are sampled; the oracle uses the formula over all 128 sets instead of orders."""
    slots, draws = 7, 12
    answers, evaluate, acting, asked = game(slots, envs=6, seed=3)
    found = torch.stack([shapley(acting, evaluate, streams(6, draw)) for draw in range(draws)])
    assert sum(asked) == draws * 20 * 2 * (slots + 1)
    worth = 100 * answers.double().mean(dim=2)
    exact = torch.zeros(6, slots, dtype=torch.float64)
    for members in range(2**slots):
        size = members.bit_count()
        for slot in range(slots):
            if not members >> slot & 1:
                weight = factorial(size) * factorial(slots - size - 1) / factorial(slots)
                exact[:, slot] += weight * (worth[members | 1 << slot] - worth[members])
    z = (found.mean(dim=0) - exact) / (found.std(dim=0) / draws**0.5)
    assert (found.std(dim=0) > 0).all() and z.abs().max() < 4.5


def test_a_network_that_is_not_finite_leaves_its_host_without_values():
    _, evaluate, acting, _ = game(3)

    def broken(off: torch.Tensor) -> Answers:
        found = evaluate(off)
        found.loss[5, 1] = torch.nan
        return found

    found = shapley(acting, broken, streams(2))
    assert not found[0].isnan().any() and found[1].isnan().all()
