"""The losses of PPO on a minibatch, and which of its rows count for which head."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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


def surrogate(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """Compute min(r A, clip(r, 1 ± ε) A), element by element (Schulman et al. 2017, equation 7).

    Args:
        log_ratio: ln r, of any shape.
        advantages: A, a shape that broadcasts with it.
        clip_range: ε.

    Returns:
        The objective, and its derivative by ln r as a multiple of A.
    """
    # The minimum is pessimistic: a ratio beyond the range earns nothing more, but one that did harm is still undone.
    ratio = log_ratio.exp()
    free = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages
    return torch.minimum(free, clipped), ratio.masked_fill(free > clipped, 0.0)


def joint_log_ratio(log_ratio: Tensor) -> Tensor:
    """Sum the heads' log-ratios ``[..., heads]`` to that of the whole action, within limits."""
    return log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)


def policy_objective(
    log_ratio: Tensor,
    relevant: Tensor,
    advantages: Tensor,
    settings: params.PPOParams,
) -> tuple[Tensor, Tensor]:
    """Compute what PPO maximises, row by row.

    Args:
        log_ratio: ln π_new / π_old by head, ``[T, N, heads]``.
        relevant: Bool ``[T, N, heads]``.
        advantages: ``[T, N]``.
        settings: ``ratio: joint`` takes one ratio of the whole action; ``per_head`` a clipped term for each relevant
            head, summed, so that at ratio 1 both have the same gradient.

    Returns:
        The objective ``[T, N]``, and its derivative by the log-ratio of each head ``[T, N, heads]`` as a multiple of
        the advantage.
    """
    # Joint is the ratio of the paper, that of a whole action. By head, one large ratio leaves the gradients of the
    # other heads alone.
    if settings.ratio == "joint":
        total = log_ratio.sum(dim=-1)
        is_beyond = total.abs() > JOINT_LOG_RATIO_LIMIT
        objective, slope = surrogate(joint_log_ratio(log_ratio), advantages, settings.clip_range)
        slope = slope.masked_fill(is_beyond, 0.0)[..., None].expand_as(relevant)
    else:
        objective, slope = surrogate(log_ratio, advantages[..., None], settings.clip_range)
        objective = objective.masked_fill(~relevant, 0.0).sum(dim=-1)
    return objective, slope.masked_fill(~relevant, 0.0)


def k3(log_ratio: Tensor) -> Tensor:
    """Compute e^Δ − 1 − Δ ≥ 0, whose mean under the old policy is KL(old ‖ new) (Schulman, "Approximating KL")."""
    return torch.expm1(log_ratio) - log_ratio


