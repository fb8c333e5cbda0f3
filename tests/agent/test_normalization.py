"""Running scales."""

import numpy as np
import pytest
import torch

from simic.agent.normalization import Moments, Normalizers, ObservationNormalizer, RewardNormalizer
from simic.agent.spec import ObservationSpec


def rows(count: int, seed: int = 1) -> torch.Tensor:
    return 1e6 + 30 * torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("cuts", [(1,), (7, 50), (0, 33, 34, 99)])
def test_merged_moments_equal_those_of_all_rows(cuts: tuple[int, ...]) -> None:
    data = rows(100)
    merged = Moments.empty(3)
    for part in data.tensor_split(cuts):
        merged = merged.merge(Moments.of(part, torch.ones(len(part), dtype=torch.bool)))
    assert merged.count == 100
    assert np.allclose(merged.mean, data.numpy().mean(axis=0), rtol=1e-13)
    assert np.allclose(merged.variance(), data.numpy().var(axis=0), rtol=1e-9)


def test_invalid_and_non_finite_rows_are_skipped() -> None:
    data = rows(10)
    data[2, 0], data[5, 1] = torch.nan, torch.inf
    valid = torch.ones(10, dtype=torch.bool)
    valid[9] = False
    kept = data[[0, 1, 3, 4, 6, 7, 8]].numpy()
    found = Moments.of(data, valid)
    assert found.count == 7
    assert np.allclose(found.mean, kept.mean(axis=0), rtol=1e-13)
    assert np.allclose(found.variance(), kept.var(axis=0), rtol=1e-9)


def test_nothing_is_normalised_before_the_first_rows_and_nothing_learned_from_none() -> None:
    normalizer = ObservationNormalizer(ObservationSpec(3))
    x = torch.tensor([0.5, -3.0, 20.0])
    assert normalizer.normalize(x).tolist() == [0.5, -3.0, 10.0]
    normalizer.update(torch.full((4, 3), torch.nan), torch.ones(4, dtype=torch.bool))
    assert normalizer.normalize(x).tolist() == [0.5, -3.0, 10.0]


def test_constant_rewards_hit_the_floor_and_not_infinity() -> None:
    normalizer = RewardNormalizer(3, gamma=0.5)
    every = torch.ones(4, 3, dtype=torch.bool)
    normalizer.update(torch.ones(4, 3), every, every)
    assert normalizer.sigma == 0.01
    assert normalizer.normalize(torch.tensor(0.05)).item() == pytest.approx(5.0)
    assert normalizer.normalize(torch.tensor(-1e9)) == -10.0
    assert RewardNormalizer(2, gamma=0.9, clip=None).normalize(torch.tensor(-1e9)) == -1e9


def test_state_round_trips_through_plain_tensors() -> None:
    def build() -> Normalizers:
        return Normalizers(ObservationNormalizer(ObservationSpec(3)), RewardNormalizer(2, 0.9))

    one, other = build(), build()
    generator = torch.Generator().manual_seed(1)
    starts = torch.zeros(5, 2, dtype=torch.bool)

    def feed(normalizers: Normalizers) -> torch.Tensor:
        features = torch.randn(5, 2, 3, generator=generator)
        return normalizers.update(features, torch.randn(5, 2, generator=generator), starts, ~starts)

    feed(one)
    state = one.state_dict()
    other.load_state_dict(state)
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    position = generator.get_state()
    first = feed(one)
    generator.set_state(position)
    assert torch.equal(first, feed(other))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
        assert name == "observation.count" or not torch.equal(tensor, state[name]), name
