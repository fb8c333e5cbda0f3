"""The weights a policy begins with: orthogonal matrices (Saxe et al. 2014) as a hash of the seed and of their name."""

import math
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simic.audit.reference import rng
from simic.audit.reference.agent.interface import Factor
from simic.audit.reference.rng import Draw

# By how a name begins and ends, the first that fits: √2 before a tanh, 0.01 for what decides, 1 for the value and for
# embeddings of categories and of what the critic is told. What heads are told of earlier choices begins at 0, and so
# do all biases but those of the last layers of factors that lean to some of their choices.
GAINS = (
    ("given", "", 0.0),
    ("heads", "out.weight", 0.01),
    ("heads", "query.weight", 0.01),
    ("value_head", "out.weight", 1.0),
    ("told", "", 1.0),
    ("", "category.weight", 1.0),
    ("", "", math.sqrt(2.0)),
)


def initial_weights(
    shapes: Mapping[str, tuple[int, ...]], factors: Sequence[Factor], core_units: int, rng_seed: int
) -> dict[str, Tensor]:
    """By the names of the policy's parameters."""
    found = {name: _initial(name, shape, core_units, rng_seed) for name, shape in shapes.items()}
    leaning = {
        f"heads.{place}.out.bias": torch.tensor(factor.lean, dtype=torch.float64)
        for place, factor in enumerate(factors)
        if factor.lean
    }
    return found | leaning


def _initial(name: str, shape: tuple[int, ...], core_units: int, rng_seed: int) -> Tensor:
    key = rng.stream(rng_seed, Draw.INITIAL_WEIGHTS, zlib.crc32(name.encode()))
    if ".core.rnn." in name:
        bound = 1.0 / math.sqrt(core_units)
        drawn = torch.tensor(rng.uniform(key, math.prod(shape)), dtype=torch.float64)
        return (bound * (2.0 * drawn - 1.0)).reshape(shape)
    if name.endswith("core_norm.weight"):
        return torch.ones(shape, dtype=torch.float64)
    gain = next(gain for first, last, gain in GAINS if name.startswith(first) and name.endswith(last))
    if len(shape) < 2 or gain == 0.0:
        return torch.zeros(shape, dtype=torch.float64)
    tall = (max(shape), min(shape))
    drawn = torch.tensor(rng.normal(key, math.prod(shape)), dtype=torch.float64).reshape(tall)
    found = gain * _orthonormal(drawn)
    return found if shape == tall else found.T


def _orthonormal(columns: Tensor) -> Tensor:
    """Gram-Schmidt, each column twice, so that rounding leaves nothing of the earlier ones in it."""
    found = torch.zeros_like(columns)
    for place in range(columns.shape[1]):
        column = columns[:, place]
        for _ in range(2):
            column = column - found[:, :place] @ (found[:, :place].T @ column)
        found[:, place] = column / torch.sqrt((column**2).sum())
    return found
