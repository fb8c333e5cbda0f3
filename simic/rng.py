"""Draw counter-based random numbers: each is a hash of what it is for.

A stream is named by ``(rng_seed, purpose, counters…)``; counters are integers or integer tensors
(iteration, env, step, slot, …) that broadcast. Nothing is advanced, so draws are equal for any grouping of
hosts, on any device, and after any resume. The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood 2014,
"Fast splittable pseudorandom number generators"), on int64 with wrapping multiplication.
"""

import math
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from simic.threads import share

Counter = int | Tensor

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
# Of a CPU's cache: 256 KB.
WORDS_AT_ONCE = 2**15


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
    TRIAL = 22
    REFERENCE = 23


def _signed(value: int) -> int:
    """Convert to the int64 with the same 64 bits (two's complement)."""
    value &= _MASK
    return value - (1 << 64) if value >= (1 << 63) else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift logically: int64 ``>>`` copies the sign bit, the mask removes the copies."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix_integer(x: int) -> int:
    """Mix an integer; the result is not negative."""
    x &= _MASK
    x = (x ^ (x >> 30)) * _MIX_1 & _MASK
    x = (x ^ (x >> 27)) * _MIX_2 & _MASK
    return x ^ (x >> 31)


def _mix(x: Tensor) -> Tensor:
    """Mix every element; the bits are those of an integer."""
    if x.device.type == "cpu":
        return _mix_words(x)
    x = (x ^ _shift_right(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift_right(x, 27)) * _signed(_MIX_2)
    return x ^ _shift_right(x, 31)


def _mix_words(x: Tensor) -> Tensor:
    """Mix on the CPU by numpy, which has unsigned words and takes half of torch's time."""
    words = x.reshape(-1).numpy().view(np.uint64)
    mixed = words >> np.uint64(30)
    mixed ^= words
    mixed *= np.uint64(_MIX_1)
    shifted = mixed >> np.uint64(27)
    mixed ^= shifted
    mixed *= np.uint64(_MIX_2)
    np.right_shift(mixed, np.uint64(31), out=shifted)
    mixed ^= shifted
    return torch.from_numpy(mixed.view(np.int64)).view(x.shape)


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
    first = list[int]()
    for counter in counters:
        if isinstance(counter, Tensor):
            break
        first.append(counter)
    state: Counter = _signed(_state(rng_seed, int(purpose), tuple(first)))
    for counter in counters[len(first) :]:
        if isinstance(counter, Tensor):
            counter = torch.as_tensor(counter, dtype=torch.int64, device=device)
        state = _shifted_mix(state ^ _shifted_mix(counter))
    return (
        state
        if isinstance(state, Tensor)
        else torch.full((), state, dtype=torch.int64, device=device)
    )


def _shifted_mix(x: Counter) -> Counter:
    if isinstance(x, Tensor):
        return _mix(x + _signed(_GOLDEN_GAMMA))
    return _signed(_mix_integer(x + _GOLDEN_GAMMA))


def _state(rng_seed: int, purpose: int, counters: tuple[int, ...]) -> int:
    """Mix integers, one inside the other, so that (1, 2) and (2, 1) name two streams."""
    if not counters:
        return _mix_integer(rng_seed * _GOLDEN_GAMMA + purpose)
    # Of many streams only the last counter differs.
    earlier = _remembered_state(rng_seed, purpose, counters[:-1])
    inner = _mix_integer(counters[-1] + _GOLDEN_GAMMA)
    return _mix_integer((earlier ^ inner) + _GOLDEN_GAMMA)


_remembered_state = lru_cache(maxsize=256)(_state)


def bits(stream: Tensor, shape: tuple[int, ...] = (), first: int = 0) -> Tensor:
    """Draw independent 64-bit integers ``[*stream.shape, *shape]`` of each stream, from its number ``first`` on."""
    # SplitMix64: the n-th output is the mix of key + n · golden gamma; the output 0 would be the mix of the key.
    index = torch.arange(first + 1, first + math.prod(shape) + 1, device=stream.device)
    states = stream.reshape(-1, 1) + index * _signed(_GOLDEN_GAMMA)
    return _mix(states).reshape((*stream.shape, *shape))


def uniform(stream: Tensor, shape: tuple[int, ...] = (), first: int = 0) -> Tensor:
    """Draw float32 in [0, 1) ``[*stream.shape, *shape]``: the top 24 bits, so every value is exact."""

    def draw(part: Tensor) -> Tensor:
        return _shift_right(bits(part, shape, first), 40).to(torch.float32) * 2.0**-24

    return _by_parts(draw, stream, shape)


def normal(stream: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw standard normal float32 by the inverse distribution function, computed in float64."""
    # In the middle of its step: at 0 and at 1 the inverse is infinite.
    u = _shift_right(bits(stream, shape), 11).to(torch.float64).add_(0.5).mul_(2.0**-53)
    return u.mul_(2.0).sub_(1.0).erfinv_().mul_(math.sqrt(2.0)).to(torch.float32)


def permutation(stream: Tensor, n: int) -> Tensor:
    """Draw a uniform permutation of ``range(n)`` for each stream, ``[*stream.shape, n]``."""
    # Each number in the low bits of a random word: sorted words are then in the same order on every device, and to sort
    # values takes a third of the time that an argsort does.
    low = (1 << (n - 1).bit_length()) - 1 if n else 0

    def draw(part: Tensor) -> Tensor:
        words = (bits(part, (n,)) & ~low) | torch.arange(n, device=part.device)
        if words.device.type == "cpu":
            words.numpy().sort(axis=-1)
        else:
            words = words.sort(dim=-1).values
        return words & low

    return _by_parts(draw, stream, (n,))


def _by_parts(draw: Callable[[Tensor], Tensor], stream: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Draw numbers ``[*stream.shape, *shape]``: on a CPU so many streams at once that their words stay in its cache."""
    streams = max(1, WORDS_AT_ONCE // max(1, math.prod(shape)))
    if stream.device.type != "cpu" or stream.numel() <= streams:
        return draw(stream)
    drawn = share(draw, stream.reshape(-1).split(streams))
    return torch.cat(drawn).view(*stream.shape, *shape)
