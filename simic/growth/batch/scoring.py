"""Cross-entropy and whether an answer is right, of many networks at once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

FEW_CLASSES = 16  # up to here class by class over long rows: torch's softmax along 2 classes takes four times as long


def score(logits: Tensor, y: Tensor, lacking: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return loss and right answers per sample: ``[R, B, classes], [R, B] → [R, B], [R, B]`` bool; of sequences,
    ``[R, B, L, classes], [R, B, L]``, the means over their tokens, both float. What a task is ``lacking [R, classes]``
    is no answer; a network with non-finite logits is never right.
    """
    if y.dim() == 2 and logits.shape[-1] <= FEW_CLASSES:
        return _by_class(logits, y, lacking)
    finite = logits.detach().isfinite().all(-1)
    if lacking is not None:
        among = lacking.view(len(lacking), *[1] * (logits.dim() - 2), -1)
        logits = logits.masked_fill(among, -torch.inf)
    loss = F.cross_entropy(logits.flatten(0, -2), y.reshape(-1), reduction="none").view(y.shape)
    right = (logits.detach().argmax(-1) == y) & finite
    if y.dim() == 2:
        return loss, right
    return loss.flatten(2).mean(2), right.flatten(2).float().mean(2)


def _by_class(logits: Tensor, y: Tensor, lacking: Tensor | None) -> tuple[Tensor, Tensor]:
    loss, right = _FewClasses.apply(logits, y, lacking)  # pyright: ignore[reportGeneralTypeIssues]
    return loss, right


class _FewClasses(Function):
    """The same on ``[classes, R, B]``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, y: Tensor, lacking: Tensor | None) -> tuple[Tensor, Tensor]:
        by_class = logits.permute(2, 0, 1).contiguous()
        finite = by_class.amax(0).isfinite() & by_class.amin(0).isfinite()
        if lacking is not None:
            by_class = by_class.masked_fill(lacking.T[:, :, None], -torch.inf)
        best = by_class.amax(0)
        taken = by_class.gather(0, y[None])[0]
        right = taken == best
        if y.device.type != "cpu" or int((by_class == best).sum()) != y.numel():  # of equals the first is the answer
            right = by_class.argmax(0) == y
        weight = (by_class - best).exp_()
        total = weight[0].clone()
        for each in weight[1:]:  # sum() adds in another order at the end of a row: no host would be the same alone
            total += each
        loss = total.log() + best - taken
        ctx.save_for_backward(weight.div_(total), y)
        right = right & finite
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        probability, y = ctx.saved_tensors
        one = torch.ones((), dtype=probability.dtype, device=probability.device).expand(1, *y.shape)
        towards = probability.scatter_add(0, y[None], -one)  # p − 1 for the answer
        return (towards * grads[0]).permute(1, 2, 0).contiguous(), None, None
