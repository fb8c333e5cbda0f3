"""Draw counter-based random numbers: each is a hash of what it is for.

A stream is named by ``(rng_seed, purpose, counters…)``; counters are integers or integer tensors
(iteration, env, step, slot, …) that broadcast. Nothing is advanced, so draws are equal for any grouping of
hosts, on any device, and after any resume. The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood 2014,
"Fast splittable pseudorandom number generators"), on int64 with wrapping multiplication.
"""

import math
from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Counter = int | Tensor
Int64 = TypeVar("Int64", int, Tensor)

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """Purpose of a stream. Values are part of every recorded result: append, never renumber."""

    SPLIT = 1
    HOST_INIT = 2
    SEED_INIT = 3
    BATCH_ORDER = 4
    POLICY_INIT = 6
    ACTION = 7
    MINIBATCH = 8
    BASELINE = 9
    BOOTSTRAP = 10
    ENV_SEED = 11
    SUBSAMPLE = 12
    SYNTHETIC = 13
    TASK = 15
    INSTANCE = 16
    EPISODE_LENGTH = 19
    ALIGNMENT = 20
    KEPT_ITERATION = 21


def _signed(value: int) -> int:
    """Convert to the int64 with the same 64 bits (two's complement)."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= (1 << 63) else value


def _wrapped(x: Int64) -> Int64:
    """Wrap an integer as int64 overflows; tensors do so by themselves."""
    return _signed(x) if isinstance(x, int) else x


def _shift_right(x: Int64, bits: int) -> Int64:
    """Shift logically: int64 ``>>`` copies the sign bit, the mask removes the copies."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Int64) -> Int64:
    """Mix a tensor or an integer; the bits are the same."""
    x = _wrapped((x ^ _shift_right(x, 30)) * _signed(_MIX_1))
    x = _wrapped((x ^ _shift_right(x, 27)) * _signed(_MIX_2))
    return x ^ _shift_right(x, 31)


def key(
    rng_seed: int, purpose: Purpose, *counters: Counter, device: torch.device | str | None = None
) -> Tensor:
    """Make the int64 key of a stream.

    Args:
        rng_seed: Of the run.
        purpose: What the numbers are for.
        counters: Integers or integer tensors that broadcast.
        device: Of the key; default: that of the counters.

    Returns:
        A tensor of the counters' broadcast shape.
    """
    # Integers are mixed as such: a tensor made of one would be a copy that a GPU waits for.
    state: Counter = _mix(_signed(rng_seed * _GOLDEN_GAMMA + int(purpose)))
    # One inside the other, so that (1, 2) and (2, 1) name two streams.
    for counter in counters:
        if isinstance(counter, Tensor):
            counter = torch.as_tensor(counter, dtype=torch.int64, device=device)
        state = _shifted_mix(state ^ _shifted_mix(counter))
    return (
        state
        if isinstance(state, Tensor)
        else torch.full((), state, dtype=torch.int64, device=device)
    )


def _shifted_mix(x: Counter) -> Counter:
    gamma = _signed(_GOLDEN_GAMMA)
    return _mix(x + gamma) if isinstance(x, Tensor) else _mix(_signed(x + gamma))


def bits(stream: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw independent 64-bit integers ``[*stream.shape, *shape]`` of each stream."""
    # SplitMix64: the n-th output is the mix of key + n · golden gamma; the output 0 would be the mix of the key.
    index = torch.arange(1, math.prod(shape) + 1, device=stream.device)
    states = stream.reshape(-1, 1) + index * _signed(_GOLDEN_GAMMA)
    values = _mix_in_place(states) if stream.device.type == "cpu" else _mix(states)
    return values.reshape((*stream.shape, *shape))


def _mix_in_place(states: Tensor) -> Tensor:
    """Mix as ``_mix`` does, by NumPy: it has unsigned integers, and takes half of the time."""
    x = states.numpy().view(np.uint64)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return states


def uniform(stream: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw float32 in [0, 1) ``[*stream.shape, *shape]``: the top 24 bits, so every value is exact."""
    return _shift_right(bits(stream, shape), 40).to(torch.float32) * 2.0**-24


def normal(stream: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw standard normal float32 by the inverse distribution function, computed in float64."""
    # In the middle of its step: at 0 and at 1 the inverse is infinite.
    u = (_shift_right(bits(stream, shape), 11).to(torch.float64) + 0.5) * 2.0**-53
    return (math.sqrt(2.0) * torch.erfinv(2.0 * u - 1.0)).to(torch.float32)


def permutation(stream: Tensor, n: int) -> Tensor:
    """Draw a uniform permutation of ``range(n)`` for each stream, ``[*stream.shape, n]``."""
    # Each number in the low bits of a random word: sorted words are then in the same order on every device, and to sort
    # values takes a third of the time that an argsort does.
    low = (1 << (n - 1).bit_length()) - 1 if n else 0
    words = (bits(stream, (n,)) & ~low) | torch.arange(n, device=stream.device)
    if words.device.type == "cpu":
        words.numpy().sort(axis=-1)
    else:
        words = words.sort(dim=-1).values
    return words & low
