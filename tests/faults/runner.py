"""Plant faults one by one in a copy of the package, and run the tests that must notice them."""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.fault import ROOT, Fault, write_patched

PATIENCE_SECONDS = 900  # of one fault: it may make a test wait for ever
# Imported once for all faults; nothing of simic, which each fault imports from its own copy.
LIBRARIES = (
    "torch",
    "torch._dynamo",
    "numpy",
    "scipy.stats",
    "pydantic",
    "gymnasium",
    "pyarrow.parquet",
    "pytest",
)
NOT_RUN = 70  # exit code of a process that ran no test
OUTPUT_SHOWN = 2000  # characters
OPTIONS = ("-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")


@dataclass(frozen=True)
class Outcome:
    """What noticed a fault: the test that failed, "too slow", or nothing; and the wall seconds that took."""

    fault: Fault
    caught_by: str
    seconds: float


class FirstFailure:
    """Write the name of the first test that fails into a file (a plugin of pytest)."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and not self.file.exists():
            self.file.write_text(report.nodeid.removeprefix("tests/"), encoding="utf-8")


def try_out(faults: Sequence[Fault], processes: int = 1) -> Iterator[Outcome]:
    """Try the faults, so many at once, each in a fork of this process; yield them as they are done."""
    for library in LIBRARIES:
        importlib.import_module(library)
    waiting = list(reversed(faults))
    running: dict[int, tuple[Fault, Path, float]] = {}
    with tempfile.TemporaryDirectory(prefix="simic-faults-") as scratch:
        while waiting or running:
            while waiting and len(running) < processes:
                fault = waiting.pop()
                folder = Path(scratch) / fault.id
                write_patched(folder, fault.patches)
                running[_started(fault, folder)] = fault, folder, time.monotonic()
            time.sleep(0.05)
            for pid, (fault, folder, started) in list(running.items()):
                seconds = time.monotonic() - started
                late = seconds > PATIENCE_SECONDS
                if late:
                    os.killpg(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
                if ended:
                    del running[pid]
                    failed = folder / "failed"
                    caught_by = (
                        failed.read_text(encoding="utf-8")
                        if failed.exists()
                        else "too slow"
                        if late
                        else ""
                    )
                    if status and not caught_by:
                        output = (folder / "output").read_text(encoding="utf-8", errors="replace")
                        raise ValueError(
                            f"{fault.id}: its tests could not be run: {output[-OUTPUT_SHOWN:]}"
                        )
                    yield Outcome(fault, caught_by, round(seconds, 1))
                    subprocess.run(["rm", "-rf", folder], check=True)


def _started(fault: Fault, folder: Path) -> int:
    """Fork a process that runs the tests of a fault on its copy of the package; return its id."""
    pid = os.fork()
    if pid:
        return pid
    status = NOT_RUN
    try:
        os.setsid()
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(ROOT)
        # The copy comes first, here and in processes that tests start.
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{ROOT}"
        os.environ["PYTHONSAFEPATH"] = "1"  # else they would look into this folder first
        os.environ["OMP_NUM_THREADS"] = "1"
        pytest = importlib.import_module("pytest")
        for test in fault.tests:
            options = [*OPTIONS, f"--basetemp={folder / 'temporary'}", f"tests/{test}"]
            status = int(pytest.main(options, [FirstFailure(folder / "failed")]))
            if status:
                break
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)
