"""Running scales."""

import numpy as np
import pytest
import torch

from simic.agent.normalization import Moments, Normalizers, ObservationNormalizer, RewardNormalizer
from simic.agent.spec import ObservationSpec


def rows(count: int, seed: int = 1) -> torch.Tensor:
    return 1e6 + 30 * torch.randn(
        count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def assert_moments(moments: Moments, of: np.ndarray) -> None:
    assert moments.count == len(of)
    assert np.allclose(moments.mean, of.mean(axis=0), rtol=1e-13)
    assert np.allclose(moments.variance(), of.var(axis=0), rtol=1e-9)


@pytest.mark.parametrize("sizes", [(1, 99), (0, 33, 1, 65, 1)])
def test_merged_moments_equal_those_of_all_rows(sizes: tuple[int, ...]) -> None:
    """Those of several processes: tests/training/test_ranks.py."""
    data = rows(100)
    merged = Moments.empty(3)
    for part in data.split(sizes):
        merged = merged.merge(Moments.of(part, torch.ones(len(part), dtype=torch.bool)))
    assert_moments(merged, data.numpy())


def test_invalid_and_non_finite_rows_are_skipped() -> None:
    data = rows(10)
    data[2, 0] = torch.nan
    data[5, 1] = torch.inf
    valid = torch.ones(10, dtype=torch.bool)
    valid[9] = False
    assert_moments(Moments.of(data, valid), data[[0, 1, 3, 4, 6, 7, 8]].numpy())


def test_nothing_is_normalised_before_the_first_rows_and_nothing_learned_from_none() -> None:
    normalizer = ObservationNormalizer(ObservationSpec(3))
    x = torch.tensor([0.5, -3.0, 20.0])
    assert normalizer.normalize(x).tolist() == [0.5, -3.0, 10.0]
    normalizer.update(torch.full((4, 3), torch.nan), torch.ones(4, dtype=torch.bool))
    assert normalizer.normalize(x).tolist() == [0.5, -3.0, 10.0]


def test_observations_are_centred_scaled_and_clipped_but_flags_pass() -> None:
    normalizer = ObservationNormalizer(ObservationSpec(3, raw=(False, True, False)))
    data = rows(200).float()
    normalizer.update(data[:, None], torch.ones(200, 1, dtype=torch.bool))
    deviation = data.double().numpy().std(axis=0)
    normalized = normalizer.normalize(data)
    expected = (data.double().numpy() - data.double().numpy().mean(axis=0)) / np.sqrt(
        deviation**2 + 1e-4
    )
    assert np.allclose(
        normalized[:, [0, 2]], expected[:, [0, 2]], atol=0.01
    )  # float32 of 1e6 has steps of 0.06
    assert torch.equal(normalized[:, 1], data[:, 1])
    assert normalizer.normalize(torch.full((3,), -1e9)).tolist() == [-10.0, -1e9, -10.0]
    assert normalizer.normalize(torch.full((3,), torch.nan)).isnan().all()


def test_scales_go_on_learning_after_many_rows_whose_mean_drifts() -> None:
    normalizer = ObservationNormalizer(ObservationSpec(3))
    rollouts = [rows(6000, seed=number).float() + 50 * number for number in range(5)]
    for rollout in rollouts:
        normalizer.update(rollout[:, None], torch.ones(len(rollout), 1, dtype=torch.bool))
    assert_moments(normalizer.moments, torch.cat(rollouts).double().numpy())


def test_reward_scale_is_the_deviation_of_the_running_discounted_return() -> None:
    generator = torch.Generator().manual_seed(4)
    rewards = torch.randn(6, 2, generator=generator)
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[0] = starts[3, 1] = True
    valid = torch.ones(6, 2, dtype=torch.bool)
    valid[5, 0] = False
    returns = []
    for env in range(2):
        running = 0.0
        for t in range(6):
            running = (0.0 if starts[t, env] else running) * 0.9 + rewards[t, env].item()
            if valid[t, env]:
                returns.append(running)
    normalizer = RewardNormalizer(2, gamma=0.9)
    assert normalizer.sigma == 1.0
    normalizer.update(rewards, starts, valid)
    assert normalizer.sigma.item() == pytest.approx(np.std(returns), rel=1e-6)
    assert normalizer.normalize(torch.tensor(2.0)).item() == pytest.approx(
        2.0 / np.std(returns), rel=1e-5
    )
    assert normalizer.normalize(torch.tensor(-1e9)) == -10.0
    free = RewardNormalizer(2, gamma=0.9, clip=None)
    assert free.normalize(torch.tensor(-1e9)) == -1e9


def test_constant_rewards_hit_the_floor_and_not_infinity() -> None:
    normalizer = RewardNormalizer(3, gamma=0.5)
    every = torch.ones(4, 3, dtype=torch.bool)
    normalizer.update(torch.ones(4, 3), every, every)
    assert normalizer.sigma == 0.01
    assert normalizer.normalize(torch.tensor(0.05)).item() == pytest.approx(5.0)


def test_state_round_trips_through_plain_tensors() -> None:
    def build() -> Normalizers:
        return Normalizers(ObservationNormalizer(ObservationSpec(3)), RewardNormalizer(2, 0.9))

    original = build()
    copy = build()
    generator = torch.Generator().manual_seed(1)
    starts = torch.zeros(5, 2, dtype=torch.bool)

    def feed(normalizers: Normalizers) -> torch.Tensor:
        features = torch.randn(5, 2, 3, generator=generator)
        return normalizers.update(features, torch.randn(5, 2, generator=generator), starts, ~starts)

    feed(original)
    state = original.state_dict()
    copy.load_state_dict(state)
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    position = generator.get_state()
    first = feed(original)
    generator.set_state(position)
    assert torch.equal(first, feed(copy))
    for name, tensor in original.state_dict().items():
        assert torch.equal(tensor, copy.state_dict()[name]), name
        assert name == "observation.count" or not torch.equal(tensor, state[name]), name
