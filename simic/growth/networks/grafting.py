"""How a seed joins its host: which gradients flow, and the blend operators.

Features are ``[R, B, …, C]`` with R hosts (or streams). Nothing here multiplies an absent or inactive seed by 0: rows
are chosen by index, so an Inf in a seed that does not act reaches nobody.
"""

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from simic.growth.life.vocabulary import Blend
from simic.growth.networks.layers import Samplewise

MIN_GATE_UNITS = 8


class Gate(Samplewise):
    """Per-sample amplitude in (0, 1): mean pool → linear → ReLU → linear → sigmoid; ``[B, C, …] → [B, 1]``."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        units = max(MIN_GATE_UNITS, shape[0] // 4)
        self.hidden = nn.Linear(shape[0], units)
        self.out = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        # A map is pooled over its pixels, a vector is taken as it is.
        pooled = x.flatten(2).mean(-1) if x.dim() > 2 else x
        return torch.sigmoid(self.out(torch.relu(self.hidden(pooled))))


class TokenGate(Gate, Samplewise):
    """The gate of each position, ``[B, L, D] → [B, L, 1]``: a mean over positions would show each the ones after it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape[-1:])

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.out(torch.relu(self.hidden(x))))


class StraightThrough(Function):
    """Pass h on, and its gradient to both: the seed learns from a loss it does not yet change.

    Not h + s − stopgrad(s): that is NaN when s is Inf, and rounds when it is not.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, s: Tensor) -> Tensor:
        return h

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


def _spread(amplitude: Tensor, x: Tensor) -> Tensor:
    """Append dimensions of size 1, so that amplitudes are broadcast over the dimensions of ``x``."""
    return amplitude.view(*amplitude.shape, *[1] * (x.dim() - amplitude.dim()))


def blend(
    operator: Blend,
    h: Tensor,
    s: Tensor,
    x: Tensor,
    alpha: Tensor,
    gate: Tensor | None,
) -> Tensor:
    """Blend a seed's features into its host's: ``[R, B, …, C]``, exactly h at alpha 0.

    Args:
        operator: how they are joined.
        h: features of the host.
        s: features of the seed.
        x: input of the seed, detached under isolation, so that MULTIPLY's tanh adds no gradient to an isolated host.
        alpha: amplitude of each network, ``[R]``.
        gate: amplitude of each sample, ``[R, B, 1]`` or ``[R, B, L, 1]``.
    """
    # MULTIPLY scales by what the seed changes, at most to double the features or to 0.
    amplitude = _spread(alpha, h)
    if operator is Blend.MULTIPLY:
        return h * (1 + amplitude * torch.tanh(s - x))
    # GATE chooses the amplitude of each sample; ADD moves from the host's features to the seed's.
    if gate is not None:
        amplitude = amplitude * _spread(gate, h)
    return torch.lerp(h, s, amplitude)


def blend_gradients(
    operator: Blend,
    grad: Tensor,
    h: Tensor,
    s: Tensor,
    x: Tensor,
    alpha: Tensor,
    gate: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Differentiate ``blend`` by h, s, x (None: it does not read x) and gate (None: there is none).

    Args:
        operator, h, s, x, alpha, gate: as in ``blend``.
        grad: gradient of its result.
    """
    amplitude = _spread(alpha, h)
    if operator is Blend.MULTIPLY:
        # d(h (1 + a tanh(s - x))): by h, by s, and by x with the other sign.
        bent = torch.tanh(s - x)
        grad_s = grad * h * (amplitude * (1 - bent * bent))
        return grad * (1 + amplitude * bent), grad_s, -grad_s, None
    grad_gate = None
    if gate is not None:
        # d lerp(h, s, a g) by g is a (s - h), summed over the features that share a gate.
        pull = grad * (s - h)
        pull = pull.flatten(gate.dim() - 1).sum(-1, keepdim=True)
        grad_gate = pull * _spread(alpha, gate)
        amplitude = amplitude * _spread(gate, h)
    # d lerp(h, s, a) is a by s and 1 - a by h.
    grad_s = grad * amplitude
    return grad - grad_s, grad_s, None, grad_gate
