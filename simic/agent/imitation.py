"""Imitation by advantage: the better an episode of another actor ended than those of its twins, the more it weighs.

This is advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177) with the mean of the twins as baseline.
"""

from dataclasses import fields, replace

import torch
from torch import Tensor

from simic.agent.advantages import gae
from simic.agent.core import RecurrentState
from simic.agent.normalization import Moments, Normalizers, Reduce
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Rollout
from simic.agent.spec import Observation

TEMPERATURE = 0.3  # standard deviations of what twins differ by
LARGEST_EXPONENT = 4.0  # so that one lucky episode is worth 55 ordinary ones at most
KEPT = ("env_ids", "raw_features", "categories", "actions", "rewards", "terminated", "truncated", "valid", "starts")


class Demonstrations:
    """Rollouts of another actor, kept to be cloned together; rewards are what twins differ by."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    def add(self, rollout: Rollout) -> None:
        """One more, of the same environments."""
        self.rollouts.append(rollout)

    def clear(self) -> None:
        """Keep none."""
        self.rollouts = []

    def rows(self, env_ids: Tensor, envs: int) -> Tensor:
        """The names of all rows of ``envs`` environments: those of each rollout follow those of the one before."""
        numbers = torch.arange(len(self.rollouts), device=env_ids.device)
        return (numbers[:, None] * envs + env_ids).flatten()

    def batch(
        self, policy: ActorCritic, normalizers: Normalizers, gamma: float, envs: int, reduce: Reduce | None
    ) -> Rollout:
        """All of them as one rollout of so many rows, seen with the present scales and scored by the present weights,
        each row weighted by how it ended. ``envs`` counts the environments of all processes.
        """
        whole = _joined(self.rollouts, self.rows(self.rollouts[0].env_ids, envs))
        raw = replace(whole.observation(), features=whole.raw_features)
        features = torch.where(whole.valid[..., None], normalizers.see(raw).features, 0.0)
        rewards = whole.rewards if normalizers.reward is None else normalizers.reward.normalize(whole.rewards)
        seen, nothing = replace(whole, features=features), torch.zeros_like(rewards)
        with torch.no_grad():
            replayed = policy.replay(seen.observation(), seen.actions, seen.state, seen.valid, None)
        # V is no estimate of what another actor will get, so the returns are what it was paid.
        paid, _ = gae(rewards, nothing, nothing, whole.terminated, whole.truncated, whole.valid, gamma, 1.0)
        return replace(
            seen,
            log_probs=replayed.log_probs,
            values=replayed.values,
            advantages=torch.where(whole.valid, paid - replayed.values, 0.0),
            returns=paid,
            weights=weights(whole, reduce),
        )

    def state_dict(self) -> dict[str, Tensor]:
        """One entry per environment first, ``[E, …]``."""
        found: dict[str, Tensor] = {}
        for number, rollout in enumerate(self.rollouts):
            parts = {name: getattr(rollout, name) for name in KEPT} | {
                f"masks.{name}": mask for name, mask in rollout.masks.items()
            }
            for name, tensor in parts.items():
                found[f"{number:03d}.{name}"] = tensor if tensor.ndim == 1 else tensor.transpose(0, 1)
        return found

    def load_state_dict(self, state: dict[str, Tensor], policy: ActorCritic) -> None:
        """Go on exactly from there."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in sorted(state.items()):
            number, _, field = name.partition(".")
            parts.setdefault(number, {})[field] = tensor if tensor.ndim == 1 else tensor.transpose(0, 1).contiguous()
        device = policy.like.device
        moved = [{name: tensor.to(device) for name, tensor in found.items()} for found in parts.values()]
        self.rollouts = [_rollout(found, policy) for found in moved]


def weights(rollout: Rollout, reduce: Reduce | None = None) -> Tensor:
    """exp(A / (τ σ)) of every row, of mean 1, ``[T, N]``: A is what the episode got more than its twins, σ its standard
    deviation over all.
    """
    advantage = torch.where(rollout.valid, rollout.rewards, 0.0).sum(dim=0)
    everyone = torch.ones_like(advantage, dtype=torch.bool)
    moments = Moments.of(advantage[:, None], everyone).reduced(reduce)
    sigma = moments.variance().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    weight = (advantage / (TEMPERATURE * sigma)).clamp(max=LARGEST_EXPONENT).exp()
    weight = weight / Moments.of(weight[:, None], everyone).reduced(reduce).mean
    return weight.to(rollout.rewards.dtype).expand_as(rollout.valid)


def _joined(rollouts: list[Rollout], rows: Tensor) -> Rollout:
    """Side by side, named ``rows``."""
    tensors = {
        field.name: torch.cat([getattr(rollout, field.name) for rollout in rollouts], dim=1)
        for field in fields(Rollout)
        if isinstance(getattr(rollouts[0], field.name), Tensor) and field.name != "env_ids"
    }
    masks = {name: torch.cat([rollout.masks[name] for rollout in rollouts], dim=1) for name in rollouts[0].masks}
    state = RecurrentState(*(torch.cat(parts) for parts in zip(*(rollout.state for rollout in rollouts), strict=True)))
    return replace(rollouts[0], env_ids=rows, state=state, masks=masks, **tensors)


def _rollout(found: dict[str, Tensor], policy: ActorCritic) -> Rollout:
    """From what is kept of it."""
    masks = {name.removeprefix("masks."): mask for name, mask in found.items() if name.startswith("masks.")}
    seen = Observation(
        found["raw_features"][0], found["categories"][0], {name: mask[0] for name, mask in masks.items()}
    )
    steps, envs, heads = found["actions"].shape
    empty = Rollout.empty(steps, found["env_ids"], seen, policy.initial_state(envs), heads)
    return replace(empty, masks=masks, **{name: found[name] for name in KEPT})
