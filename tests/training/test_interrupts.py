"""The first signal asks, the second acts; afterwards signals are as before."""

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from simic.training.interrupts import stop_at_once, stop_on_signals
from tests.helpers import ROOT

PROGRAM = """
import os, signal, sys, time
from simic.training.interrupts import Interrupted, stop_at_once
# Under nohup, or as a shell's background job, both begin ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
try:
    with stop_at_once("it"):
        {}
        time.sleep(60)
except Interrupted:
    sys.exit(3)
"""


def test_the_first_signal_only_sets_the_event_and_the_second_interrupts_at_once(request):
    stop = threading.Event()
    # A shell's background job starts with SIGINT ignored; the law is about a handler that is there.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, former))

    def two_signals():
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(1)
            os.kill(os.getpid(), signal.SIGINT)
            stop.clear()  # not reached

    with pytest.raises(KeyboardInterrupt):
        two_signals()
    assert stop.is_set() and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    "stop",
    [
        'exec("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")',
        "Last()",
        "os.kill(os.getpid(), signal.SIGHUP)",
    ],
)
def test_a_stop_in_an_exec_or_a_finalizer_ends_with_our_exit_code(stop, tmp_path):
    """Modules run an exec as they are imported, and after a KeyboardInterrupt out of it ``python -m`` dies of SIGINT.
    In a finalizer Python drops it.
    """
    (tmp_path / "stopped.py").write_text(PROGRAM.format(stop))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "stopped"]
    result = subprocess.run(command, env=environment, check=False, capture_output=True, timeout=50)
    assert (result.returncode, result.stderr) == (3, b"")


def test_a_run_under_nohup_outlives_its_terminal():
    stop, former = threading.Event(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, former)


def test_what_python_drops_else_is_reported_and_the_hook_is_put_back(monkeypatch):
    reported, dropped = [], SimpleNamespace(exc_value=ValueError())
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    former = sys.unraisablehook
    with stop_at_once("it"):
        sys.unraisablehook(dropped)
    assert (reported, sys.unraisablehook) == ([dropped], former)
