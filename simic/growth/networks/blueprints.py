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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from simic.errors import SimicError
from simic.growth.networks.layers import CausalAttention, OpenReLU, Samplewise, group_norm, per_sample

Shape = tuple[int, ...]
M = TypeVar("M", bound=nn.Module)
MAP_LORA_RANK = 4  # maps have fewer channels than vectors
SE_SCALE_BIAS = 3.0  # sigmoid(3) ≈ 0.95: a squeeze-excitation seed starts as almost the identity


def count_params(module: nn.Module) -> int:
    """Count trainable parameters; those that are fitted to data once and never trained do not count."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def count_flops(module: nn.Module, shape: Shape, dtype: torch.dtype = torch.float32) -> int:
    """Count the FLOPs of one more sample's forward pass: 2 for each multiply-add of a convolution or matrix product.

    What a module computes once for all samples, such as a product of its parameters, does not count.
    """
    module, counts = module.to("meta"), []
    for samples in (1, 2):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.empty(samples, *shape, device="meta", dtype=dtype))
        counts.append(counter.get_total_flops())
    return counts[1] - counts[0]


def probe(module: nn.Module, name: str, shape: Shape, expected: Shape, dtype: torch.dtype = torch.float32) -> None:
    """Raise SimicError naming the module unless it makes ``expected`` of ``shape``, both without the batch."""
    try:
        with torch.no_grad():
            made = module.to("meta")(torch.empty(2, *shape, device="meta", dtype=dtype))
    except Exception as error:
        raise SimicError(f"{name}: fails on features {list(shape)}: {' '.join(str(error).split())}") from error
    if not isinstance(made, torch.Tensor) or made.shape != (2, *expected):
        given = list(made.shape[1:]) if isinstance(made, torch.Tensor) else type(made).__name__
        raise SimicError(f"{name}: makes {given} of features {list(shape)}: must be {list(expected)}")


@dataclass(frozen=True)
class Blueprint:
    """A kind of seed. ``closing`` names the parameters of a fresh module that, all zero, make it the identity; they
    start at zero under the MULTIPLY operator. One zero factor is enough: two in a row would never learn.
    """

    name: str
    family: str
    build: Callable[[Shape], nn.Module]
    closing: tuple[str, ...] = ()

    def params(self, shape: Shape) -> int:
        """Return the number of parameters at a slot of this feature shape."""
        return count_params(self._on_meta(shape))

    # Flops and checks once in a process: populations are built of the same blueprints again and again, and on the meta
    # device these take longer than all else of that.
    @cache  # noqa: B019 - blueprints live as long as the process
    def flops(self, shape: Shape) -> int:
        """Return the FLOPs per sample at a slot of this feature shape (``count_flops``)."""
        return count_flops(self._on_meta(shape), self.shapes(shape)[0])

    @cache  # noqa: B019
    def check(self, name: str, shape: Shape) -> None:
        """Raise SimicError, by this name, unless it gives what the slot needs."""
        probe(self._on_meta(shape), name, *self.shapes(shape))

    @property
    def reads_input(self) -> bool:
        """Return whether it reads the sample, ``shape`` being (values of a sample, features), and not the features."""
        return getattr(self.build, "reads_input", False)

    def shapes(self, shape: Shape) -> tuple[Shape, Shape]:
        """Return the shapes of its input and output, where it is built for ``shape``."""
        return (shape[:1], shape[1:]) if self.reads_input else (shape, shape)

    def _on_meta(self, shape: Shape) -> nn.Module:
        with torch.device("meta"):
            return self.build(shape)


_REGISTRY: dict[tuple[str, str], Blueprint] = {}
_SHARED: dict[str, str] = {}  # family -> whose blueprints it grows


def share_blueprints(family: str, of: str) -> None:
    """Let a family grow the blueprints of another; SimicError where it has some already."""
    if _SHARED.get(family, of) != of or any(owner == family for owner, _ in _REGISTRY):
        raise SimicError(f"family {family!r} has blueprints already: it cannot grow those of {of!r} too")
    _SHARED[family] = of


def blueprint(name: str, family: str, closing: tuple[str, ...] = ()) -> Callable[[type[M]], type[M]]:
    """Register a module class, ``cls(shape)``, as a blueprint of a host family (decorator)."""

    def register(cls: type[M]) -> type[M]:
        if family in _SHARED:
            raise SimicError(
                f"family {family!r} grows the blueprints of {_SHARED[family]!r}: it cannot have its own too"
            )
        if (family, name) in _REGISTRY:
            raise SimicError(f"blueprint {name!r} of family {family!r} is registered already")
        _REGISTRY[family, name] = Blueprint(name, family, cls, closing)
        return cls

    return register


def families_with_blueprints() -> set[str]:
    """Return the families that somebody has registered a blueprint for."""
    return {family for family, _ in _REGISTRY}


def blueprints_of(family: str) -> tuple[Blueprint, ...]:
    """Return the family's blueprints in the order of registration, which is their action index."""
    owner = _SHARED.get(family, family)
    items = tuple(item for item in _REGISTRY.values() if item.family == owner)
    if not items:
        families = sorted({item.family for item in _REGISTRY.values()})
        raise SimicError(f"family {family!r} has no blueprints; known families: {', '.join(families)}")
    return items


