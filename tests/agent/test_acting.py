"""What acting hands out, and where the agent keeps its tensors."""

import pytest
import torch

from simic.agent.core import Core
from simic.agent.normalization import ObservationNormalizer, RewardNormalizer
from simic.agent.policy import ActorCritic
from simic.agent.ppo import gae, normalized
from simic.agent.rollout import Rollout
from simic.agent.spec import ObservationSpec

from .worlds import HIERARCHY, SEEN, SMALL, episodes, make_policy, make_rollout


def test_log_probabilities_of_acting_carry_no_gradient_and_those_of_replay_do() -> None:
    policy = make_policy()
    rollout = make_rollout(policy, episodes(4, 6), 6)
    for tensor in (rollout.log_probs, rollout.values, rollout.next_values, rollout.state.h):
        assert not tensor.requires_grad
    rescored = policy.rescore(
        rollout.observation(), rollout.actions, rollout.state, rollout.valid, None
    )
    assert rescored.log_probs.requires_grad and rescored.values.requires_grad


@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer", "none"])
@pytest.mark.parametrize(
    "like", [torch.zeros(1, dtype=torch.float64), torch.zeros(1, device="meta")]
)
def test_the_first_memory_has_the_type_and_device_of_the_weights(
    kind: str, like: torch.Tensor
) -> None:
    for part in Core(kind, 6, 5, window=4).initial_state(3, like):
        assert (part.dtype, part.device) == (like.dtype, like.device)


def test_every_width_of_the_memory_comes_from_the_policy() -> None:
    """The rollout states no width of its own: it keeps whatever memory the policy begins with."""
    for units, critic, width in ((3, "own", 6), (10, "detached", 10), (17, "own", 34)):
        sizes = SMALL.model_copy(update={"core_units": units, "critic": critic})
        policy = ActorCritic(HIERARCHY, SEEN, sizes, rng_seed=1)
        rollout = make_rollout(policy, episodes(2, 3), 3)
        assert rollout.state.h.shape == (2, width)
        rescored = policy.rescore(
            rollout.observation(), rollout.actions, rollout.state, rollout.valid, None
        )
        assert torch.allclose(rescored.log_probs, rollout.log_probs, atol=1e-5)


def test_scales_live_on_the_device_they_were_made_for() -> None:
    observation = ObservationNormalizer(ObservationSpec(3), "meta")
    reward = RewardNormalizer(4, 0.9, "meta")
    for tensor in (*observation.state_dict().values(), *reward.state_dict().values()):
        assert tensor.is_meta
    features = torch.zeros(2, 4, 3, device="meta")
    assert observation.normalize(features).is_meta and reward.normalize(features[..., 0]).is_meta


def test_advantages_are_computed_where_the_rollout_is() -> None:
    numbers = torch.zeros(5, 3, device="meta")
    flags = torch.zeros(5, 3, dtype=torch.bool, device="meta")
    advantages, returns = gae(numbers, numbers, numbers, flags, flags, flags, 0.9, 0.9)
    assert advantages.is_meta and returns.is_meta
    assert normalized(advantages, flags).is_meta


def test_a_rollout_is_one_allocation_that_is_written_in_place_and_keeps_one_memory_per_row() -> (
    None
):
    policy = make_policy()
    world = episodes(3, 6)
    observation, _ = world.reset()
    rollout = Rollout.empty(
        6,
        world.env_ids,
        observation,
        policy.initial_state(3),
        policy.action_spec,
        observation.features,
    )
    places = {
        name: x.data_ptr() for name, x in vars(rollout).items() if isinstance(x, torch.Tensor)
    }
    yes = torch.ones(3, dtype=torch.bool)
    for t in range(6):
        rollout.record_observation(t, observation, observation, yes, yes)
        step = policy.act(observation, policy.initial_state(3), torch.full((3, 4), 0.5))
        rollout.record_decision(t, step, torch.ones(3), ~yes, ~yes, yes)
    assert {name: getattr(rollout, name).data_ptr() for name in places} == places
    assert rollout.features.shape[:2] == (6, 3)
    assert torch.equal(rollout.features[5], observation.features)
    # Only what replay starts from, not the memory of every step.
    assert rollout.state.h.shape == (3, 2 * SMALL.core_units)
    sizes = [x.numel() for x in vars(rollout).values() if isinstance(x, torch.Tensor)]
    assert max(sizes) < 6 * 3 * SMALL.core_units + rollout.features.numel()
