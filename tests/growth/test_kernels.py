"""The fast layers against torch's own, values and gradients, alone and under vmap."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from simic.growth.kernels import separable, stackable

from .worlds import generator

LAYERS = {
    "1x1": (lambda: nn.Conv2d(6, 5, 1, bias=False), 6),
    "3x3": (lambda: nn.Conv2d(6, 5, 3, padding=1, bias=False), 6),
    "5x5": (lambda: nn.Conv2d(6, 5, 5, padding=2, bias=False), 6),
    "3x3 from one": (lambda: nn.Conv2d(1, 5, 3, padding=1, bias=False), 1),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), 6),
    "depthwise of one": (lambda: nn.Conv2d(1, 1, 3, padding=1, groups=1, bias=False), 1),
    "norm": (lambda: nn.GroupNorm(1, 6), 6),
    "norm in groups": (lambda: nn.GroupNorm(3, 6), 6),
    "norm without affine": (lambda: nn.GroupNorm(2, 6, affine=False), 6),
    "biased": (lambda: nn.Conv2d(6, 5, 3, padding=1), 6),
    "strided": (lambda: nn.Conv2d(6, 5, 3, padding=1, stride=2, bias=False), 6),
    "reflecting": (lambda: nn.Conv2d(6, 5, 3, padding=1, padding_mode="reflect", bias=False), 6),
}


@pytest.mark.parametrize("size", [(2, 2), (3, 2), (4, 4), (9, 7)])
@pytest.mark.parametrize("name", LAYERS)
def test_fast_layers_equal_torchs_own(name: str, size: tuple[int, int]) -> None:
    build, channels = LAYERS[name]
    plain = nn.Sequential(build()).double()
    for parameter in plain.parameters():
        nn.init.normal_(parameter, generator=generator(1))
    fast = stackable(copy.deepcopy(plain))
    assert [key for key, _ in fast.named_parameters()] == [key for key, _ in plain.named_parameters()]
    x = torch.randn(3, 4, channels, *size, dtype=torch.float64, generator=generator(2)).requires_grad_()
    weights = {key: torch.stack([p.detach() * (i + 1) for i in range(3)]) for key, p in plain.named_parameters()}
    leaves = [x, *(weight.requires_grad_() for weight in weights.values())]

    expected = [functional_call(plain, {k: w[i] for k, w in weights.items()}, (x[i],)) for i in range(3)]
    # channels-last strides, as the population uses them
    seen = x.movedim(2, -1).contiguous().movedim(-1, 2)

    def run(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return functional_call(fast, weights, (x,))

    actual = vmap(run)(seen, weights)
    torch.testing.assert_close(actual, torch.stack(expected))
    loss = torch.stack(expected).square().sum()
    for mine, theirs in zip(
        torch.autograd.grad(actual.square().sum(), leaves), torch.autograd.grad(loss, leaves), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("frozen_input", [False, True])
@pytest.mark.parametrize("gradient", ["contiguous", "channels last", "expanded"])
@pytest.mark.parametrize("shape", [(3, 6, 4, 4), (3, 1, 5, 2), (3, 6, 1, 1), (3, 6)])
def test_the_norm_of_one_host_takes_features_and_gradients_of_any_layout(
    shape: tuple[int, ...], gradient: str, frozen_input: bool
) -> None:
    plain = nn.GroupNorm(3 if shape[1] == 6 else 1, shape[1])
    with torch.no_grad():
        plain.weight.copy_(torch.randn(shape[1], generator=generator(1)))
    fast = separable(nn.Sequential(copy.deepcopy(plain)))
    assert [key for key, _ in fast.named_parameters()] == ["0.weight", "0.bias"]
    x = torch.randn(shape, generator=generator(2))
    grad = torch.randn(shape, generator=generator(3))
    if gradient == "expanded":
        grad = grad[:, :1].expand(shape)
    elif gradient == "channels last" and len(shape) == 4:
        grad = grad.contiguous(memory_format=torch.channels_last)
    seen = x.movedim(1, -1).contiguous().movedim(-1, 1).requires_grad_(not frozen_input)
    leaf = x.clone().requires_grad_(not frozen_input)
    actual, expected = fast(seen), plain(leaf)
    torch.testing.assert_close(actual, expected)
    found = torch.autograd.grad(actual, [*([] if frozen_input else [seen]), *fast.parameters()], grad)
    wanted = torch.autograd.grad(expected, [*([] if frozen_input else [leaf]), *plain.parameters()], grad.contiguous())
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
