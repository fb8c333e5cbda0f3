"""The counter-based random numbers a second time: SplitMix64 on plain integers (Steele, Lea, Flood 2014).

A stream's key mixes the run's ``rng_seed``, what the stream is for, and its counters, one after the other.
"""

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

HOST_INIT, SEED_INIT, BATCH_ORDER, AUGMENT, TASK = 2, 3, 4, 5, 15  # what a stream is for

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(word: int) -> int:
    """The finaliser of SplitMix64, an integer of 64 bits to another."""
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def key(rng_seed: int, purpose: int, *counters: int) -> int:
    """The key of a stream, 64 bits without sign."""
    state = mix((rng_seed * _GOLDEN + purpose) & _WORD)
    for counter in counters:
        hashed = mix((counter + _GOLDEN) & _WORD)
        state = mix(((state ^ hashed) + _GOLDEN) & _WORD)
    return state


def endless(stream: int) -> Iterator[int]:
    """The words of a stream, one after the other."""
    return (mix((stream + n * _GOLDEN) & _WORD) for n in count(1))


def words(stream: int, number: int) -> NDArray[np.uint64]:
    """The first ``number`` words of a stream."""
    return np.array(list(islice(endless(stream), number)), dtype=np.uint64)


def uniforms(stream: int, number: int) -> NDArray[np.float64]:
    """Numbers in [0, 1): the top 24 bits of each word."""
    return (words(stream, number) >> np.uint64(40)).astype(np.float64) / 2.0**24


def permutation(stream: int, number: int) -> NDArray[np.int64]:
    """The order in which ``range(number)`` is visited: that of the words, read with a sign."""
    return np.argsort(words(stream, number).view(np.int64), kind="stable")


def first_task(rng_seed: int, tasks: int) -> int:
    """The task that the first host of iteration 0 gets, of so many."""
    return int(words(key(rng_seed, TASK), 1).view(np.int64)[0]) % tasks
