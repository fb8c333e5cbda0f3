"""Hierarchical masked categoricals: the op, then the slot given the op, then the other heads given both.

A head that the chosen op does not use is not part of the action: it contributes exactly 0 to log-probability, entropy,
divergence and gradient. Everything is at least float32, whatever the precision of the network.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

from simic.agent.spec import ActionSpec
from simic.errors import DecisionFault

# Added to nothing: it replaces the logit after the largest legal one was shifted to 0, so exp() of it is exactly 0
# however large or small the legal logits are, and no infinity can turn into NaN.
MASKED_LOGIT = -1e9


def head_mask(
    spec: ActionSpec,
    masks: dict[str, Tensor],
    head: int,
    chosen: Sequence[Tensor],
) -> Tensor | None:
    """Look up which choices of a head are legal.

    Args:
        spec: The heads.
        masks: By head name, as ``Observation`` says.
        head: Its number.
        chosen: Indices ``[...]`` of the op and the slot chosen before it.

    Returns:
        Bool ``[..., n]``; None: everything is legal.
    """
    mask = masks.get(spec.heads[head].name)
    mask_given = spec.heads[head].mask_given
    if mask is None or mask_given == "nothing":
        return mask
    # Of a table by op or by slot, the row of the one that was chosen.
    index = chosen[0 if mask_given == "op" else 1][..., None, None]
    return mask.gather(-2, index.expand(*index.shape[:-1], mask.shape[-1])).squeeze(-2)


def masked_log_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Turn logits into log-probabilities; a masked choice has probability exactly 0.

    A row without a legal choice is uniform: where the head matters ``refuse_faults`` finds it, elsewhere it is unused.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if mask is None:
        return logits.log_softmax(dim=-1)
    # Shifted by the largest legal logit before masking: an illegal logit of any size leaves no trace.
    legal = logits.detach().masked_fill(~mask, -math.inf)
    shifted = logits - legal.amax(dim=-1, keepdim=True)
    return torch.where(mask, shifted, MASKED_LOGIT).log_softmax(dim=-1)


def likeliest(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Find the legal choice ``[...]`` with the largest logit; 0 where none is legal."""
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    return logits.argmax(dim=-1)


def sample(log_probs: Tensor, noise: Tensor) -> Tensor:
    """Find the choice ``[...]`` whose piece of the cumulative distribution holds ``noise``, uniform in [0, 1).

    In integers (38 bits of probability, 24 of noise), so that a running sum in another order gives the same choice.
    """
    # 38 + 24 bits and the sign fit into int64; scaling the threshold by the sum saves a division. The first piece whose
    # end lies beyond the threshold has width > 0, so a masked choice is never drawn.
    cumulative = log_probs.double().exp().mul_(2.0**38).long().cumsum(dim=-1)
    threshold = (noise.double() * 2.0**24).long()[..., None] * cumulative[..., -1:]
    is_beyond = (cumulative << 24) > threshold
    return is_beyond.int().argmax(dim=-1)


def entropy(log_probs: Tensor) -> Tensor:
    """Compute −Σ p ln p in nats; a masked choice adds 0 · −1e9 = 0."""
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def relevant_only(x: Tensor, relevant: Tensor | None) -> Tensor:
    """Replace ``[...]`` by exactly 0 where a head is irrelevant; None: it always matters."""
    return x if relevant is None else x.masked_fill(~relevant, 0)


