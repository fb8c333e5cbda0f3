"""Counter-based random numbers: SplitMix64 (Steele, Lea, Flood 2014) as a hash of counters, in numpy."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Words = NDArray[np.uint64]
Counter = int | NDArray[np.int64]
WORD = 2**64
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
# Purposes of streams.
HOST_INIT = 2
SEED_INIT = 3
BATCH_ORDER = 4
INITIAL_WEIGHTS = 6
ACTIONS = 7
MINIBATCHES = 8
EVALUATION = 9
TASK = 15
EPISODE_LENGTH = 19
ALIGNMENT = 20


def mix(x: Words) -> Words:
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def step(x: Words) -> Words:
    """Return SplitMix64's first output of a state."""
    with np.errstate(over="ignore"):
        return mix(x + GOLDEN_GAMMA)


def key(rng_seed: int, draw: int, *counters: Counter) -> Words:
    """Return keys of streams: seed, purpose, then every counter hashed in; arrays of counters give arrays of keys."""
    keys = mix(np.array([(rng_seed * int(GOLDEN_GAMMA) + draw) % WORD], dtype=np.uint64))
    for counter in counters:
        keys = step(keys ^ step(np.asarray(counter, dtype=np.int64).astype(np.uint64)))
    return keys


def words(key: Words, count: int) -> Words:
    """Return the first words of each stream, ``[count]`` of a single one, else ``[…, count]``."""
    with np.errstate(over="ignore"):
        numbers = mix(key[..., None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN_GAMMA)
    return numbers[0] if key.shape == (1,) else numbers


def uniforms(key: Words, count: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1): the top 24 bits of each word."""
    return (words(key, count) >> np.uint64(40)).astype(np.float64) / 2.0**24


def normals(key: Words, count: int) -> NDArray[np.float64]:
    """Return standard normal numbers: the inverse of their distribution function at the top 53 bits."""
    return ndtri(((words(key, count) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53)


def permutation(key: Words, count: int) -> NDArray[np.int64]:
    """Return the order in which ``range(count)`` is visited: that of the words, read with a sign."""
    return np.argsort(words(key, count).view(np.int64), kind="stable")


def first_task(rng_seed: int, tasks: int) -> int:
    """Return the task of the first host of iteration 0, of so many."""
    return int(words(key(rng_seed, TASK), 1).view(np.int64)[0]) % tasks


def episode_length(episode_steps: int | tuple[int, int], rng_seed: int, iteration: int) -> int:
    """Return how many steps training episodes of an iteration have: so many, or drawn from a range with its ends."""
    if isinstance(episode_steps, int):
        return episode_steps
    low, high = episode_steps
    return low + int(words(key(rng_seed, EPISODE_LENGTH, iteration), 1)[0]) % 2**31 % (
        high - low + 1
    )
