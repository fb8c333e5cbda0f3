"""Shapley values against a brute-force oracle on games with a known worth for every set of seeds."""

from itertools import permutations

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


def by_permutations(answers: torch.Tensor, players: list[int], env: int) -> dict[int, list[float]]:
    """Mean marginal of every player over all orders, per sample, from the definition."""
    total = {player: torch.zeros(answers.shape[2], dtype=torch.float64) for player in players}
    orders = list(permutations(players))
    for order in orders:
        members = 0
        for player in order:
            joined = members + 2**player
            total[player] += answers[joined, env].double() - answers[members, env].double()
            members = joined
    return {player: value / len(orders) for player, value in total.items()}


def streams(envs: int) -> torch.Tensor:
    return rng.key(1, rng.Purpose.SHAPLEY, torch.arange(envs))


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_exact_values_are_the_mean_marginals_over_all_orders(slots):
    answers, evaluate, acting, asked = game(slots)
    found = shapley(acting, evaluate, streams(2))
    assert asked == [2**slots]
    for env in range(2):
        expected = by_permutations(answers, list(range(slots)), env)
        for slot, samples in expected.items():
            assert float(found.value[env, slot]) == pytest.approx(100 * float(samples.mean()), abs=1e-6)
            error = 100 * float(samples.std()) / SAMPLES**0.5
            assert float(found.sample_error[env, slot]) == pytest.approx(error, abs=1e-6)
    assert not found.permutation_error.any()


def test_values_sum_to_what_all_seeds_gain_together():
    for slots in (1, 3, 6, 8):
        answers, evaluate, acting, _ = game(slots, seed=slots)
        found = shapley(acting, evaluate, streams(2))
        gain = 100 * (answers[-1].double().mean(dim=1) - answers[0].double().mean(dim=1))
        assert (found.gain - gain).abs().max() < 1e-6
        assert (found.value.sum(dim=1) - gain).abs().max() < 1e-6


def test_hosts_with_fewer_acting_seeds_keep_their_own_values():
    answers, evaluate, acting, _ = game(4, envs=3)
    acting[1] = torch.tensor([False, True, False, True])
    acting[2] = False
    found = shapley(acting, evaluate, streams(3))
    expected = by_permutations(answers, [1, 3], 1)
    assert found.value[1].isnan().tolist() == [True, False, True, False]
    for slot in (1, 3):
        assert float(found.value[1, slot]) == pytest.approx(100 * float(expected[slot].mean()), abs=1e-6)
    assert found.value[2].isnan().all() and float(found.gain[2]) == 0.0
    full = by_permutations(answers, [0, 1, 2, 3], 0)
    assert float(found.value[0, 2]) == pytest.approx(100 * float(full[2].mean()), abs=1e-6)


def test_sampled_values_agree_with_exact_ones_within_their_error():
    """7 seeds are sampled; the oracle uses the formula over all 128 sets instead of orders."""
    slots = 7
    answers, evaluate, acting, asked = game(slots, envs=6, seed=3)
    found = shapley(acting, evaluate, streams(6))
    assert sum(asked) == 20 * 2 * (slots + 1)
    worth = 100 * answers.double().mean(dim=2)
    factorial = [1, 1, 2, 6, 24, 120, 720, 5040]
    exact = torch.zeros(6, slots, dtype=torch.float64)
    for members in range(2**slots):
        size = members.bit_count()
        for slot in range(slots):
            if not members >> slot & 1:
                weight = factorial[size] * factorial[slots - size - 1] / factorial[slots]
                exact[:, slot] += weight * (worth[members | 1 << slot] - worth[members])
    z = (found.value - exact) / found.permutation_error
    assert (found.permutation_error > 0).all()
    assert z.abs().max() < 4.5 and 0.6 < float(z.std()) < 1.5  # the errors are neither too small nor too large


def test_a_network_that_is_not_finite_leaves_its_host_without_values():
    _, evaluate, acting, _ = game(3)

    def broken(off: torch.Tensor) -> Answers:
        found = evaluate(off)
        found.loss[5, 1] = torch.nan
        return found

    found = shapley(acting, broken, streams(2))
    assert not found.value[0].isnan().any()
    assert found.value[1].isnan().all() and found.gain[1].isnan()
