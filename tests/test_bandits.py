"""The bandits of benchmarks/bandits.py: rewards, observations, strategies and learning."""

import pytest
import torch

from benchmarks.bandits import Bandits, VectorBandits, optimum, play, thompson, ucb1, uniform


class Planted(Bandits):
    """Bandits in which one arm always pays and the others never do."""

    def reset(self, **given):
        start = super().reset(**given)
        self.paying = self.means.argmax(dim=1)
        self.means = torch.zeros_like(self.means).scatter_(1, self.paying[:, None], 1.0)
        return start


def near(returns: torch.Tensor, expected: float) -> bool:
    """Within four standard errors."""
    return abs(float(returns.mean()) - expected) < 4 * float(returns.std()) / len(returns) ** 0.5


def test_an_observation_holds_the_last_arm_its_reward_the_time_and_the_start() -> None:
    env = Planted(3, 2, 50, rng_seed=1)
    start, _ = env.reset()
    assert start.features.tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]] * 50
    arms = torch.arange(50) % 3
    seen, reward, terminated, truncated, _ = env.step(arms[:, None])
    assert reward.tolist() == (arms == env.paying).float().tolist()
    for row, arm, paid in zip(seen.features.tolist(), arms.tolist(), reward.tolist(), strict=True):
        assert row == [*(float(k == arm) for k in range(3)), paid, 0.5, 0.0]
    assert not terminated.any()
    assert not truncated.any()
    assert env.step(arms[:, None])[2].all()


def test_bandits_are_a_hash_of_seed_iteration_and_number() -> None:
    few, many = Bandits(4, 3, 5, rng_seed=2), Bandits(4, 3, 9, rng_seed=2)
    for env in (few, many):
        env.reset(options={"iteration": 7})
    assert torch.equal(few.means, many.means[:5])
    assert torch.equal(few.luck, many.luck[:5])
    before = few.means
    few.reset(options={"iteration": 8})
    assert not torch.isclose(few.means, before).any()


def test_strategies_reach_what_is_expected_of_them() -> None:
    planted, drawn = Planted(2, 2, 40_000, rng_seed=1), Bandits(2, 2, 40_000, rng_seed=1)
    assert near(play(planted, uniform(1), 0), 1.0)
    # Half find the paying arm at once; P(Beta(2, 1) > U) = P(U > Beta(1, 2)) = 2/3 in the second pull.
    assert near(play(planted, thompson(1), 0), 1 / 2 + 2 / 3)
    # A first arm that paid is kept and pays with probability 2/3; else the other one pays with 1/2.
    assert near(play(drawn, ucb1(0.0), 0), 1 / 2 + 1 / 2 * 2 / 3 + 1 / 2 * 1 / 2)


def test_nobody_is_better_than_the_optimum() -> None:
    assert optimum(2, 2) == pytest.approx(13 / 12)
    assert optimum(1, 10) == pytest.approx(5.0)
    best, env = optimum(5, 10), Bandits(5, 10, 40_000, rng_seed=1)
    for strategy in (uniform(1), thompson(1), ucb1(0.0)):
        returns = play(env, strategy, 0)
        assert float(returns.mean()) < best
        assert not near(returns, best)
    assert near(play(env, ucb1(0.05), 0), best)  # level with it here


def test_peers_play_the_same_bandits_one_episode_after_the_other() -> None:
    vector, env = VectorBandits(Bandits(3, 2, 6, rng_seed=1)), Bandits(3, 2, 6, rng_seed=1)
    seen, arms = vector.reset(), torch.arange(6) % 3
    for iteration in range(2):
        expected, _ = env.reset(options={"iteration": iteration})
        returns = torch.zeros(6)
        for pull in range(2):
            assert seen.tolist() == expected.features.tolist()
            vector.step_async(arms.numpy())
            seen, reward, over, _ = vector.step_wait()
            expected, paid, *_ = env.step(arms[:, None])
            returns += paid
            assert reward.tolist() == paid.tolist()
            assert over.tolist() == [pull == 1] * 6
        assert vector.finished.tolist() == returns.tolist()