class OutputGradients(NamedTuple):
    """The gradient of a minibatch's loss by what the network said of its rows: the fields of ``Rescoring``."""

    log_probs: Tensor  # [T, N, heads]
    values: Tensor  # [T, N]
    entropy: Tensor  # [T, N, heads]

    def through(self, rescoring: Rescoring, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute the gradient by parameters; one that the loss does not reach has 0."""
        outputs = (rescoring.log_probs, rescoring.values, rescoring.entropy)
        # The log-probability of a head without a choice is a constant.
        moved = [k for k, output in enumerate(outputs) if output.requires_grad]
        return torch.autograd.grad(
            [outputs[k] for k in moved],
            parameters,
            [self[k] for k in moved],
            allow_unused=True,
            materialize_grads=True,
        )


@dataclass(frozen=True)
class Losses:
    """What is reported of the loss of a minibatch, still on the device: ``sums``, which are added over processes (name
    → number or ``[heads]``), and ``peaks``, of which the largest counts.
    """

    sums: dict[str, Tensor]
    peaks: dict[str, Tensor]

    @classmethod
    def of_pieces(cls, pieces: "Sequence[Losses]") -> "Losses":
        """Join those of the pieces of a minibatch."""
        first, *others = pieces
        sums, peaks = dict(first.sums), dict(first.peaks)
        for other in others:
            sums = {name: value + other.sums[name] for name, value in sums.items()}
            peaks = {name: torch.maximum(value, other.peaks[name]) for name, value in peaks.items()}
        return cls(sums, peaks)

    def reduced(self, reduce: Reduce) -> "Losses":
        """Combine those of all processes, in one exchange for the sums and one for the peaks."""
        # One process has nothing to add, and packing would only copy.
        if reduce is alone:
            return self
        sums = as_one(list(self.sums.values()), lambda flat: reduce(flat, "sum"))
        peaks = as_one(list(self.peaks.values()), lambda flat: reduce(flat, "max"))
        return Losses(
            dict(zip(self.sums, sums, strict=True)),
            dict(zip(self.peaks, peaks, strict=True)),
        )


@torch.no_grad()
def losses(
    rescoring: Rescoring,
    batch: Rollout,
    usage: HeadUsage,
    settings: params.PPOParams,
    entropy_coef: float | Tensor,
) -> tuple[Losses, OutputGradients]:
    """Compute loss = policy + c_v · value − Σ_k c_k · mean normalised entropy of head k, and its gradient.

    The gradient is written out: autograd would run as many operations again.

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
    difference = (rescoring.log_probs - batch.log_probs).masked_fill(~usage.relevant, 0.0)
    log_ratio = difference.clamp(-HEAD_LOG_RATIO_LIMIT, HEAD_LOG_RATIO_LIMIT)
    objective, slope = policy_objective(log_ratio, usage.relevant, batch.advantages, settings)

    # The value loss is not clipped: that made no difference or did harm (Andrychowicz et al. 2021, arXiv 2006.05990).
    is_over = ~batch.valid
    errors = (rescoring.values - batch.returns).masked_fill(is_over, 0.0)

    # Gradients. The mean entropy is estimated over the rollout's rows with a choice; above 1 where this minibatch has
    # more than its share.
    scale = usage.minibatches / usage.rows.clamp(min=1)
    weights = (-scale * batch.advantages).masked_fill(is_over, 0.0)
    choice_rows = usage.choice_rows.clamp(min=1)
    of_entropy = (torch.zeros_like(choice_rows) - entropy_coef) / choice_rows * usage.minibatches
    gradients = OutputGradients(
        log_probs=(weights[..., None] * slope).masked_fill(difference != log_ratio, 0.0),
        entropy=of_entropy.expand_as(usage.choice).masked_fill(~usage.choice, 0.0),
        values=settings.value_coef * scale * errors,
    )

    # What is reported: sums and counts over rows, and largest values; the joint ratio under either setting, so that
    # runs of both can be compared.
    ratio = joint_log_ratio(log_ratio).exp()
    is_clipped = (ratio - 1.0).abs() > settings.clip_range
    sums = {
        "policy_loss": -scale * objective.masked_fill(is_over, 0.0).sum(),
        "value_loss": scale * 0.5 * errors.square().sum(),
        "entropy": rescoring.entropy.masked_fill(~usage.choice, 0.0).sum(dim=(0, 1)),
        "rows": batch.valid.sum().to(ratio.dtype),
        "choice": usage.choice.sum(dim=(0, 1)).to(ratio.dtype),
        "kl": k3(log_ratio).sum(dim=(0, 1)),  # by head; 0 where irrelevant, as the log-ratio is
        "ratio": ratio.masked_fill(is_over, 0.0).sum(),
        "clipped": (is_clipped & batch.valid).sum().to(ratio.dtype),
    }
    return Losses(sums, _peaks(difference, is_over)), gradients


def _peaks(difference: Tensor, is_over: Tensor) -> dict[str, Tensor]:
    """Find the extreme ratios of heads and of whole actions before they are limited, from log-ratios by head."""
    unlimited = difference.sum(dim=-1)
    return {
        # max |r_k − 1| over heads, and |r − 1|; expm1 keeps the digits near 0.
        "deviation": torch.maximum(
            largest(difference.expm1().abs()), largest(unlimited.expm1().abs())
        ),
        "ratio_max": largest(unlimited.masked_fill(is_over, -torch.inf).exp()),
        # Negative, since processes exchange maxima alone.
        "minus_ratio_min": largest(-unlimited.masked_fill(is_over, torch.inf).exp()),
    }
