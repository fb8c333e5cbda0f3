"""Fixtures shared by all tests."""

import os

# Read when torch is imported, here and in children: parallel tests share the cores
os.environ["OMP_NUM_THREADS"] = "1"

import ipaddress
import multiprocessing
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simic import cli, threads
from simic.training import worker_layout
from tests.helpers import FORKING

# Files of half a minute and more, which begin first, and folders with long tests.
LONGEST = (
    "audit/test_end_to_end.py",
    "flows/test_pipeline.py",
    "pipeline/test_distributed.py",
    "reference/test_small_runs.py",
    "pipeline/test_tracking.py",
    "pipeline/test_disturbed.py",
    "audit/test_gym_audit.py",
    "pipeline/test_killed.py",
    "faults/test_faults.py",
)
LONG = (
    "pipeline",
    "audit",
    "flows",
    "training",
    "reference",
    "envs",
    "growth",
    "evaluation",
    "batch",
    "faults",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first, so that no worker ends alone with one."""

    def order(item: pytest.Item) -> int:
        place = "/".join(item.path.parts[-2:])
        if place in LONGEST:
            return LONGEST.index(place)
        return len(LONGEST) + (item.path.parent.name not in LONG)

    items.sort(key=order)


class NoGlobalRandomNumbers(TorchDispatchMode):
    """Raises on any operator that may draw from a generator, and so would tie a result to what ran before."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise AssertionError(f"{func} draws from torch's random generator")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_global_rng() -> Callable[[], AbstractContextManager]:
    """``with no_global_rng():`` nothing inside may draw from torch's generators."""
    return NoGlobalRandomNumbers


@pytest.fixture(scope="session", autouse=True)
def fast_starts() -> Iterator[None]:
    """Fork the fresh processes of simic from one that has imported what they need: imports take each five seconds."""
    with pytest.MonkeyPatch.context() as patch:
        forking = SimpleNamespace(
            get_context=lambda method: FORKING,
            active_children=multiprocessing.active_children,
            parent_process=multiprocessing.parent_process,
        )
        patch.setattr(worker_layout, "multiprocessing", forking)
        yield


@pytest.fixture
def real_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start processes as a user's run does."""
    monkeypatch.setattr(worker_layout, "multiprocessing", multiprocessing)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to anywhere but this machine is an error."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address, /) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = address[0]
            local = host == "localhost" or ipaddress.ip_address(host).is_loopback
            assert local, f"a test connects to {host}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def process_settings() -> Iterator[None]:
    """A training session sets threads and determinism for the process; other tests must not inherit that."""
    of_operation = torch.get_num_threads()
    yield
    torch.set_num_threads(of_operation)
    threads.set_count(1)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


class Simic:
    """``simic`` with arguments, in a folder if one is given: exit code, output, errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capfd = monkeypatch, capfd

    def __call__(
        self, *arguments: object, root: Path | None = None
    ) -> tuple[int | str | None, str, str]:
        if root is not None:
            self.monkeypatch.chdir(root)
        self.capfd.readouterr()
        self.monkeypatch.setattr(sys, "argv", ["simic", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        self.out, error = self.capfd.readouterr()
        return stopped.value.code, self.out, error

    def refuses(self, *arguments: object, root: Path | None = None) -> str:
        """The one line in which it says why."""
        code, _, error = self(*arguments, root=root)
        assert code == 2 and error.startswith("simic: ") and error.count("\n") == 1, error
        return error


@pytest.fixture
def simic(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Simic:
    return Simic(monkeypatch, capfd)
