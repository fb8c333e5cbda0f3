"""Layers with the results of torch's own, in the form that runs fastest for many networks at once.

``stacked``: weights carry a leading row dimension, features of all rows lie one after the other ``[R · B, …]``. Under
vmap a convolution is a grouped convolution over rows, a group norm a chain of small kernels, and every operation costs
its dispatch twice; here convolutions are matrix products on channels-last maps where that is faster. Numbers behind the
choices (R = 32 or 4, B = 64, forward + backward, ms, 2 CPU threads): 1×1 4→8 at 4×4: grouped 0.79, product 0.37; 3×3
16→16 at 2×2, 4 rows: grouped 0.31, dense 0.14; 3×3 8→16 at 4×4: grouped 2.0, dense 4.5; GroupNorm 8 at 8×8: 1.9, as a
layer norm 1.6; max pooling 8 at 8×8: 2.7, channels last 0.9.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from simic.growth.networks.layers import Samplewise
from simic.transfer import upload

# Entries of a matrix from all pixels and channels to all of them, up to which it is faster than a convolution.
DENSE_ENTRIES = 16 * 16 * 64
# A dense matrix over 2×2 maps has fewer entries for each output than a 3×3 kernel.
DENSE_PIXELS = 4
# Torch's modules that treat each sample by itself and have nothing of their own to stack.
PARAMETERLESS = (nn.Sequential, nn.Identity, nn.ReLU, nn.GELU, nn.MaxPool2d)


def stacked(module: nn.Module) -> nn.Module | None:
    """Change a module to features ``[R · B, …]`` and parameters ``[R, *shape]``, which are put in as attributes; None
    where a part of it has no such form, or is used twice.
    """
    # A part that is used twice has one place for its weights, but two in the list of them.
    for named in (module.named_modules, module.named_parameters):
        if len(list(named(remove_duplicate=False))) > len(list(named())):
            return None
    return _stacked(module)


def _stacked(module: nn.Module) -> nn.Module | None:
    # A layer with a form of its own, or a module that treats each sample by itself.
    layer = _stacked_layer(module)
    if layer is not None:
        return layer
    if Samplewise not in type(module).__bases__ and type(module) not in PARAMETERLESS:
        return None

    # Its parts become stacked; its parameters come with each call.
    for name, child in module.named_children():
        layer = _stacked(child)
        if layer is None:
            return None
        setattr(module, name, layer)
    for name in [name for name, _ in module.named_parameters(recurse=False)]:
        delattr(module, name)
    return module


def _stacked_layer(module: nn.Module) -> nn.Module | None:
    if type(module) is nn.Conv2d and _is_same_convolution(module):
        return _PointwiseConv() if module.kernel_size == (1, 1) else _SameConv(module)
    if type(module) is nn.Linear:
        return _Linear(module)
    if type(module) is nn.GroupNorm:
        return _GroupNorm(module)
    if (
        type(module) is nn.LayerNorm
        and module.bias is not None
        and len(module.normalized_shape) == 1
    ):
        return _LayerNorm(module)
    return None


def separable(module: nn.Module) -> nn.Module:
    """Give a module group norms for one host at a time on channels-last maps; parameters and their names stay."""
    return _with_norms(module, _MapNorm)


def vmappable(module: nn.Module) -> nn.Module:
    """Give a module group norms that run under vmap, unlike torch's own; parameters and their names stay."""
    return _with_norms(module, _VmapNorm)


def _with_norms(module: nn.Module, norm: Callable[[nn.GroupNorm], nn.Module]) -> nn.Module:
    for name, child in module.named_children():
        setattr(module, name, _with_norms(child, norm))
    return norm(module) if type(module) is nn.GroupNorm else module


