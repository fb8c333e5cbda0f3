"""Layers with the weights and the results of torch's own, in the form that runs fastest for many hosts at once.

Under vmap a convolution is a grouped convolution over hosts, a group norm a chain of small kernels: on small maps most
of their time is overhead. ``stackable`` replaces such layers of a template by matrix products on channels-last maps.
Numbers behind the choices (E = 32 or 4, B = 64, forward + backward, ms, 2 CPU threads): 1×1 4→8 at 4×4: grouped 0.79,
product 0.37; 3×3 16→16 at 2×2, 4 hosts: grouped 0.31, dense 0.14; 3×3 8→16 at 4×4: grouped 2.0, dense 4.5; 3×3 1→8 at
8×8: grouped 2.0, patches 2.0; GroupNorm 8 at 8×8: 1.9, as a layer norm 1.6; max pooling 8 at 8×8: 2.7, channels last
0.9.
"""

from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

DENSE_MAX_PIXELS = 4
DENSE_MAX_WORK = 16 * 16 * 64  # pixels² × channel pairs, above 2×2 maps


def stackable(module: nn.Module) -> nn.Module:
    """The module with its layers replaced where a faster form is known; parameters and their names stay."""
    for name, child in module.named_children():
        setattr(module, name, stackable(child))
    if type(module) is nn.Conv2d and _is_same_convolution(module):
        return _PointwiseConv(module) if module.kernel_size == (1, 1) else _SameConv(module)
    if type(module) is nn.GroupNorm:
        return _LastDimNorm(module)
    return module


def separable(module: nn.Module) -> nn.Module:
    """The module for one host at a time on channels-last maps; parameters and their names stay."""
    for name, child in module.named_children():
        setattr(module, name, separable(child))
    return _MapNorm(module) if type(module) is nn.GroupNorm else module


