"""Pieces of work that threads share: every result once, in order, and an error of any thread is everybody's."""

import threading
import time

import pytest
import torch

from simic import threads
from simic.threads import OwnOfThread, share


@pytest.fixture(autouse=True)
def three_threads() -> None:
    threads.set_count(3)


def test_results_are_in_the_order_of_the_pieces_whoever_did_them() -> None:
    everybody = threading.Barrier(3, timeout=20)
    names = set()

    def work(number: int) -> int:
        if number < 3:
            everybody.wait()  # only three threads at once come past it
        names.add(threading.current_thread().name)
        time.sleep(0.001 * (number % 3))
        return number * number

    assert share(work, range(50)) == [number * number for number in range(50)]
    assert len(names) == 3 and threading.current_thread().name in names
    assert share(work, []) == []


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_ends_the_work_and_leaves_the_threads_usable(failing: int) -> None:
    everybody = threading.Barrier(3, timeout=20)
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        if number < 3:
            everybody.wait()
        if number == failing:
            raise ValueError(f"piece {number}")
        time.sleep(0.02)

    with pytest.raises(ValueError, match=f"piece {failing}"):
        share(work, range(100))
    assert len(begun) < 20
    assert share(abs, [-1, -2, -3]) == [1, 2, 3]


def test_every_thread_records_gradients_as_the_one_that_asks_does() -> None:
    everybody = threading.Barrier(3, timeout=20)

    def records(_: int) -> bool:
        everybody.wait()
        return torch.is_grad_enabled()

    with torch.no_grad():
        assert share(records, range(3)) == [False] * 3
    assert share(records, range(3)) == [True] * 3


def test_work_that_asks_for_threads_itself_does_all_alone() -> None:
    everybody = threading.Barrier(3, timeout=20)

    def outer(_: int) -> set[int]:
        everybody.wait()
        return set(share(lambda _: threading.get_ident(), range(5)))

    assert len(set.union(*share(outer, range(3)))) == 3


def test_asking_for_as_many_again_leaves_the_threads_at_work() -> None:
    everybody = threading.Barrier(3, timeout=20)

    def at_work(_: int) -> threading.Thread:
        everybody.wait()
        return threading.current_thread()

    first = set(share(at_work, range(3)))
    threads.set_count(3)
    assert set(share(at_work, range(3))) == first and len(first) == 3


def test_each_thread_has_an_object_of_its_own() -> None:
    everybody = threading.Barrier(3, timeout=20)
    mine = object()
    own = OwnOfThread(object, mine)

    def ask(_: int) -> object:
        everybody.wait()
        first = own()
        assert own() is first
        return first

    assert len(set(share(ask, range(3)))) == 3 and own() is mine