def _is_same_convolution(conv: nn.Conv2d) -> bool:
    """Check for stride 1, odd square kernel, zero padding that keeps the shape, no bias, dense or depthwise."""
    kernel = conv.kernel_size[0]
    is_plain = (
        conv.stride == (1, 1)
        and conv.dilation == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.bias is None
    )
    is_square = conv.kernel_size == (kernel, kernel) and kernel % 2 == 1
    keeps_shape = conv.padding == (kernel // 2, kernel // 2)
    is_depthwise = conv.groups == conv.in_channels == conv.out_channels and kernel > 1
    return is_plain and is_square and keeps_shape and (conv.groups == 1 or is_depthwise)


class _PointwiseConv(nn.Module):
    """1×1 convolution as one matrix product per row over all its pixels."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        # Of a channels-last map this is a view.
        samples, channels, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(len(self.weight), -1, channels)
        weight = self.weight.view(*self.weight.shape[:2], channels)
        pixels = torch.bmm(pixels, weight.mT)
        return pixels.view(samples, height, width, -1).permute(0, 3, 1, 2)


class _SameConv(nn.Module):
    """k×k convolution: a dense matrix on the smallest maps, torch's kernel for the rest."""

    weight: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.groups = conv.groups
        self.padding = conv.kernel_size[0] // 2

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.shape[2] * x.shape[3]
        entries = pixels**2 * x.shape[1] * self.weight.shape[1]
        is_small = pixels <= DENSE_PIXELS or entries <= DENSE_ENTRIES
        return self._dense(x) if is_small else self._grouped(x)

    def _dense(self, x: Tensor) -> Tensor:
        """Multiply by a matrix from all pixels and channels to all pixels and channels, spread from the weights."""
        samples, channels, height, width = x.shape
        pixels = height * width
        rows, outputs, inputs, kernel, _ = self.weight.shape
        # The matrix of each row.
        spread = _neighbourhoods(kernel, height, width, x.dtype, x.device)
        matrix = self.weight.reshape(rows * outputs * inputs, -1) @ spread
        matrix = matrix.view(rows, outputs, inputs, pixels, pixels)
        if self.groups == 1:
            matrix = matrix.permute(0, 3, 2, 4, 1)  # in pixel, in channel, out pixel, out channel
        else:
            by_channel = matrix[:, :, 0].permute(0, 2, 3, 1)
            matrix = torch.diag_embed(by_channel).permute(0, 1, 3, 2, 4)
        # One product per row, over all samples.
        flat = x.permute(0, 2, 3, 1).reshape(rows, -1, pixels * channels)
        flat = torch.bmm(flat, matrix.reshape(rows, pixels * channels, pixels * outputs))
        return flat.view(samples, height, width, outputs).permute(0, 3, 1, 2)

    def _grouped(self, x: Tensor) -> Tensor:
        """Run one grouped convolution: a row's channels are groups of their own."""
        # [R · B, C, …] → [B, R · C, …], and back below.
        samples, channels, height, width = x.shape
        rows, outputs = self.weight.shape[:2]
        by_row = x.unflatten(0, (rows, -1))
        side_by_side = by_row.transpose(0, 1).reshape(-1, rows * channels, height, width)
        y = F.conv2d(
            side_by_side, self.weight.flatten(0, 1), padding=self.padding, groups=rows * self.groups
        )
        y = y.view(-1, rows, outputs, height, width).permute(1, 0, 3, 4, 2)
        return y.reshape(samples, height, width, outputs).permute(0, 3, 1, 2)


@cache
def _neighbourhoods(
    kernel: int,
    height: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Tabulate ``[k², in pixels · out pixels]``: 1 where a kernel's element reads a pixel for an output, else 0."""
    # Pixels outside the map are zeros, so nothing reads them.
    table = torch.zeros(kernel, kernel, height, width, height, width, dtype=dtype)
    for i, j, row, column in product(range(kernel), range(kernel), range(height), range(width)):
        source_row = row + i - kernel // 2
        source_column = column + j - kernel // 2
        if 0 <= source_row < height and 0 <= source_column < width:
            table[i, j, source_row, source_column, row, column] = 1
    return upload(table.view(kernel * kernel, -1), device)


class _Linear(nn.Module):
    """One matrix product per row."""

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.biased = linear.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        # For a single row a batched product would only cost its dispatch.
        if len(self.weight) == 1:
            return F.linear(x, self.weight[0], self.bias[0] if self.biased else None)
        by_row = x.reshape(len(self.weight), -1, x.shape[-1])
        weight = self.weight.mT
        y = (
            torch.baddbmm(self.bias[:, None], by_row, weight)
            if self.biased
            else torch.bmm(by_row, weight)
        )
        return y.view(*x.shape[:-1], -1)


class _GroupNorm(nn.Module):
    """GroupNorm as a layer norm over contiguous channels-last features, ``[samples, C, …]``."""

    weight: Tensor
    bias: Tensor

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.groups = norm.num_groups
        self.eps = norm.eps
        self.affine = norm.affine

    def forward(self, x: Tensor) -> Tensor:
        # One group is a norm over all pixels and channels of a sample; several lie apart in each pixel.
        samples, channels, *size = x.shape
        pixels = math.prod(size)
        channels_last = x.movedim(1, -1)
        if self.groups == 1:
            normed = F.layer_norm(
                channels_last.reshape(samples, -1), (channels * pixels,), eps=self.eps
            )
        else:
            grouped = channels_last.reshape(samples, pixels, self.groups, -1).transpose(1, 2)
            normed = F.layer_norm(grouped, grouped.shape[2:], eps=self.eps).transpose(1, 2)
        # Weights differ from row to row, which torch's layer norm cannot have.
        if self.affine:
            by_row = normed.reshape(len(self.weight), -1, channels * pixels)
            normed = _RowScale.apply(by_row, self.weight, self.bias)
        return normed.reshape(samples, *size, channels).movedim(-1, 1)


class _LayerNorm(nn.Module):
    """LayerNorm over the last dimension."""

    weight: Tensor
    bias: Tensor

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Tensor:
        if len(self.weight) == 1:
            return F.layer_norm(x, x.shape[-1:], self.weight[0], self.bias[0], self.eps)
        normed = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        by_row = normed.reshape(len(self.weight), -1, x.shape[-1])
        return _RowScale.apply(by_row, self.weight, self.bias).view(x.shape)


class _RowScale(Function):
    """Multiply ``[R, n, … · C]`` by the weights ``[R, C]`` of its row, plus the bias; these are repeated over the
    pixels, as a product along C alone would run in loops of a few values.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        repeats = x.shape[2] // weight.shape[1]
        scale = weight.repeat(1, repeats)[:, None]
        ctx.save_for_backward(x, scale)
        ctx.shape = len(weight), repeats, -1
        return torch.addcmul(bias.repeat(1, repeats)[:, None], x, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        [grad] = grads
        # Over samples first, then over the pixels that share a weight.
        x, scale = ctx.saved_tensors
        grad_weight = (grad * x).sum(1).view(ctx.shape).sum(1)
        grad_bias = grad.sum(1).view(ctx.shape).sum(1)
        return grad * scale, grad_weight, grad_bias


class _Norm(nn.Module):
    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.bias = norm.bias
        self.groups = norm.num_groups
        self.eps = norm.eps


class _VmapNorm(_Norm):
    """GroupNorm of torch's other operations."""

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), self.groups, -1)
        normed = F.layer_norm(grouped, grouped.shape[2:], eps=self.eps).view(x.shape)
        if self.weight is None:
            return normed
        # Weights are of channels, which come before the pixels.
        shape = (-1, *[1] * (x.dim() - 2))
        return normed * self.weight.view(shape) + self.bias.view(shape)


class _MapNorm(_Norm):
    """GroupNorm on channels-last maps; on features without pixels torch's own."""

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
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
    ) -> Tensor:
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
