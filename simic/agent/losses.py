"""The clipped objective of PPO (Schulman et al. 2017, arXiv 1707.06347) for factored actions; the value loss."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from simic import params
from simic.agent import distributions
from simic.agent.normalization import Reduce
from simic.agent.policy import ActorCritic, Replayed
from simic.agent.rollout import Rollout

HEAD_LOG_RATIO_LIMIT = 20.0  # e^20 ≈ 4.9e8; float32 overflows at e^88
JOINT_LOG_RATIO_LIMIT = 30.0
ADVANTAGE_SIGMA_FLOOR = 0.1  # for scaled rewards: below it differences are noise and are not blown up to 1


def normalized(advantages: Tensor, valid: Tensor, reduce: Reduce | None = None) -> Tensor:
    """(A − μ) / max(σ, floor) over the valid rows of all processes; 0 where not valid."""
    every = reduce or (lambda x, _: x)
    count = every(valid.sum().to(advantages.dtype), "sum").clamp(min=1)
    mean = every(torch.where(valid, advantages, 0.0).sum(), "sum") / count
    centred = torch.where(valid, advantages - mean, 0.0)
    sigma = (every(centred.square().sum(), "sum") / count).sqrt()
    return centred / sigma.clamp(min=ADVANTAGE_SIGMA_FLOOR)


@dataclass(frozen=True)
class Usage:
    """Which heads mattered where: ``relevant``, and ``open`` where more than one choice was legal as well.

    Counts are over all processes; ``N`` valid rows in so many ``minibatches``. A sum over one of them times
    minibatches / N is unbiased for the mean over the rollout, whatever rows fall into it.
    """

    relevant: Tensor  # [T, E, heads] bool
    open: Tensor  # [T, E, heads] bool
    rows: Tensor  # N, may be 0
    open_rows: Tensor  # [heads]
    relevant_rows: Tensor  # [heads]
    minibatches: int

    def select(self, envs: Tensor) -> "Usage":
        return replace(self, relevant=self.relevant.index_select(1, envs), open=self.open.index_select(1, envs))


@torch.no_grad()
def usage(policy: ActorCritic, rollout: Rollout, minibatches: int, reduce: Reduce | None) -> Usage:
    """Read off the sampled actions and the masks they were sampled under."""
    relevant = policy.relevance[rollout.actions[..., 0]] & rollout.valid[..., None]
    several = torch.stack([_options(policy, rollout, head) > 1 for head in range(len(policy.heads))], dim=-1)
    by_head = ((relevant & several).sum(dim=(0, 1)), relevant.sum(dim=(0, 1)))
    counts = torch.cat((rollout.valid.sum()[None], *by_head)).to(rollout.values.dtype)
    counts = counts if reduce is None else reduce(counts, "sum")
    open_rows, relevant_rows = counts[1:].chunk(2)
    return Usage(relevant, relevant & several, counts[0], open_rows, relevant_rows, minibatches)


def _options(policy: ActorCritic, rollout: Rollout, head: int) -> Tensor:
    chosen = list(rollout.actions[..., :2].unbind(dim=-1))
    mask = distributions.legal(policy.action_spec, rollout.masks, head, chosen)
    size = policy.action_spec.heads[head].size
    return torch.full_like(chosen[0], size) if mask is None else mask.sum(dim=-1)


def surrogate(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """min(r A, clip(r, 1 ± ε) A), element by element."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages)


def policy_objective(
    log_ratio: Tensor, relevant: Tensor, advantages: Tensor, settings: params.PPOParams, weights: Tensor | None = None
) -> Tensor:
    """What PPO maximises, per row ``[T, N]``, from log-ratios per head ``[T, N, heads]``.

    ``joint``: one ratio of the whole action. ``per_head``: a clipped term for each relevant head, summed, so that at
    ratio 1 both have the same gradient, unless the heads have ``weights``.
    """
    if settings.ratio == "joint":
        joint = log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
        return surrogate(joint, advantages, settings.clip_range)
    by_head = surrogate(log_ratio, advantages[..., None], settings.clip_range)
    by_head = by_head if weights is None else by_head * weights
    return torch.where(relevant, by_head, 0.0).sum(dim=-1)


def k3(log_ratio: Tensor) -> Tensor:
    """e^Δ − 1 − Δ ≥ 0, whose mean under the old policy is KL(old ‖ new) (Schulman, "Approximating KL divergence")."""
    return torch.expm1(log_ratio) - log_ratio


@dataclass(frozen=True)
class Terms:
    """The loss of a minibatch and what is reported of it, all still on the device.

    ``sums`` are added over processes (name → number or ``[heads]``), of ``peaks`` the largest counts.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    peaks: dict[str, Tensor]

    def joined(self, other: "Terms") -> "Terms":
        """Of both parts of a minibatch; the loss of the first alone, since its gradient is taken already."""
        sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        peaks = {name: torch.maximum(value, other.peaks[name]) for name, value in self.peaks.items()}
        return Terms(self.loss, sums, peaks)

    def reduced(self, reduce: Reduce | None) -> "Terms":
        """Of all processes, in one exchange for the sums and one for the peaks; the loss stays this one's."""
        if reduce is None:
            return self
        return Terms(self.loss, _exchanged(self.sums, "sum", reduce), _exchanged(self.peaks, "max", reduce))


