"""Assemble what learns: a policy, its optimizer and its scales."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simic import params
from simic.agent.leaf_encoder import EncodedLeaf
from simic.agent.normalization import (
    REWARD_CLIP,
    Normalizers,
    ObservationNormalizer,
    RewardNormalizer,
)
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO
from simic.agent.spec import ActionSpec, ObservationSpec
from simic.transfer import Reduce, alone


@dataclass(frozen=True)
class Learner:
    """A policy with its optimizer and its scales, on one device."""

    policy: ActorCritic
    ppo: PPO
    normalizers: Normalizers


def build_learner(
    action_spec: ActionSpec,
    observation_spec: ObservationSpec,
    sizes: params.Policy,
    settings: params.PPOParams,
    rng_seed: int,
    envs: int,
    *,
    total_updates: int,
    device: torch.device | str = "cpu",
    reward_clip: float | None = REWARD_CLIP,
    reduce: Reduce = alone,
    all_env_ids: Tensor | None = None,
    encoders: Sequence[EncodedLeaf] = (),
) -> Learner:
    """Assemble an untrained learner.

    Args:
        action_spec: Heads of the policy.
        observation_spec: What the policy and its critic read.
        sizes: Widths and kind of the network.
        settings: PPO's settings; they say which scales there are.
        rng_seed: Seed of initial weights and of the order of minibatches.
        envs: Environments of this process, for the running returns of the reward scale.
        total_updates: Length of the schedules of learning rate and entropy.
        device: Where weights and scales are.
        reward_clip: Largest scaled reward; None leaves rewards unclipped.
        reduce: Sum or maximum over all processes that learn together.
        all_env_ids: ``[all environments]`` of all processes, where there are several.
        encoders: Leaves of the observation for which the user has modules.
    """
    # Moved after the draw: first weights are computed on the CPU, so they are equal on every device.
    policy = ActorCritic(action_spec, observation_spec, sizes, rng_seed, encoders).to(device)
    normalizers = Normalizers(
        ObservationNormalizer(observation_spec, device)
        if settings.normalize_observations
        else None,
        # PPO's own γ: rewards are divided by the deviation of the very returns that V learns.
        RewardNormalizer(envs, settings.gamma, device, reward_clip)
        if settings.normalize_rewards
        else None,
    )
    ppo = PPO(
        policy,
        settings,
        rng_seed,
        total_updates=total_updates,
        reduce=reduce,
        all_env_ids=all_env_ids,
    )
    return Learner(policy, ppo, normalizers)
