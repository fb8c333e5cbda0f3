"""What a seed can be: plain modules that keep their input's shape, registered with their family.

A new one is a class taking the feature shape (without batch), decorated::

    @blueprint("scale", family="mlp")
    class Scale(nn.Module):
        def __init__(self, shape: tuple[int, ...]) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(shape[0]))

        def forward(self, x: Tensor) -> Tensor:  # [B, D] -> [B, D]
            return x * self.weight

Its parameters and FLOPs are counted, it runs batched over hosts, and the masks, observations and reports know it.
Tensors that a fresh module draws at random are redrawn by hash at germination (batch/template.py); constants stay.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from simic.errors import SimicError
from simic.growth.networks.layers import (
    CausalAttention,
    OpenReLU,
    Samplewise,
    group_norm,
    per_sample,
)

Shape = tuple[int, ...]
Build = Callable[[Shape], nn.Module]
B = TypeVar("B", bound=Build)
M = TypeVar("M", bound=nn.Module)
# σ(3) ≈ 0.95: a squeeze-excitation seed starts as almost the identity.
SE_SCALE_BIAS = 3.0


# Numbers in the parameters, and in a sample, of a module that is built to be tried.
MOST_VALUES = 2**22


def count_params(module: nn.Module) -> int:
    """Count trainable parameters, without those that are fitted to data once and never trained."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def count_flops(module: nn.Module, shape: Shape, dtype: torch.dtype = torch.float32) -> int:
    """Count the FLOPs of one more sample's forward pass: 2 for each multiply-add of a convolution or matrix product.

    What a module computes once for all samples, such as a product of its parameters, does not count.

    Args:
        module: which.
        shape: of its input, without the batch.
        dtype: of its input.
    """
    counts = []
    # The difference of two batches is the cost of one more sample.
    for samples in (1, 2):
        with FlopCounter() as counter, torch.no_grad():
            module(torch.zeros(samples, *shape, dtype=dtype, device=_device(module)))
        counts.append(counter.flops)
    return counts[1] - counts[0]


