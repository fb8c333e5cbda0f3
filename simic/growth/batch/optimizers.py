"""SGD with momentum and AdamW over many networks at once, in place, with their own learning rate, step count and clip.

Everything is elementwise, a row for each host, seed or gate, so a row never sees another. Rows of equal step and rate
go through torch's fused AdamW (``apply_fused``) where that rounds a row the same beside any others; ``apply`` takes any
mixture. The tests hold both to torch.optim, row by row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from simic.params import HostOptimizer

ADAM_BETAS = (0.9, 0.99)  # hosts train for a hundred steps: 0.999 would remember them all
ADAM_EPS = 1e-8
CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_

LANES = 16  # of the widest vector registers: fused kernels round what fills them otherwise than what is left over

MOMENTS: dict[str, tuple[str, ...]] = {"sgd": ("momentum",), "adamw": ("mean", "variance")}


@dataclass
class Update:
    """What one update reads and writes, all broadcastable to ``param``: ``active`` None = every row trains."""

    param: Tensor
    grad: Tensor
    moments: dict[str, Tensor]
    step: Tensor  # float64, counts this update: 1 at the first
    learning_rate: Tensor
    weight_decay: float
    active: Tensor | None = None


@dataclass
class RowRange:
    """Some neighbouring rows of a block that share step and rate: views ``[rows, *shape]`` of its tensors."""

    rows: slice
    params: list[Tensor]
    moments: list[list[Tensor]]  # in the order of MOMENTS
    step: Tensor  # float32, updates done
    learning_rate: float
    weight_decay: float


@torch.no_grad()
def apply_fused(runs: list[list[RowRange]], grads: list[list[Tensor]], optimizer: HostOptimizer) -> None:
    """Step the runs of all blocks, in place; ``grads[block][tensor]`` are of whole blocks."""
    # By rate and decay: parameters, gradients, means, variances and steps of one fused call.
    calls: dict[tuple[float, float], list[list[Tensor]]] = {}
    for own, of_block in zip(runs, grads, strict=True):
        for run in own:
            run.step += 1
            for place, (param, grad) in enumerate(zip(run.params, of_block, strict=True)):
                moments = [moment[place] for moment in run.moments]
                if optimizer.name == "adamw" and param[0].numel() % LANES == 0:
                    call = calls.setdefault((run.learning_rate, run.weight_decay), [[], [], [], [], []])
                    for part, tensor in zip(
                        call, (param, grad[run.rows].contiguous(), *moments, run.step), strict=True
                    ):
                        part.append(tensor)
                    continue
                named = dict(zip(MOMENTS[optimizer.name], moments, strict=True))
                rate = torch.tensor(run.learning_rate, dtype=param.dtype)
                apply(Update(param, grad[run.rows], named, run.step.double(), rate, run.weight_decay), optimizer)
    for (rate, decay), (params, flat, means, variances, steps) in calls.items():
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            params, flat, means, variances, [], steps, lr=rate, beta1=ADAM_BETAS[0], beta2=ADAM_BETAS[1],
            weight_decay=decay, eps=ADAM_EPS, amsgrad=False, maximize=False,
        )  # fmt: skip


def apply(update: Update, optimizer: HostOptimizer) -> None:
    """Step once, in place; inactive elements keep parameter and moments bit for bit."""
    before = None
    if update.active is not None:
        before = [tensor.clone() for tensor in (update.param, *update.moments.values())]
    if optimizer.name == "sgd":
        _sgd(update, optimizer.momentum)
    else:
        _adamw(update)
    if before is not None and update.active is not None:
        for tensor, old in zip((update.param, *update.moments.values()), before, strict=True):
            tensor.copy_(torch.where(update.active, tensor, old))


def _sgd(update: Update, momentum: float) -> None:
    """Step by v ← μ v + g + λ p; p ← p − η v (torch.optim.SGD, no dampening)."""
    velocity = update.moments["momentum"]
    velocity.mul_(momentum).add_(update.grad)
    if update.weight_decay:
        velocity.add_(update.param, alpha=update.weight_decay)
    update.param.addcmul_(update.learning_rate, velocity, value=-1)


def _adamw(update: Update) -> None:
    """Step as torch.optim.AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101)."""
    beta1, beta2 = ADAM_BETAS
    mean, variance = update.moments["mean"], update.moments["variance"]
    # float64, then rounded: the last bit of pow would depend on the row's place among others.
    correction1 = (1 - beta1**update.step).to(update.param.dtype)
    correction2 = (1 - beta2**update.step).sqrt().to(update.param.dtype)
    update.param.mul_(1 - update.learning_rate * update.weight_decay)
    mean.mul_(beta1).add_(update.grad, alpha=1 - beta1)
    variance.mul_(beta2).addcmul_(update.grad, update.grad, value=1 - beta2)
    denominator = (variance.sqrt() / correction2).add_(ADAM_EPS)
    update.param.addcdiv_(mean * (update.learning_rate / correction1), denominator, value=-1)


def clip_scale(norms: Tensor, max_norm: float) -> Tensor:
    """Return the factor that brings a gradient of this norm to at most ``max_norm``; NaN stays NaN, in its own row."""
    return (max_norm / (norms + CLIP_EPS)).clamp(max=1.0)