def _exchanged(tensors: dict[str, Tensor], how: Literal["sum", "max"], reduce: Reduce) -> dict[str, Tensor]:
    flat = reduce(torch.cat([tensor.flatten() for tensor in tensors.values()]), how)
    parts = flat.split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def head_weights(used: Usage, settings: params.PPOParams) -> Tensor | None:
    """``head_weight: mean`` gives every head its own mean, however seldom it mattered: N / n_k."""
    return used.rows.clamp(min=1) / used.relevant_rows.clamp(min=1) if settings.head_weight == "mean" else None


def entropy_sum(seen: Replayed, used: Usage) -> Tensor:
    """Normalised entropy ``[heads]``, summed over open rows."""
    return torch.where(used.open, seen.entropy, 0.0).sum(dim=(0, 1))


def mean_entropy(seen: Replayed, used: Usage) -> Tensor:
    """Unbiased estimate from a minibatch of the rollout's mean over open rows ``[heads]``, for the loss. Above 1 it
    can be where more rows are open than in other minibatches. 0 of a head that was never open.
    """
    return entropy_sum(seen, used) * used.minibatches / used.open_rows.clamp(min=1)


def floor_pull(entropy: Tensor, floors: Tensor, coefficient: float) -> Tensor:
    """−d/dH of c · max(0, f − H)², ``[heads]``: what the penalty for an entropy below its floor weighs it with."""
    return 2.0 * coefficient * (floors - entropy).clamp(min=0)


def terms(
    seen: Replayed, batch: Rollout, used: Usage, settings: params.PPOParams, entropy_coef: float | Tensor
) -> Terms:
    """Return loss = policy + c_v · value − Σ_k c_k · mean normalised entropy of head k, as sums scaled by
    minibatches / N, with the sums and peaks that are reported.

    ``entropy_coef`` is one number for all heads, or one for each ``[heads]``.
    """
    assert batch.advantages is not None
    assert batch.returns is not None
    difference = torch.where(used.relevant, seen.log_probs - batch.log_probs, 0.0)
    log_ratio = difference.clamp(-HEAD_LOG_RATIO_LIMIT, HEAD_LOG_RATIO_LIMIT)
    scale = used.minibatches / used.rows.clamp(min=1)

    def over_rows(x: Tensor) -> Tensor:
        return scale * torch.where(batch.valid, x, 0.0).sum()

    weights = head_weights(used, settings)
    policy = -over_rows(policy_objective(log_ratio, used.relevant, batch.advantages, settings, weights))
    value = over_rows(0.5 * (seen.values - batch.returns).square())
    entropy = mean_entropy(seen, used)
    bonus = (entropy_coef * entropy).sum() if isinstance(entropy_coef, Tensor) else entropy_coef * entropy.sum()
    loss = policy + settings.value_coef * value - bonus
    with torch.no_grad():
        return Terms(
            loss,
            {"policy_loss": policy.detach(), "value_loss": value.detach(), "bonus": bonus.detach()}
            | {"entropy": entropy_sum(seen, used)}
            | _sums(log_ratio, batch.valid, used, settings.clip_range),
            _peaks(difference, seen, batch.valid),
        )


def _sums(log_ratio: Tensor, valid: Tensor, used: Usage, clip_range: float) -> dict[str, Tensor]:
    """Sums over rows with their counts; divergences of irrelevant heads are exactly 0 since their log-ratio is."""
    relevant = used.relevant
    joint = log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
    ratio = joint.exp()
    outside = (ratio - 1.0).abs() > clip_range
    return {
        "rows": valid.sum().to(ratio.dtype),
        "relevant": relevant.sum(dim=(0, 1)).to(ratio.dtype),
        "open": used.open.sum(dim=(0, 1)).to(ratio.dtype),
        "kl": k3(log_ratio).sum(dim=(0, 1)),
        "kl_k1": -joint.sum(),
        "ratio": torch.where(valid, ratio, 0.0).sum(),
        "clipped": (outside & valid).sum().to(ratio.dtype),
        "head_clipped": ((log_ratio.expm1().abs() > clip_range) & relevant).sum(dim=(0, 1)).to(ratio.dtype),
    }


def _peaks(difference: Tensor, seen: Replayed, valid: Tensor) -> dict[str, Tensor]:
    """Largest values over rows; ``deviation`` is before any clamp: max |r_k − 1| over heads, and |r − 1|."""
    joint = difference.sum(dim=-1)
    return {
        "deviation": torch.maximum(largest(difference.expm1().abs()), largest(joint.expm1().abs())),
        "ratio_max": largest(torch.where(valid, joint, -torch.inf).exp()),
        "minus_ratio_min": largest(-torch.where(valid, joint, torch.inf).exp()),
        "log_prob": largest(seen.log_probs.abs()),
    }


def largest(x: Tensor) -> Tensor:
    """Maximum, −inf of nothing (a process may hold no environment of a minibatch); NaN stays NaN."""
    return x.max() if x.numel() else x.new_tensor(-torch.inf)
