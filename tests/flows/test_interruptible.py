"""Work in a thread can be asked to stop by whatever interrupts the main thread."""

import contextvars
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from flows import interruptible


class Alarm(BaseException):
    """What a signal handler raises, as Prefect's does."""


@pytest.fixture
def alarm() -> Iterator[None]:
    """A handler that raises in the main thread, in the middle of anything."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Alarm

    former = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def test_result_and_error_of_the_work_come_through() -> None:
    assert interruptible.run(lambda stop: (stop.is_set(), 3)) == (False, 3)
    with pytest.raises(ZeroDivisionError):
        interruptible.run(lambda stop: 1 // 0)


def test_work_is_not_in_the_main_thread_and_sees_its_context() -> None:
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("set")
    state = interruptible.run(
        lambda stop: (threading.current_thread() is threading.main_thread(), variable.get())
    )
    assert state == (False, "set")


@pytest.mark.usefixtures("alarm")
def test_a_signal_asks_the_work_to_stop_and_waits_until_it_has_saved() -> None:
    saved = []

    def work(stop: threading.Event) -> None:
        assert stop.wait(10)
        time.sleep(0.3)
        saved.append("state")

    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(Alarm):
        interruptible.run(work)
    assert saved == ["state"]


@pytest.mark.usefixtures("alarm")
def test_work_that_does_not_stop_is_left_after_the_grace() -> None:
    release = threading.Event()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    started = time.monotonic()
    with pytest.raises(Alarm):
        interruptible.run(lambda stop: release.wait(10), grace_seconds=0.2)
    assert time.monotonic() - started < 5
    release.set()
