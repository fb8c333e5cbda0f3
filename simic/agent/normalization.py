"""Running scales of observations and rewards: frozen while a rollout runs, updated once after it.

Moments are merged by Chan, Golub and LeVeque 1979 ("Updating formulae and a pairwise algorithm for computing sample
variances"), which is exact for any split of the data.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic.agent.policy import part_of
from simic.agent.spec import Observation, ObservationSpec
from simic.transfer import Reduce, alone

OBSERVATION_CLIP = 10.0
# Under the root: a feature that hardly moved is not blown up when it does.
OBSERVATION_EPSILON = 1e-4
REWARD_CLIP = 10.0
REWARD_SIGMA_FLOOR = 1e-2  # of the discounted return, in units of reward; ours


@dataclass(frozen=True)
class Moments:
    """``count`` rows with their mean and sum of squared deviations, float64 ``[D]``."""

    count: Tensor
    mean: Tensor
    m2: Tensor

    @classmethod
    def empty(cls, width: int, device: torch.device | str = "cpu") -> "Moments":
        count = torch.zeros((), dtype=torch.float64, device=device)
        zero = torch.zeros(width, dtype=torch.float64, device=device)
        return cls(count, zero, zero.clone())

    @classmethod
    def of(cls, rows: Tensor, valid: Tensor) -> "Moments":
        """Compute the moments of the rows ``[N, D]`` that are valid ``[N]`` and finite in every column."""
        # Float64, and deviations from the mean rather than sums of squares: those cancel where the mean is large.
        counts = valid & rows.isfinite().all(dim=-1)
        rows = torch.where(counts[:, None], rows, 0).double()
        count = counts.sum().double()
        mean = rows.sum(dim=0) / count.clamp(min=1)
        deviations = (rows - mean) * counts[:, None]
        return cls(count, mean, deviations.square().sum(dim=0))

    def merge(self, batch: "Moments") -> "Moments":
        """Compute the moments of both sets of rows together."""
        # n = n_a + n_b, δ = μ_b − μ_a: μ = μ_a + δ n_b / n and M2 = M2_a + M2_b + δ² n_a n_b / n
        count = self.count + batch.count
        share = batch.count / count.clamp(min=1)
        delta = batch.mean - self.mean
        m2 = self.m2 + batch.m2 + delta.square() * self.count * share
        return Moments(count, self.mean + delta * share, m2)

    def reduced(self, reduce: Reduce) -> "Moments":
        """Compute the moments of the rows of all processes: the common mean first, then the deviations from it."""
        if reduce is alone:
            return self
        # Chan's formula for many parts at once: merges in pairs would round by the order of processes.
        count = reduce(self.count, "sum")
        mean = reduce(self.count * self.mean, "sum") / count.clamp(min=1)
        m2 = self.m2 + self.count * (self.mean - mean).square()
        return Moments(count, mean, reduce(m2, "sum"))

    def variance(self) -> Tensor:
        """Compute the variance of the population; 1 before the first row."""
        return torch.where(self.count > 0, self.m2 / self.count.clamp(min=1), 1.0)


class ObservationNormalizer:
    """clip((x − μ) / √(σ² + ε), ±10) by column, over all rows ever seen; columns the spec calls raw pass unchanged."""

    def __init__(self, spec: ObservationSpec, device: torch.device | str = "cpu") -> None:
        raw = spec.raw or (False,) * spec.features
        self.raw = torch.tensor(raw, dtype=torch.bool, device=device)
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self._freeze(Moments.empty(len(self.raw), device))

    def _freeze(self, moments: Moments) -> None:
        # Computed once, since a rollout must be scaled by the same numbers when acting and when learning.
        self.moments = moments
        self.mean = torch.where(self.raw, 0.0, moments.mean).to(self.dtype)
        # Before the first rollout nothing is known of a feature, and it passes as it is.
        untouched = self.raw | (moments.count == 0)
        deviation = (moments.variance() + OBSERVATION_EPSILON).sqrt()
        self.scale = torch.where(untouched, 1.0, deviation).to(self.dtype)
        self.limit = torch.where(self.raw, torch.inf, OBSERVATION_CLIP)
        self.floor = -self.limit

    def normalize(self, features: Tensor) -> Tensor:
        """Scale features to float32 ``[..., D]``; a value that is not finite stays so, and stops the policy."""
        # Centred in the type of the raw features: an offset like 1.7e9 leaves float32 no digits.
        return ((features - self.mean) / self.scale).clamp(self.floor, self.limit).float()

    def update(self, features: Tensor, valid: Tensor, reduce: Reduce = alone) -> None:
        """Take in the rows of a rollout.

        Args:
            features: Raw, ``[..., D]``; rows that are not finite are skipped.
            valid: Bool ``[...]``; other rows are skipped.
            reduce: Combines a tensor of all processes.
        """
        batch = Moments.of(features.flatten(0, -2), valid.flatten()).reduced(reduce)
        self._freeze(self.moments.merge(batch))

    def state_dict(self) -> dict[str, Tensor]:
        return {name: part.clone() for name, part in vars(self.moments).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        moved = {name: part.to(self.raw.device, copy=True) for name, part in state.items()}
        self._freeze(Moments(**moved))


class RewardNormalizer:
    """clip(r / σ, ±10) with σ of the running discounted return; scale only, since a shift would change the task.

    ``clip`` None for rewards whose sum must stay what it is, as potential differences.
    """

    def __init__(
        self,
        envs: int,
        gamma: float,
        device: torch.device | str = "cpu",
        clip: float | None = REWARD_CLIP,
    ) -> None:
        self.gamma = gamma
        self.clip = torch.inf if clip is None else clip
        self.moments = Moments.empty(1, device)
        self.running = torch.zeros(envs, dtype=torch.float64, device=device)

    @property
    def sigma(self) -> Tensor:
        """σ in units of reward, floored; 1 before the first reward."""
        return self.moments.variance()[0].sqrt().clamp(min=REWARD_SIGMA_FLOOR)

    def normalize(self, rewards: Tensor) -> Tensor:
        return (rewards / self.sigma).clamp(-self.clip, self.clip).to(rewards.dtype)

    def update(
        self,
        rewards: Tensor,
        starts: Tensor,
        valid: Tensor,
        reduce: Reduce = alone,
    ) -> None:
        """Take in the discounted returns R ← γ R + r of a rollout, R = 0 where an episode starts.

        Args:
            rewards: As paid, ``[T, E]``.
            starts: First steps of episodes, bool ``[T, E]``.
            valid: Bool ``[T, E]``; other rows are skipped.
            reduce: Combines a tensor of all processes.
        """
        # The deviation of returns, not of rewards, so that the value function learns numbers near 1 whatever γ is
        # (Engstrom et al. 2020, arXiv 2005.12729).
        returns = torch.empty_like(rewards, dtype=torch.float64)
        for t in range(len(returns)):
            self.running = torch.where(starts[t], 0.0, self.running) * self.gamma + rewards[t]
            returns[t] = self.running
        batch = Moments.of(returns.reshape(-1, 1), valid.flatten())
        self.moments = self.moments.merge(batch.reduced(reduce))

    def state_dict(self) -> dict[str, Tensor]:
        parts = {**vars(self.moments), "running": self.running}
        return {name: part.clone() for name, part in parts.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        moved = {name: part.to(self.running.device, copy=True) for name, part in state.items()}
        self.running = moved.pop("running")
        self.moments = Moments(**moved)


@dataclass(frozen=True)
class Normalizers:
    """The scales of observations and rewards; None: as they are."""

    observation: ObservationNormalizer | None = None
    reward: RewardNormalizer | None = None

    def _parts(self) -> dict[str, ObservationNormalizer | RewardNormalizer]:
        return {name: part for name, part in vars(self).items() if part is not None}

    def see(self, observation: Observation) -> Observation:
        """Scale an observation to what the policy sees."""
        if self.observation is None:
            return observation
        return replace(observation, features=self.observation.normalize(observation.features))

    def update(
        self,
        features: Tensor,
        rewards: Tensor,
        starts: Tensor,
        valid: Tensor,
        reduce: Reduce = alone,
    ) -> Tensor:
        """Take in a finished rollout: the one place where the scales move.

        Args:
            features: Raw, ``[T, E, D]``.
            rewards: As paid, ``[T, E]``.
            starts: First steps of episodes, bool ``[T, E]``.
            valid: Bool ``[T, E]``; other rows are skipped.
            reduce: Combines a tensor of all processes.

        Returns:
            The rewards scaled by the new σ, one for the whole rollout.
        """
        # After the rollout, so that its log-probabilities can be rescored under the scales that acted. Rewards are only
        # learned from now, so they can have the new scale.
        if self.observation is not None:
            self.observation.update(features, valid, reduce)
        if self.reward is None:
            return rewards
        self.reward.update(rewards, starts, valid, reduce)
        return self.reward.normalize(rewards)

    def state_dict(self) -> dict[str, Tensor]:
        """Copy all statistics as plain tensors by name."""
        return {
            f"{part}.{name}": tensor
            for part, normalizer in self._parts().items()
            for name, tensor in normalizer.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for part, normalizer in self._parts().items():
            normalizer.load_state_dict(part_of(state, f"{part}."))
