"""The losses of PPO on a minibatch, and which of its rows count for which head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simic import params
from simic.agent.distributions import head_mask
from simic.agent.metrics import largest
from simic.agent.policy import ActorCritic, Rescoring
from simic.agent.rollout import Rollout
from simic.transfer import Reduce, alone, as_one

HEAD_LOG_RATIO_LIMIT = 20.0  # e^20 ≈ 4.9e8; float32 overflows at e^88
JOINT_LOG_RATIO_LIMIT = 30.0

# Minibatches: which rows count, and for which heads.


@dataclass(frozen=True)
class HeadUsage:
    """Where the op uses a head (``relevant``), and where that head had more than one legal choice too (``choice``).

    Counts are over all processes. A sum over one of the ``minibatches`` times minibatches / rows is unbiased for the
    mean over the rollout, whatever rows fall into it.
    """

    relevant: Tensor  # [T, E, heads] bool
    choice: Tensor  # [T, E, heads] bool
    rows: Tensor  # valid ones of the rollout; may be 0
    choice_rows: Tensor  # [heads]
    minibatches: int

    def select(self, envs: Tensor) -> "HeadUsage":
        """Select some environments; the counts stay those of the rollout."""
        return replace(
            self,
            relevant=self.relevant.index_select(1, envs),
            choice=self.choice.index_select(1, envs),
        )


@torch.no_grad()
def head_usage(
    policy: ActorCritic,
    rollout: Rollout,
    minibatches: int,
    reduce: Reduce = alone,
) -> HeadUsage:
    """Read off the sampled actions, and the masks they were sampled under, which heads mattered.

    Args:
        policy: Knows which op uses which head.
        rollout: With actions and masks.
        minibatches: Into which it will be cut.
        reduce: Combines the counts of all processes.
    """
    # A head that the op does not use was not decided: its index is 0 whatever the policy thinks of it. Continuous
    # heads alone have no op.
    spec = policy.action_spec
    valid = rollout.valid[..., None]
    chosen = rollout.actions[..., : spec.leading].long().unbind(dim=-1)
    relevant = policy.relevance[chosen[0]] & valid if chosen else valid.expand_as(rollout.log_probs)
    # Nor was one with a single legal choice. A head without a mask has as many choices as it is wide.
    # One of real numbers always has a choice.
    has_choice: list[Tensor] = []
    for k, head in enumerate(spec.heads):
        mask = head_mask(spec, rollout.masks, k, chosen)
        is_free = torch.full_like(rollout.valid, head.continuous or head.size > 1)
        has_choice.append(is_free if mask is None else mask.sum(dim=-1) > 1)
    choice = relevant & torch.stack(has_choice, dim=-1)
    # Both counts in one exchange between processes.
    rows = rollout.valid.sum()[None]
    rows_by_head = choice.sum(dim=(0, 1))
    counts = torch.cat((rows, rows_by_head)).to(rollout.values.dtype)
    counts = reduce(counts, "sum")
    return HeadUsage(relevant, choice, counts[0], counts[1:], minibatches)


# Losses.


def surrogate(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """Compute min(r A, clip(r, 1 ± ε) A), element by element (Schulman et al. 2017, equation 7).

    Args:
        log_ratio: ln r, of any shape.
        advantages: A, a shape that broadcasts with it.
        clip_range: ε.
    """
    # The minimum is pessimistic: a ratio beyond the range earns nothing more, but one that did harm is still undone.
    ratio = log_ratio.exp()
    return torch.minimum(
        ratio * advantages, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages
    )


def joint_log_ratio(log_ratio: Tensor) -> Tensor:
    """Sum the heads' log-ratios ``[..., heads]`` to that of the whole action, within limits."""
    return log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)


def policy_objective(
    log_ratio: Tensor,
    relevant: Tensor,
    advantages: Tensor,
    settings: params.PPOParams,
) -> Tensor:
    """Compute what PPO maximises, row by row.

    Args:
        log_ratio: ln π_new / π_old by head, ``[T, N, heads]``.
        relevant: Bool ``[T, N, heads]``.
        advantages: ``[T, N]``.
        settings: ``ratio: joint`` takes one ratio of the whole action; ``per_head`` a clipped term for each relevant
            head, summed, so that at ratio 1 both have the same gradient.

    Returns:
        The objective ``[T, N]``.
    """
    # Joint is the ratio of the paper, that of a whole action. By head, one large ratio leaves the gradients of the
    # other heads alone.
    if settings.ratio == "joint":
        return surrogate(joint_log_ratio(log_ratio), advantages, settings.clip_range)
    by_head = surrogate(log_ratio, advantages[..., None], settings.clip_range)
    return torch.where(relevant, by_head, 0.0).sum(dim=-1)


def k3(log_ratio: Tensor) -> Tensor:
    """Compute e^Δ − 1 − Δ ≥ 0, whose mean under the old policy is KL(old ‖ new) (Schulman, "Approximating KL")."""
    return torch.expm1(log_ratio) - log_ratio


