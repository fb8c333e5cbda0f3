"""Counter-based random numbers in plain Python integers: SplitMix64 (Steele, Lea, Flood 2014) as a hash of counters."""

from collections.abc import Iterator
from enum import IntEnum
from statistics import NormalDist

WORD = 2**64
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


class Draw(IntEnum):
    """What the agent draws random numbers for."""

    INITIAL_WEIGHTS = 6
    ACTIONS = 7
    MINIBATCHES = 8
    EVALUATION = 9


def mix(x: int) -> int:
    """SplitMix64's finaliser, of 64 bits."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)


def stream(rng_seed: int, draw: int, *counters: int) -> int:
    """The key of a stream: seed and purpose, then every counter, one hashed into the other as SplitMix64 would step."""
    key = mix((rng_seed * GOLDEN_GAMMA + draw) % WORD)
    for counter in counters:
        key = step(key ^ step(counter))
    return key


def step(x: int) -> int:
    """SplitMix64's first output of a state."""
    return mix((x + GOLDEN_GAMMA) % WORD)


def words(key: int, count: int) -> Iterator[int]:
    """So many independent 64-bit numbers of a stream."""
    return (mix((key + n * GOLDEN_GAMMA) % WORD) for n in range(1, count + 1))


def uniform(key: int, count: int) -> list[float]:
    """In [0, 1), multiples of 2⁻²⁴: the upper 24 bits."""
    return [(word >> 40) / 2**24 for word in words(key, count)]


def normal(key: int, count: int) -> list[float]:
    """Standard normal, by the inverse of its distribution function at the upper 53 bits."""
    inverse = NormalDist().inv_cdf
    return [inverse(((word >> 11) + 0.5) / 2**53) for word in words(key, count)]


def permutation(key: int, count: int) -> list[int]:
    """Of 0 … count − 1: the order of as many words, read as signed numbers."""
    signed = [word - WORD if word >= WORD // 2 else word for word in words(key, count)]
    return sorted(range(count), key=signed.__getitem__)