def _is_same_convolution(conv: nn.Conv2d) -> bool:
    """Stride 1, odd square kernel, zero padding that keeps the shape, no bias, dense or depthwise."""
    kernel = conv.kernel_size[0]
    plain = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.padding_mode == "zeros" and conv.bias is None
    square = conv.kernel_size == (kernel, kernel) and kernel % 2 == 1 and conv.padding == (kernel // 2, kernel // 2)
    depthwise = conv.groups == conv.in_channels == conv.out_channels and kernel > 1
    return plain and square and (conv.groups == 1 or depthwise)


class _Adopted(nn.Module):
    """Takes over the parameters of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, parameter in layer.named_parameters(recurse=False):
            self.register_parameter(name, parameter)


class _PointwiseConv(_Adopted):
    """1×1 convolution as one matrix product over all pixels."""

    weight: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(-1, channels) @ self.weight.flatten(1).T
        return pixels.view(batch, height, width, -1).permute(0, 3, 1, 2)


class _SameConv(_Adopted):
    """k×k convolution: a dense matrix on the smallest maps, patches for few inputs, torch's kernel for the rest."""

    weight: nn.Parameter

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(conv)
        self.groups, self.padding = conv.groups, conv.kernel_size[0] // 2

    def forward(self, x: Tensor) -> Tensor:
        pixels, (outputs, inputs) = x.shape[2] * x.shape[3], self.weight.shape[:2]
        if pixels <= DENSE_MAX_PIXELS or pixels**2 * x.shape[1] * outputs <= DENSE_MAX_WORK:
            return self._dense(x)
        if inputs == 1 and self.groups == 1:
            return self._patches(x)
        return F.conv2d(x, self.weight, padding=self.padding, groups=self.groups)

    def _dense(self, x: Tensor) -> Tensor:
        """All pixels and channels to all pixels and channels: weights spread over a constant of neighbourhoods."""
        batch, channels, height, width = x.shape
        outputs, inputs, kernel, _ = self.weight.shape
        spread = _neighbourhoods(kernel, height, width, x.dtype, x.device)
        pixels = height * width
        matrix = (self.weight.reshape(outputs * inputs, -1) @ spread).view(outputs, inputs, pixels, pixels)
        if self.groups == 1:
            matrix = matrix.permute(2, 1, 3, 0)  # in pixel, in channel, out pixel, out channel
        else:
            matrix = torch.diag_embed(matrix[:, 0].permute(1, 2, 0)).permute(0, 2, 1, 3)
        flat = x.permute(0, 2, 3, 1).reshape(batch, pixels * channels)
        flat = flat @ matrix.reshape(pixels * channels, pixels * outputs)
        return flat.view(batch, height, width, outputs).permute(0, 3, 1, 2)

    def _patches(self, x: Tensor) -> Tensor:
        """The k² neighbours of a single channel's pixels side by side, then one matrix product."""
        batch, _, height, width = x.shape
        kernel = self.weight.shape[2]
        padded = F.pad(x[:, 0], [self.padding] * 4)
        shifts = product(range(kernel), range(kernel))
        patches = torch.stack([padded[:, i : i + height, j : j + width] for i, j in shifts], -1)
        flat = patches.reshape(-1, kernel * kernel) @ self.weight.flatten(1).T
        return flat.view(batch, height, width, -1).permute(0, 3, 1, 2)


@cache
def _neighbourhoods(kernel: int, height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[k², in pixels · out pixels]``: 1 where the kernel's element reads that pixel for that output, else 0."""
    table = torch.zeros(kernel, kernel, height, width, height, width, dtype=dtype)
    for i, j, row, column in product(range(kernel), range(kernel), range(height), range(width)):
        source_row, source_column = row + i - kernel // 2, column + j - kernel // 2
        if 0 <= source_row < height and 0 <= source_column < width:
            table[i, j, source_row, source_column, row, column] = 1
    return table.view(kernel * kernel, -1).to(device)


class _MapNorm(_Adopted):
    """GroupNorm on channels-last maps; on features without pixels torch's own."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__(norm)
        self.groups, self.eps = norm.num_groups, norm.eps
        if not norm.affine:
            self.weight = self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None or x.dim() != 4:
            return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
        normed: Tensor = _MapGroupNorm.apply(x, self.weight, self.bias, self.groups, self.eps)
        return normed


class _MapGroupNorm(Function):
    """torch's kernels with every gradient asked for: without the features' own, its backward on channels-last maps
    writes to a null pointer (2.13, CPU).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        batch, channels, height, width = x.shape
        ctx.sizes = batch, channels, height * width, groups
        normed, mean, scale = torch.native_group_norm(x, weight, bias, *ctx.sizes, eps)
        ctx.save_for_backward(x, mean, scale, weight)
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        backward = torch.ops.aten.native_group_norm_backward
        return *backward(grad, *ctx.saved_tensors, *ctx.sizes, [True, True, True]), None, None


class _LastDimNorm(_Adopted):
    """GroupNorm as a layer norm over contiguous channels-last features."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__(norm)
        self.groups, self.eps, self.affine = norm.num_groups, norm.eps, norm.affine

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        last = x.permute(0, 2, 3, 1)
        if self.groups == 1:
            # Weights repeated over the pixels: a product along C alone would run in loops of a few values.
            normed = self._scale(F.layer_norm(last.reshape(batch, -1), (x[0].numel(),), eps=self.eps), height * width)
        else:
            grouped = last.reshape(batch, height * width, self.groups, -1).transpose(1, 2)
            normed = F.layer_norm(grouped, grouped.shape[2:], eps=self.eps).transpose(1, 2)
            normed = self._scale(normed.reshape(batch, height * width, channels), 1)
        return normed.view(batch, height, width, channels).permute(0, 3, 1, 2)

    def _scale(self, normed: Tensor, repeats: int) -> Tensor:
        if not self.affine:
            return normed
        return torch.addcmul(self.bias.repeat(repeats), normed, self.weight.repeat(repeats))