@dataclass(frozen=True)
class Choice:
    """The distribution of one head and the chosen index ``[...]``, 0 where the head is irrelevant; ``relevant`` None
    means it always matters.
    """

    logits: Tensor
    mask: Tensor | None
    relevant: Tensor | None
    index: Tensor
    drawn_from: Tensor | None = None  # the log-probabilities, where the index was sampled

    @classmethod
    def decide(
        cls,
        logits: Tensor,
        mask: Tensor | None,
        relevant: Tensor | None,
        noise: Tensor | None,
        recorded: Tensor | None,
    ) -> Self:
        """Choose.

        Args:
            logits: ``[..., n]``.
            mask: Which are legal, bool ``[..., n]``; None: all.
            relevant: Where the head matters, bool ``[...]``; None: everywhere.
            noise: Uniform in [0, 1), ``[...]``; None: the likeliest choice is taken.
            recorded: The index of an earlier decision ``[...]``, taken as it is.
        """
        log_probs = None
        if recorded is not None:
            index = recorded.long()
        elif noise is not None:
            log_probs = masked_log_softmax(logits, mask)
            index = sample(log_probs, noise)
        else:
            index = likeliest(logits, mask)
        return cls(logits, mask, relevant, relevant_only(index, relevant), log_probs)

    @property
    def columns(self) -> Tensor:
        """The action's part, ``[..., 1]``."""
        return self.index[..., None]

    @property
    def outputs(self) -> Tensor:
        """What the network said, ``[..., n]``."""
        return self.logits

    @cached_property
    def log_probs(self) -> Tensor:
        """The log-probabilities of all choices; the likeliest of them is found without."""
        if self.drawn_from is None:
            return masked_log_softmax(self.logits, self.mask)
        return self.drawn_from

    def log_prob(self) -> Tensor:
        """Compute ln π of the index; exactly 0 where the head is irrelevant."""
        log_prob = self.log_probs.gather(-1, self.index[..., None]).squeeze(-1)
        return relevant_only(log_prob, self.relevant)

    def options(self) -> Tensor:
        """Count the legal choices; 0 where the head is irrelevant."""
        size = self.logits.shape[-1]
        count = torch.full_like(self.index, size) if self.mask is None else self.mask.sum(dim=-1)
        return relevant_only(count, self.relevant)

    def normalized_entropy(self) -> Tensor:
        """Compute H / ln(#legal) in [0, 1]; exactly 0 with one legal choice, and where the head is irrelevant."""
        # The bonus pays no head for choices that it does not have, and all heads the same for being undecided.
        size = self.logits.shape[-1]
        if self.mask is None and size > 1:
            return relevant_only(entropy(self.log_probs) / math.log(size), self.relevant)
        # ln 1 = 0 cannot divide: where there is no choice 2 stands in, and the result is replaced by 0.
        options = self.options()
        several = options > 1
        scale = torch.where(several, options, 2).to(self.log_probs.dtype).log()
        return torch.where(several, entropy(self.log_probs) / scale, 0.0)


class HeadDecision(Protocol):
    """What all heads decide alike: a ``Choice``, or ``gaussian.Numbers``."""

    @property
    def relevant(self) -> Tensor | None: ...

    @property
    def mask(self) -> Tensor | None: ...

    @property
    def outputs(self) -> Tensor: ...

    @property
    def columns(self) -> Tensor: ...

    def log_prob(self) -> Tensor: ...

    def normalized_entropy(self) -> Tensor: ...


def faults(decisions: Sequence[HeadDecision]) -> Tensor:
    """Tell, bool ``[2, ..., heads]``: a relevant row has no legal choice; an output of a relevant row is not finite."""
    # A head that does not matter may have an empty mask: nothing is chosen from it.
    always = torch.ones_like(decisions[0].outputs[..., 0], dtype=torch.bool)
    rows = [always if head.relevant is None else head.relevant for head in decisions]
    legal = [always if head.mask is None else head.mask.any(dim=-1) for head in decisions]
    # 0 where all are finite, else NaN; a sum of large ones could be infinite.
    zeros = torch.stack([(head.outputs * 0.0).sum(dim=-1) for head in decisions], dim=-1)
    is_fault = torch.stack((~torch.stack(legal, dim=-1), zeros.isnan()))
    return is_fault & torch.stack(rows, dim=-1)


def _are_sound(decisions: Sequence[HeadDecision]) -> bool:
    """Tell in few operations that there is no fault; False where some heads may not matter."""
    if any(head.mask is not None and head.relevant is not None for head in decisions):
        return False
    return all(
        math.isfinite(head.outputs.sum().item())
        and (head.mask is None or bool(head.mask.any(dim=-1).all()))
        for head in decisions
    )


def refuse_faults(spec: ActionSpec, decisions: Sequence[HeadDecision]) -> None:
    """Raise DecisionFault naming the head without a legal choice or without finite outputs; one transfer."""
    if decisions[0].outputs.device.type == "cpu" and _are_sound(decisions):
        return
    # All heads together: on a GPU each read waits for the whole queue.
    by_head = faults(decisions).flatten(1, -2).any(dim=1).tolist()
    for head, empty, broken in zip(spec.heads, *by_head, strict=True):
        if empty:
            raise DecisionFault(
                f"head {head.name!r}: an environment's mask forbids every choice; one must be legal"
            )
        if broken:
            kind = "numbers" if head.continuous else "logits"
            raise DecisionFault(f"head {head.name!r}: the policy's {kind} are not finite")
