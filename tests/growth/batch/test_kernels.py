"""The fast layers against torch's own, values and gradients."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from simic.errors import SimicError
from simic.growth.batch.kernels import separable, stacked, vmappable
from simic.growth.networks.layers import Samplewise, per_sample

from ..worlds import generator

SHARED = nn.Linear(4, 4)
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
    "norm of the last": (lambda: nn.LayerNorm(7), 6),
    "linear": (lambda: nn.Linear(7, 5), 6),
    "linear without bias": (lambda: nn.Linear(7, 5, bias=False), 6),
    "scalar": (lambda: Scaled(), 6),
}


class Scaled(Samplewise):
    """A parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return per_sample(self.scale, x) * x


class Derived(Scaled):
    """Of a class that keeps the promise, with a forward that may not."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Plain(nn.Module):
    """Nothing says that its samples do not meet."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def separately(plain: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Of each network by itself."""
    outputs = [
        functional_call(plain, {name: w[i] for name, w in weights.items()}, (x[i],))
        for i in range(len(x))
    ]
    return torch.stack(outputs)


def assert_equal(actual: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """In values and gradients."""
    torch.testing.assert_close(actual, expected)
    gradients = [
        torch.autograd.grad(output.square().sum(), leaves) for output in (actual, expected)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("size", [(2, 2), (3, 2), (9, 7)])
@pytest.mark.parametrize("name", LAYERS)
def test_stacked_layers_equal_torchs_own(name: str, size: tuple[int, int]) -> None:
    build, channels = LAYERS[name]
    if "linear" in name or "last" in name:
        size = (size[0], 7)
    plain = nn.Sequential(build()).double()
    for parameter in plain.parameters():
        nn.init.normal_(parameter, generator=generator(1))
    fast = stacked(copy.deepcopy(plain))
    assert isinstance(fast, nn.Sequential)
    assert not list(fast.parameters())
    x = torch.randn(
        3, 4, channels, *size, dtype=torch.float64, generator=generator(2)
    ).requires_grad_()
    weights = {
        key: torch.stack([p.detach() * (i + 1) for i in range(3)])
        for key, p in plain.named_parameters()
    }
    leaves = [x, *(weight.requires_grad_() for weight in weights.values())]
    for key, weight in weights.items():
        setattr(fast[0], key.removeprefix("0."), weight)
    # channels-last strides, as the population uses them
    features = x.movedim(2, -1).contiguous().movedim(-1, 2)
    actual = fast(features.flatten(0, 1)).unflatten(0, (3, 4))
    assert_equal(actual, separately(plain, weights, x), leaves)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 5, 3, padding=1),
        nn.Conv2d(6, 5, 3, padding=1, stride=2, bias=False),
        nn.Conv2d(6, 5, 3, padding=1, padding_mode="reflect", bias=False),
        nn.Dropout(),
        Plain(),
        Derived(),
        nn.Sequential(nn.ReLU(), Plain()),
        nn.Sequential(SHARED, nn.ReLU(), SHARED),
    ],
)
def test_what_is_not_known_is_not_stacked(layer: nn.Module) -> None:
    assert stacked(layer) is None


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

    def run(module: nn.Module, features: Tensor, grad: Tensor) -> list[Tensor]:
        features.requires_grad_(not frozen_input)
        output = module(features)
        output.backward(grad)
        inputs = [] if frozen_input else [features]
        return [output, *(leaf.grad for leaf in (*inputs, *module.parameters()))]

    channels_last = x.movedim(1, -1).contiguous().movedim(-1, 1)
    expected = run(plain, x.clone(), grad.contiguous())
    torch.testing.assert_close(run(fast, channels_last, grad), expected)


def test_per_sample_is_of_one_number_per_network() -> None:
    with pytest.raises(
        SimicError, match=r"per_sample of a parameter \(16,\): must be one number per network"
    ):
        per_sample(torch.zeros(16), torch.zeros(64, 3))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 4, 4)])
def test_group_norms_of_users_run_under_vmap(shape: tuple[int, ...], affine: bool) -> None:
    plain = nn.Sequential(nn.GroupNorm(2, 6, affine=affine)).double()
    batched = vmappable(copy.deepcopy(plain))
    names = [key for key, _ in plain.named_parameters()]
    assert [key for key, _ in batched.named_parameters()] == names
    x = torch.randn(3, 4, *shape, dtype=torch.float64, generator=generator(1)).requires_grad_()
    weights = {
        key: torch.rand(3, 6, dtype=torch.float64, generator=generator(2)).requires_grad_()
        for key in names
    }
    actual = (
        vmap(lambda w, x: functional_call(batched, w, (x,)))(weights, x)
        if weights
        else vmap(batched)(x)
    )
    assert_equal(actual, separately(plain, weights, x), [x, *weights.values()])
