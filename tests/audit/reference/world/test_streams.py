"""The second implementation of the random numbers gives those of the first."""

import torch

from simic import rng
from simic.audit.reference.world import streams


def test_the_mixer_is_splitmix64() -> None:
    # First outputs of the published generator for the seed 1234567 (Vigna, splitmix64.c).
    golden = 0x9E3779B97F4A7C15
    first = [streams.mix((1234567 + (n + 1) * golden) & (2**64 - 1)) for n in range(3)]
    assert first == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_streams_are_those_of_training() -> None:
    counters = (3, 17, -1, 2**40)
    ours = streams.key(5, streams.SEED_INIT, *counters)
    theirs = rng.key(5, rng.Purpose.SEED_INIT, *counters)
    assert ours == int(theirs) % 2**64
    assert torch.equal(torch.from_numpy(streams.uniforms(ours, 50)).float(), rng.uniform(theirs, (50,)))
    assert torch.equal(torch.from_numpy(streams.permutation(ours, 50)), rng.permutation(theirs, 50))


def test_purposes_are_those_of_training() -> None:
    for name in ("HOST_INIT", "SEED_INIT", "BATCH_ORDER", "TASK", "EPISODE_LENGTH"):
        assert getattr(streams, name) == rng.Purpose[name]


def test_lengths_of_episodes_are_drawn_from_their_range() -> None:
    drawn = [streams.episode_length((5, 8), 3, iteration) for iteration in range(40)]
    words = [int(rng.bits(rng.key(3, rng.Purpose.EPISODE_LENGTH, iteration))) & 0x7FFFFFFF for iteration in range(40)]
    assert drawn == [5 + word % 4 for word in words] and set(drawn) == {5, 6, 7, 8}
    assert streams.episode_length(12, 3, 1) == 12