@dataclass(frozen=True)
class Losses:
    """The loss of a minibatch and what is reported of it, all still on the device: ``sums``, which are added over
    processes (name → number or ``[heads]``), and ``peaks``, of which the largest counts.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    peaks: dict[str, Tensor]

    @classmethod
    def of_pieces(cls, pieces: "Sequence[Losses]") -> "Losses":
        """Join those of the pieces of a minibatch."""
        first, *others = pieces
        sums, peaks, loss = dict(first.sums), dict(first.peaks), first.loss
        for other in others:
            loss = loss + other.loss
            sums = {name: value + other.sums[name] for name, value in sums.items()}
            peaks = {name: torch.maximum(value, other.peaks[name]) for name, value in peaks.items()}
        return cls(loss, sums, peaks)

    def reduced(self, reduce: Reduce) -> "Losses":
        """Combine those of all processes, in one exchange for the sums and one for the peaks; the loss stays."""
        # One process has nothing to add, and packing would only copy.
        if reduce is alone:
            return self
        sums = as_one(list(self.sums.values()), lambda flat: reduce(flat, "sum"))
        peaks = as_one(list(self.peaks.values()), lambda flat: reduce(flat, "max"))
        return Losses(
            self.loss,
            dict(zip(self.sums, sums, strict=True)),
            dict(zip(self.peaks, peaks, strict=True)),
        )


def losses(
    rescoring: Rescoring,
    batch: Rollout,
    usage: HeadUsage,
    settings: params.PPOParams,
    entropy_coef: float | Tensor,
) -> Losses:
    """Compute loss = policy + c_v · value − Σ_k c_k · mean normalised entropy of head k.

    Args:
        rescoring: The minibatch under the present weights.
        batch: The minibatch as it was when acting, with normalised advantages.
        usage: Of its rows, with the counts of the rollout: sums are scaled by minibatches / N.
        settings: Clip range, ratio and coefficients.
        entropy_coef: c_k, one number for all heads or one for each ``[heads]``.
    """
    assert batch.advantages is not None
    assert batch.returns is not None
    # Heads that do not matter have log-ratio 0; the others are limited before they are exponentiated, as one infinite
    # ratio would make the gradient of the whole minibatch NaN.
    difference = torch.where(usage.relevant, rescoring.log_probs - batch.log_probs, 0.0)
    log_ratio = difference.clamp(-HEAD_LOG_RATIO_LIMIT, HEAD_LOG_RATIO_LIMIT)
    scale = usage.minibatches / usage.rows.clamp(min=1)

    def over_rows(x: Tensor) -> Tensor:
        return scale * torch.where(batch.valid, x, 0.0).sum()

    # The value loss is not clipped: that made no difference or did harm (Andrychowicz et al. 2021, arXiv 2006.05990).
    policy_loss = -over_rows(
        policy_objective(log_ratio, usage.relevant, batch.advantages, settings)
    )
    value_loss = over_rows(0.5 * (rescoring.values - batch.returns).square())
    # Estimates the mean over the rollout's rows with a choice; above 1 where this minibatch has more than its share.
    entropy_sums = torch.where(usage.choice, rescoring.entropy, 0.0).sum(dim=(0, 1))
    entropy = entropy_sums * usage.minibatches / usage.choice_rows.clamp(min=1)
    bonus = (
        (entropy_coef * entropy).sum()
        if isinstance(entropy_coef, Tensor)
        else entropy_coef * entropy.sum()
    )
    loss = policy_loss + settings.value_coef * value_loss - bonus

    # What is reported: sums and counts over rows, and largest values.
    with torch.no_grad():
        # The joint ratio under either setting, so that runs of both can be compared.
        ratio = joint_log_ratio(log_ratio).exp()
        is_clipped = (ratio - 1.0).abs() > settings.clip_range
        sums = {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy_sums.detach(),
            "rows": batch.valid.sum().to(ratio.dtype),
            "choice": usage.choice.sum(dim=(0, 1)).to(ratio.dtype),
            "kl": k3(log_ratio).sum(dim=(0, 1)),  # by head; 0 where irrelevant, as the log-ratio is
            "ratio": torch.where(batch.valid, ratio, 0.0).sum(),
            "clipped": (is_clipped & batch.valid).sum().to(ratio.dtype),
        }
    return Losses(loss, sums, _peaks(difference.detach(), batch.valid))


def _peaks(difference: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Find the extreme ratios of heads and of whole actions before they are limited, from log-ratios by head."""
    unlimited = difference.sum(dim=-1)
    return {
        # max |r_k − 1| over heads, and |r − 1|; expm1 keeps the digits near 0.
        "deviation": torch.maximum(
            largest(difference.expm1().abs()), largest(unlimited.expm1().abs())
        ),
        "ratio_max": largest(torch.where(valid, unlimited, -torch.inf).exp()),
        # Negative, since processes exchange maxima alone.
        "minus_ratio_min": largest(-torch.where(valid, unlimited, torch.inf).exp()),
    }
