"""The reference's random numbers: those that are published, and those that a run draws."""

import torch

from simic import rng
from simic.audit.reference import rng as own


def test_words_are_splitmix64():
    """Of the state 1234567: Vigna's splitmix64.c, as Rosetta Code lists them."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert list(own.words(1234567, 5)) == expected


def test_streams_are_those_of_a_run():
    for seed, counters in ((0, ()), (1, (3,)), (2**31 - 1, (7, 0, 41)), (5, (1 << 41, 2))):
        key = own.stream(seed, own.Draw.ACTIONS, *counters)
        assert key == int(rng.key(seed, rng.Purpose.ACTION, *counters)) % 2**64
    known = rng.Purpose.POLICY_INIT, rng.Purpose.ACTION, rng.Purpose.MINIBATCH, rng.Purpose.BASELINE
    assert [int(draw) for draw in own.Draw] == list(known)


def test_numbers_of_a_stream_are_those_of_a_run():
    stream = rng.key(3, rng.Purpose.MINIBATCH, 1, 2)
    key = own.stream(3, own.Draw.MINIBATCHES, 1, 2)
    assert own.uniform(key, 50) == rng.uniform(stream, (50,)).tolist()
    assert own.permutation(key, 50) == rng.permutation(stream, 50).tolist()
    torch.testing.assert_close(torch.tensor(own.normal(key, 50)), rng.normal(stream, (50,)), rtol=1e-6, atol=1e-7)
