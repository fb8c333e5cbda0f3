"""What only the critic is told, such as the kind of a task: it moves values, and reaches no action."""

from dataclasses import replace

import pytest
import torch

from simic.agent.normalization import Normalizers, ObservationNormalizer
from simic.agent.policy import ActorCritic
from simic.agent.ppo import collect
from simic.agent.spec import Observation

from .worlds import SEEN, SMALL, TensorWorld, episodes, make_policy, make_rollout, replay

KINDS = 4
TOLD = replace(SEEN, told=1, hidden=KINDS)
CRITICS = pytest.mark.parametrize("critic", ["own", "detached"])


def policy_of(critic: str) -> ActorCritic:
    return make_policy(seen=TOLD, sizes=SMALL.model_copy(update={"critic": critic}))


class Telling(TensorWorld):
    """Every environment has a kind, ``first`` more than its number; -1 is none."""

    first = 0

    def observation(self, shift: int = 0) -> Observation:
        kinds = (self.env_ids + self.first) % (KINDS + 1) - 1
        return replace(super().observation(shift), told=kinds[:, None])


def telling(first: int = 0) -> Telling:
    world = Telling(list(range(6)), episodes(6, 8).ends)
    world.first = first
    return world


@CRITICS
def test_what_it_is_told_changes_values_and_no_action(critic: str) -> None:
    policy = policy_of(critic)
    one, other = (make_rollout(policy, telling(first), 8) for first in (0, 1))
    assert torch.equal(one.actions, other.actions) and torch.equal(one.log_probs, other.log_probs)
    valid = one.valid
    assert not torch.equal(one.told, other.told)
    assert (one.values[valid] != other.values[valid]).all()
    assert torch.equal(one.state.h, other.state.h)


@CRITICS
def test_no_gradient_of_an_action_reaches_what_it_is_told(critic: str) -> None:
    policy = policy_of(critic)
    rollout = make_rollout(policy, telling(), 8)
    seen = replay(policy, rollout)
    told = policy.told.weight
    [of_actions] = torch.autograd.grad(seen.log_probs.sum(), told, retain_graph=True, allow_unused=True)
    [of_entropy] = torch.autograd.grad(seen.entropy.sum(), told, retain_graph=True, allow_unused=True)
    [of_values] = torch.autograd.grad(seen.values.sum(), told)
    assert of_actions is None and of_entropy is None
    assert (of_values.abs().sum(1) > 0).all()  # of every kind, and of none


def test_a_rollout_keeps_it_and_a_replay_gives_the_values_of_acting() -> None:
    policy = policy_of("detached")
    normalizer = ObservationNormalizer(TOLD)
    normalizer.update(3 + 2 * torch.randn(50, 5, generator=torch.Generator().manual_seed(1)), torch.ones(50).bool())
    rollout, _ = collect(telling(2), policy, Normalizers(normalizer), 0, rng_seed=1, steps=8)
    assert torch.equal(rollout.told, ((torch.arange(6) + 2) % 5 - 1)[:, None].expand(8, 6, 1))
    part = rollout.select(torch.tensor([4, 1]))
    assert torch.equal(part.told[..., 0], rollout.told[:, [4, 1], 0])
    for each in (rollout, part):
        torch.testing.assert_close(replay(policy, each).values[each.valid], each.values[each.valid])