# --- cnn: shape = (C, H, W) ------------------------------------------------------------------------------------------


@blueprint("norm", "cnn", closing=("weight",))
class ConvNorm(Samplewise):
    """x + tanh(w)·(GN(x) − x), w = 0: 2C + 1 parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.norm = group_norm(shape[0])

    def forward(self, x: Tensor) -> Tensor:
        return x + per_sample(torch.tanh(self.weight), x) * (self.norm(x) - x)


@blueprint("attention", "cnn")
class SqueezeExcitation(Samplewise):
    """x·σ(W₂ relu(W₁ mean(x)) + b), W₂ = 0, b = 3, r = max(1, C/4): 2Cr + C parameters (arXiv 1709.01507)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, reduced = shape[0], max(1, shape[0] // 4)
        self.squeeze = nn.Linear(channels, reduced, bias=False)
        self.excite = nn.Linear(reduced, channels)
        nn.init.zeros_(self.excite.weight)
        nn.init.constant_(self.excite.bias, SE_SCALE_BIAS)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.excite(F.relu(self.squeeze(x.mean((-2, -1)))))
        return x * torch.sigmoid(scale)[..., None, None]


@blueprint("depthwise", "cnn", closing=("norm.weight", "norm.bias"))
class DepthwiseSeparable(Samplewise):
    """x + relu(GN(1×1(3×3 per channel x))): 9C + C² + 2C parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels = shape[0]
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = group_norm(channels)
        self.relu = OpenReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.norm(self.pointwise(self.depthwise(x))))


@blueprint("bottleneck", "cnn", closing=("up.weight",))
class Bottleneck(Samplewise):
    """x + GN(up(relu(3×3(relu(down x))))), up = 0, b = max(8, C/4): 2Cb + 9b² + 2C parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, narrow = shape[0], max(8, shape[0] // 4)
        self.down = nn.Conv2d(channels, narrow, 1, bias=False)
        self.conv = nn.Conv2d(narrow, narrow, 3, padding=1, bias=False)
        self.up = nn.Conv2d(narrow, channels, 1, bias=False)
        self.norm = group_norm(channels)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.up(F.relu(self.conv(F.relu(self.down(x))))))


class _ConvNormReLU(Samplewise):
    """relu(GN(k×k x)): k²C² + 2C parameters."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False)
        self.norm = group_norm(channels)
        self.relu = OpenReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)))


@blueprint("conv_small", "cnn", closing=("branch.conv.weight",))
class ConvSmall(Samplewise):
    """x + relu(GN(1×1 x)), the convolution 0: C² + 2C parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.branch = _ConvNormReLU(shape[0], 1)
        nn.init.zeros_(self.branch.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@blueprint("conv_light", "cnn", closing=("branch.norm.weight", "branch.norm.bias"))
class ConvLight(Samplewise):
    """x + relu(GN(3×3 x)): 9C² + 2C parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.branch = _ConvNormReLU(shape[0], 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@blueprint("conv_heavy", "cnn", closing=("second.norm.weight", "second.norm.bias"))
class ConvHeavy(Samplewise):
    """x + two of relu(GN(3×3 ·)) in a row: 18C² + 4C parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.first = _ConvNormReLU(shape[0], 3)
        self.second = _ConvNormReLU(shape[0], 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


# --- adapted_cnn: shape = (C, H, W); what adapts a trained and frozen host, without norms, so that what it has learned
# to read keeps its scale ---------------------------------------------------------------------------------------------


@blueprint("lora", "adapted_cnn", closing=("up.weight",))
class MapLowRank(Samplewise):
    """x + up(down x), both 1×1, up = 0: 8C parameters (arXiv 2106.09685)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.down = nn.Conv2d(shape[0], MAP_LORA_RANK, 1, bias=False)
        self.up = nn.Conv2d(MAP_LORA_RANK, shape[0], 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.down(x))


@blueprint("bottleneck", "adapted_cnn", closing=("up.weight",))
class MapBottleneck(Samplewise):
    """x + up(relu(down x)), both 1×1, up = 0, b = max(8, C/4): 2Cb parameters (arXiv 1902.00751)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        narrow = max(8, shape[0] // 4)
        self.down = nn.Conv2d(shape[0], narrow, 1, bias=False)
        self.up = nn.Conv2d(narrow, shape[0], 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.relu(self.down(x)))


@blueprint("conv", "adapted_cnn", closing=("conv.weight",))
class MapConv(Samplewise):
    """x + 3×3 x, the convolution 0: 9C² parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], shape[0], 3, padding=1, bias=False)
        nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


# --- vectors: shape = (D,) for mlp, (L, D) for transformer -----------------------------------------------------------


@blueprint("norm", "mlp", closing=("weight",))
@blueprint("norm", "transformer", closing=("weight",))
class VectorNorm(Samplewise):
    """x + tanh(w)·(LN(x) − x), w = 0: 2D + 1 parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.norm = nn.LayerNorm(shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        return x + per_sample(torch.tanh(self.weight), x) * (self.norm(x) - x)


@blueprint("lora", "mlp", closing=("up.weight",))
@blueprint("lora", "transformer", closing=("up.weight",))
class LowRank(Samplewise):
    """x + up(down x), up = 0: 2rD parameters, 16D at rank 8 (arXiv 2106.09685)."""

    rank = 8

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.down = nn.Linear(shape[-1], self.rank, bias=False)
        self.up = nn.Linear(self.rank, shape[-1], bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.down(x))


@blueprint("lora_large", "transformer", closing=("up.weight",))
class LargeLowRank(LowRank, Samplewise):
    """64D parameters."""

    rank = 32


@blueprint("attention", "transformer", closing=("attention.out.weight", "attention.out.bias"))
class AttentionSeed(Samplewise):
    """x + causal attention, its output projection 0: 4D² + 4D parameters."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = CausalAttention(shape[-1])
        nn.init.zeros_(self.attention.out.weight)
        nn.init.zeros_(self.attention.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)


@blueprint("mlp_small", "mlp", closing=("second.weight", "second.bias"))
@blueprint("mlp_small", "transformer", closing=("second.weight", "second.bias"))
class MLPSmall(Samplewise):
    """x + W₂ gelu(W₁ x), W₂ = 0: with f times the width 2fD² + (f + 1)D parameters, 4D² + 3D at twice the width."""

    factor = 2

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape[-1]
        self.first = nn.Linear(width, self.factor * width)
        self.second = nn.Linear(self.factor * width, width)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(x)))


@blueprint("mlp", "mlp", closing=("second.weight", "second.bias"))
@blueprint("mlp", "transformer", closing=("second.weight", "second.bias"))
class MLP(MLPSmall, Samplewise):
    """8D² + 5D parameters."""

    factor = 4