class FlopCounter(TorchDispatchMode):
    """Counts as torch's own counter does, which imports torch's compiler: 2 seconds in every process."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch wraps the method below in one that does.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Torch's own formulas, of convolutions and matrix products.
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def built(build: Callable[[], M], shape: Shape) -> M:
    """Build a module to be tried on samples of a shape and counted; torch's global generator is left as it was.

    A large one is an outline on the meta device, without values. To run it, torch imports its compiler, and a
    description may ask for more memory than there is.
    """
    with torch.device("meta"):
        outline = build()
    values = sum(parameter.numel() for parameter in outline.parameters())
    if max(values, math.prod(shape)) > MOST_VALUES:
        return outline
    with torch.random.fork_rng(devices=[]):
        return build()


def _device(module: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in module.parameters()), None)


def probe(
    module: nn.Module,
    name: str,
    shape: Shape,
    expected: Shape,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Try a module on a batch of two.

    Args:
        module: to try.
        name: for messages.
        shape: of its input, without the batch.
        expected: shape of its output, without the batch.
        dtype: of its input.

    Raises:
        SimicError: naming the module, unless it makes that output.
    """
    # Whatever a user's module raises, the message names it.
    try:
        with torch.no_grad():
            output = module(torch.zeros(2, *shape, dtype=dtype, device=_device(module)))
    except Exception as error:
        raise SimicError(
            f"{name}: fails on features {list(shape)}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(output, torch.Tensor) or output.shape != (2, *expected):
        result = (
            list(output.shape[1:]) if isinstance(output, torch.Tensor) else type(output).__name__
        )
        raise SimicError(
            f"{name}: makes {result} of features {list(shape)}: must be {list(expected)}"
        )


@dataclass(frozen=True)
class Blueprint:
    """A kind of seed. ``closing`` names the parameters of a fresh module that, all zero, make it the identity; they
    start at zero under the MULTIPLY operator. One zero factor is enough: two in a row would never learn.
    """

    name: str
    family: str
    build: Build
    closing: tuple[str, ...] = ()

    def params(self, shape: Shape) -> int:
        """Count the parameters at a slot of this feature shape."""
        return count_params(self._built(shape))

    # Flops and checks once in a process: populations are built of the same blueprints again and again.
    @cache  # noqa: B019 - blueprints live as long as the process
    def flops(self, shape: Shape) -> int:
        """Count the FLOPs per sample at a slot of this feature shape (``count_flops``)."""
        return count_flops(self._built(shape), self.shapes(shape)[0])

    @cache  # noqa: B019
    def check(self, name: str, shape: Shape) -> None:
        """Raise SimicError, by this name, unless it gives what the slot needs."""
        probe(self._built(shape), name, *self.shapes(shape))

    @property
    def reads_input(self) -> bool:
        """Tell whether it reads the sample, ``shape`` being (values of a sample, features), and not the features."""
        return getattr(self.build, "reads_input", False)

    def shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """Tell the shapes of its input and output, where it is built for ``shape``."""
        return (shape[:1], shape[1:]) if self.reads_input else (shape, shape)

    def _built(self, shape: Shape) -> nn.Module:
        return built(partial(self.build, shape), shape)


_REGISTRY: dict[tuple[str, str], Blueprint] = {}
# By family, the one whose blueprints it grows.
_SHARED: dict[str, str] = {}


def share_blueprints(family: str, owner: str) -> None:
    """Let a family grow the blueprints of another; SimicError where it has some already."""
    if _SHARED.get(family, owner) != owner or any(name == family for name, _ in _REGISTRY):
        raise SimicError(
            f"family {family!r} has blueprints already: it cannot grow those of {owner!r} too"
        )
    _SHARED[family] = owner


def blueprint(name: str, family: str, closing: tuple[str, ...] = ()) -> Callable[[B], B]:
    """Register a module class, or a function that makes a module of the shape, with a host family (decorator).

    Args:
        name: of the blueprint, unique in its family.
        family: whose hosts grow it.
        closing: parameters that, all zero, make a fresh module the identity.

    Raises:
        SimicError: the name is taken, or the family grows blueprints of another.
    """

    def register(build: B) -> B:
        if family in _SHARED:
            raise SimicError(
                f"family {family!r} grows the blueprints of {_SHARED[family]!r}: it has none of its own"
            )
        if (family, name) in _REGISTRY:
            raise SimicError(f"blueprint {name!r} of family {family!r} is registered already")
        _REGISTRY[family, name] = Blueprint(name, family, build, closing)
        return build

    return register


def families_with_blueprints() -> set[str]:
    """List the families that somebody has registered a blueprint for."""
    return {family for family, _ in _REGISTRY}


def blueprints_of(family: str) -> tuple[Blueprint, ...]:
    """List the family's blueprints in the order of registration, which is their action index."""
    # A family may grow those of another.
    owner = _SHARED.get(family, family)
    blueprints = tuple(item for item in _REGISTRY.values() if item.family == owner)
    if not blueprints:
        # A family of a user's own is known once its module was imported.
        names = ", ".join(sorted(families_with_blueprints()))
        raise SimicError(f"family {family!r} has no blueprints; known families: {names}")
    return blueprints


def zeroed(layer: M) -> M:
    """Set all parameters of a layer to 0."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Residual(Samplewise):
    """x + its layers, one after another."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        branch = x
        for layer in self.children():
            branch = layer(branch)
        return x + branch


class SoftNorm(Samplewise):
    """x + tanh(w)·(norm(x) − x), w = 0: 2C + 1 parameters."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return x + per_sample(torch.tanh(self.weight), x) * (self.norm(x) - x)


# --- cnn: shape = (C, H, W) ------------------------------------------------------------------------------------------


def _conv(inputs: int, outputs: int, kernel: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)


@blueprint("norm", "cnn", closing=("weight",))
def conv_norm(shape: Shape) -> nn.Module:
    return SoftNorm(group_norm(shape[0]))


@blueprint("attention", "cnn")
class SqueezeExcitation(Samplewise):
    """x·σ(W₂ relu(W₁ mean(x)) + b), W₂ = 0, b = 3, r = max(1, C/4): 2Cr + C parameters (arXiv 1709.01507)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels = shape[0]
        reduced = max(1, channels // 4)
        self.squeeze = nn.Linear(channels, reduced, bias=False)
        self.excite = nn.Linear(reduced, channels)
        # All samples start with the same scale, close to 1.
        nn.init.zeros_(self.excite.weight)
        nn.init.constant_(self.excite.bias, SE_SCALE_BIAS)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.excite(F.relu(self.squeeze(x.mean((-2, -1)))))
        return x * torch.sigmoid(scale)[..., None, None]


@blueprint("depthwise", "cnn", closing=("norm.weight", "norm.bias"))
def depthwise_separable(shape: Shape) -> nn.Module:
    """x + relu(GN(1×1(3×3 per channel x))): 9C + C² + 2C parameters."""
    channels = shape[0]
    return Residual(
        depthwise=_conv(channels, channels, 3, groups=channels),
        pointwise=_conv(channels, channels),
        norm=group_norm(channels),
        relu=OpenReLU(),
    )


@blueprint("bottleneck", "cnn", closing=("up.weight",))
def bottleneck(shape: Shape) -> nn.Module:
    """x + GN(up(relu(3×3(relu(down x))))), up = 0, b = max(8, C/4): 2Cb + 9b² + 2C parameters."""
    channels = shape[0]
    # Down, mix neighbours where channels are few, and up again; up starts as zeros.
    narrow = max(8, channels // 4)
    return Residual(
        down=_conv(channels, narrow),
        relu=nn.ReLU(),
        conv=_conv(narrow, narrow, 3),
        relu_2=nn.ReLU(),
        up=zeroed(_conv(narrow, channels)),
        norm=group_norm(channels),
    )


class _ConvNormReLU(Samplewise):
    """relu(GN(k×k x)): k²C² + 2C parameters."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = _conv(channels, channels, kernel)
        self.norm = group_norm(channels)
        self.relu = OpenReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)))


@blueprint("conv_small", "cnn", closing=("branch.conv.weight",))
def conv_small(shape: Shape) -> nn.Module:
    """x + relu(GN(1×1 x)), the convolution 0: C² + 2C parameters."""
    branch = _ConvNormReLU(shape[0], 1)
    # OpenReLU lets a gradient through zeros, so that it learns.
    zeroed(branch.conv)
    return Residual(branch=branch)


@blueprint("conv_light", "cnn", closing=("branch.norm.weight", "branch.norm.bias"))
def conv_light(shape: Shape) -> nn.Module:
    """x + relu(GN(3×3 x)): 9C² + 2C parameters."""
    return Residual(branch=_ConvNormReLU(shape[0], 3))


@blueprint("conv_heavy", "cnn", closing=("second.norm.weight", "second.norm.bias"))
def conv_heavy(shape: Shape) -> nn.Module:
    """x + two of relu(GN(3×3 ·)) in a row: 18C² + 4C parameters."""
    return Residual(first=_ConvNormReLU(shape[0], 3), second=_ConvNormReLU(shape[0], 3))


# --- vectors: shape = (D,) for mlp, (L, D) for transformer -----------------------------------------------------------


@blueprint("norm", "mlp", closing=("weight",))
@blueprint("norm", "transformer", closing=("weight",))
def vector_norm(shape: Shape) -> nn.Module:
    return SoftNorm(nn.LayerNorm(shape[-1]))


@blueprint("lora", "mlp", closing=("up.weight",))
@blueprint("lora", "transformer", closing=("up.weight",))
def lora(shape: Shape, rank: int = 8) -> nn.Module:
    """x + up(down x), up = 0: 2rD parameters, 16D at rank 8 (arXiv 2106.09685)."""
    # One factor starts as zeros, so the seed is the identity and still learns.
    width = shape[-1]
    return Residual(
        down=nn.Linear(width, rank, bias=False),
        up=zeroed(nn.Linear(rank, width, bias=False)),
    )


@blueprint("lora_large", "transformer", closing=("up.weight",))
def lora_large(shape: Shape) -> nn.Module:
    """64D parameters."""
    return lora(shape, rank=32)


@blueprint(
    "attention",
    "transformer",
    closing=("attention.out.weight", "attention.out.bias"),
)
def attention(shape: Shape) -> nn.Module:
    """x + causal attention, its output projection 0: 4D² + 4D parameters."""
    layer = CausalAttention(shape[-1])
    zeroed(layer.out)
    return Residual(attention=layer)


@blueprint("mlp_small", "mlp", closing=("second.weight", "second.bias"))
@blueprint("mlp_small", "transformer", closing=("second.weight", "second.bias"))
def mlp_small(shape: Shape, factor: int = 2) -> nn.Module:
    """x + W₂ gelu(W₁ x), W₂ = 0: with f times the width 2fD² + (f + 1)D parameters, 4D² + 3D at twice the width."""
    width = shape[-1]
    hidden = factor * width
    return Residual(
        first=nn.Linear(width, hidden),
        gelu=nn.GELU(),
        second=zeroed(nn.Linear(hidden, width)),
    )


@blueprint("mlp", "mlp", closing=("second.weight", "second.bias"))
@blueprint("mlp", "transformer", closing=("second.weight", "second.bias"))
def mlp(shape: Shape) -> nn.Module:
    """8D² + 5D parameters."""
    return mlp_small(shape, factor=4)
