"""Health of the memory and the features, measured on numbers whose answer is known."""

import math

import pytest
import torch

from simic.agent.metrics import Probe, acting, feature_rank, health
from simic.agent.normalization import Normalizers, ObservationNormalizer, alone
from simic.agent.policy import Replayed
from simic.agent.ppo import collect

from .worlds import SEEN, SMALL, episodes, make_policy, make_rollout, replay

STEPS, ENVS, UNITS = 5, 4, 40


def seen(hidden: torch.Tensor, encoded: torch.Tensor | None = None, z: torch.Tensor | None = None) -> Replayed:
    envs = hidden.shape[1]
    nothing = torch.zeros(STEPS, envs)
    encoded = torch.ones(STEPS, envs, UNITS) if encoded is None else encoded
    z = torch.zeros(STEPS, envs, UNITS) if z is None else z
    return Replayed(nothing[..., None], nothing[..., None], nothing, encoded, hidden, z)


def watched(found: Replayed, valid: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    return health(found, torch.ones(found.values.shape, dtype=torch.bool) if valid is None else valid)


@pytest.mark.parametrize("critic", ["own", "detached"])
def test_a_policy_diverges_from_itself_when_its_weights_move(critic: str) -> None:
    policy = make_policy(sizes=SMALL.model_copy(update={"critic": critic}))
    rollout = make_rollout(policy, episodes(6, 8), 8)
    probe = Probe(policy, rollout, replay(policy, rollout))
    assert probe.divergence(alone).item() == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        policy.heads[0].out.weight.mul_(2.0)
    assert probe.divergence(alone).item() > 1e-3


def test_rows_behind_the_end_of_an_episode_count_for_nothing() -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[3] = 0.2
    encoded, z = torch.ones(2, STEPS, ENVS, UNITS)
    valid = torch.ones(STEPS, ENVS, dtype=torch.bool)
    valid[4], valid[2:, 1] = False, False
    clean = watched(seen(hidden, encoded, z), valid)
    spoilt = [x.masked_fill(~valid[..., None], 7.0) for x in (hidden, encoded, z)]
    for name, value in watched(seen(*spoilt), valid).items():
        assert torch.equal(value, clean[name]), name
    assert clean["hidden_growth"].item() == pytest.approx(2.0)  # the last step that anyone plays is the fourth


def test_norm_growth_saturation_and_units_that_hardly_answer_by_hand() -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[-1] = 0.5
    found = watched(seen(hidden))
    assert found["hidden_growth"].item() == pytest.approx(5.0)
    assert found["hidden_norm"].item() == pytest.approx(math.sqrt((4 * 0.01 + 0.25) / 5))
    assert found["hidden_saturated"] == 0.0
    hidden[1] = 0.995
    assert watched(seen(hidden))["hidden_saturated"].item() == pytest.approx(1 / 5)
    encoded = torch.ones(STEPS, ENVS, UNITS)
    encoded[..., :8] = 0.0
    encoded[..., 8:10] = 0.01
    # the mean of activities is (30 + 0.02)/40 = 0.75; 2.5 % of it is 0.019
    assert watched(seen(torch.ones(STEPS, ENVS, UNITS), encoded))["dormant_units"].item() == pytest.approx(10 / 40)


@pytest.mark.parametrize("rank", [1, 3, 12])
def test_features_that_span_few_directions_have_few(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    # Orthogonal directions of equal strength: 99 % of the sum needs all of them.
    left = torch.linalg.qr(torch.randn(STEPS * ENVS, rank, generator=generator))[0]
    right = torch.linalg.qr(torch.randn(UNITS, rank, generator=generator))[0]
    z = (left @ right.T).view(STEPS, ENVS, UNITS)
    assert feature_rank(watched(seen(torch.ones(STEPS, ENVS, UNITS), z=z))["feature_gram"]) == rank


def acted_on(core: str = "lstm", critic: str = "own"):
    """A rollout in which environment 2 ends early, with its end and the scales it was seen by."""
    policy = make_policy(core, sizes=SMALL.model_copy(update={"critic": critic}))
    normalizers = Normalizers(ObservationNormalizer(SEEN))
    for iteration in range(2):
        rollout, end = collect(episodes(6, 8), policy, normalizers, iteration, rng_seed=1, steps=8)
        if not iteration:
            normalizers.update(rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid)
    return policy, rollout, end, normalizers


def test_what_is_stored_is_what_the_scales_of_acting_give_and_no_later_ones() -> None:
    policy, rollout, end, normalizers = acted_on()
    assert acting(policy, rollout, end, normalizers)["normalizer_deviation"] == 0.0
    normalizers.update(rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid)
    assert acting(policy, rollout, end, normalizers)["normalizer_deviation"] > 1e-3


def test_a_memory_in_which_an_episode_begins_is_seen_and_one_that_goes_on_is_not() -> None:
    policy, rollout, end, normalizers = acted_on()
    assert acting(policy, rollout, end, normalizers)["start_state"] == 0.0
    rollout.state.c[1, 4] = -3.0
    assert acting(policy, rollout, end, normalizers)["start_state"] == 3.0
    rollout.starts[0, 1] = False
    assert acting(policy, rollout, end, normalizers)["start_state"] == 0.0


@pytest.mark.parametrize("critic", ["own", "detached"])
def test_cells_are_those_of_the_actor_in_episodes_that_reach_the_end(critic: str) -> None:
    policy, rollout, end, normalizers = acted_on(critic=critic)
    end.state.c.fill_(9.0)
    own = end.state.c[:, : SMALL.core_units]
    own.fill_(0.5)
    own[0, :2] = 3.0  # tanh 3 = 0.995
    own[2] = 100.0  # it has ended
    found = acting(policy, rollout, end, normalizers)
    cells = 5 * SMALL.core_units
    assert found["cell_norm"].item() == pytest.approx(math.sqrt(((cells - 2) * 0.25 + 2 * 9.0) / cells))
    assert found["cell_saturated"].item() == pytest.approx(2 / cells)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_memory_is_not_called_healthy(broken: float) -> None:
    hidden = torch.full((STEPS, ENVS, UNITS), 0.1)
    hidden[-1, 2, 3] = broken
    found = watched(seen(hidden))
    assert not found["hidden_norm"].isfinite() and not found["hidden_growth"].isfinite()


@pytest.mark.parametrize("own", [0, 1, 3])
def test_a_minibatch_shared_out_to_processes_is_measured_as_one(own: int) -> None:
    hidden, encoded, z = torch.rand(3, STEPS, ENVS, UNITS, generator=torch.Generator().manual_seed(1))
    valid = torch.ones(STEPS, ENVS, dtype=torch.bool)
    valid[3:, 0] = False
    mine, theirs = slice(0, own), slice(own, ENVS)
    others = []  # what the other process adds, in the order of its sums

    def part(of: slice, reduce) -> dict[str, torch.Tensor]:
        return health(seen(hidden[:, of], encoded[:, of], z[:, of]), valid[:, of], reduce)

    part(theirs, lambda x, _: others.append(x) or x)
    found = part(mine, lambda x, _: x + others.pop(0))
    for name, value in health(seen(hidden, encoded, z), valid).items():
        assert torch.allclose(found[name], value, rtol=1e-5), name
