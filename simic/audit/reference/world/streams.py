"""Streams of random numbers as arrays."""

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from simic.audit.reference.rng import GOLDEN_GAMMA, WORD, mix
from simic.audit.reference.rng import stream as key

# What a stream is for.
HOST_INIT, SEED_INIT, BATCH_ORDER, TASK, EPISODE_LENGTH, ALIGNMENT = 2, 3, 4, 15, 19, 20


def endless(stream: int) -> Iterator[int]:
    """The words of a stream, one after the other."""
    return (mix((stream + n * GOLDEN_GAMMA) % WORD) for n in count(1))


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


def episode_length(episode_steps: int | tuple[int, int], rng_seed: int, iteration: int) -> int:
    """How many steps the training episodes of an iteration have: so many, or drawn from a range, ends included."""
    if isinstance(episode_steps, int):
        return episode_steps
    low, high = episode_steps
    return low + next(endless(key(rng_seed, EPISODE_LENGTH, iteration))) % 2**31 % (high - low + 1)
