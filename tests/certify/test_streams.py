"""The second implementation of the random numbers gives those of the first."""

import numpy as np
import torch

from simic import rng
from simic.certify import streams


def test_words_are_splitmix64() -> None:
    # First outputs of the published generator for the seed 1234567 (Vigna, splitmix64.c).
    found = streams.words(np.array([1234567], dtype=np.uint64), 3)
    assert found.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_streams_are_those_of_training() -> None:
    counters = (3, 17, -1, 2**40)
    ours = streams.key(5, streams.SEED_INIT, *counters)
    theirs = rng.key(5, rng.Purpose.SEED_INIT, *counters)
    assert int(ours[0]) == int(theirs) % 2**64
    assert torch.equal(torch.from_numpy(streams.uniforms(ours, 50)).float(), rng.uniform(theirs, (50,)))
    assert torch.equal(torch.from_numpy(streams.normals(ours, 50)).float(), rng.normal(theirs, (50,)))
    assert torch.equal(torch.from_numpy(streams.permutation(ours, 50)), rng.permutation(theirs, 50))


def test_many_streams_at_once_are_those_of_training() -> None:
    envs, time = torch.arange(4)[None], torch.arange(3)[:, None]
    ours = streams.uniforms(streams.key(5, streams.ACTIONS, 7, envs.numpy(), time.numpy()), 6)
    theirs = rng.uniform(rng.key(5, rng.Purpose.ACTION, 7, envs, time), (6,))
    assert torch.equal(torch.from_numpy(ours).float(), theirs)


def test_purposes_are_those_of_training() -> None:
    for name in ("HOST_INIT", "SEED_INIT", "BATCH_ORDER", "TASK", "EPISODE_LENGTH"):
        assert getattr(streams, name) == rng.Purpose[name]


def test_lengths_of_episodes_are_drawn_from_their_range() -> None:
    drawn = [streams.episode_length((5, 8), 3, iteration) for iteration in range(40)]
    words = [int(rng.bits(rng.key(3, rng.Purpose.EPISODE_LENGTH, iteration))) & 0x7FFFFFFF for iteration in range(40)]
    assert drawn == [5 + word % 4 for word in words] and set(drawn) == {5, 6, 7, 8}
    assert streams.episode_length(12, 3, 1) == 12
