"""Compute as torch does by default inside a program that has set it otherwise, and leave that program as it was."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from simic import threads

CPU = torch.device("cpu")
_BLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def usual_modes() -> Iterator[None]:
    """Leave what the calling thread may have switched on: inference mode, autocast and another default device.

    Gradients stay as they are: what learns asks for them itself, and an environment's own tensors need none.
    """
    with ExitStack() as modes:
        # Only where needed: each of them costs as much as a decision of a small policy.
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled("cpu"):
            modes.enter_context(torch.autocast("cpu", enabled=False))
        if torch.get_default_device() != CPU:
            modes.enter_context(CPU)
        yield


def _set_blas(value: str | None) -> None:
    if value is None:
        os.environ.pop(_BLAS, None)
    else:
        os.environ[_BLAS] = value


def _set_start_method(value: str | None) -> None:
    # Joblib fixes the default one when it is first used, after which a program cannot choose any more.
    if value != multiprocessing.get_start_method(allow_none=True):
        multiprocessing.set_start_method(value, force=True)


# Settings of the process that growing changes: how each is read, and how it is put back.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "cores": (threads.count, threads.set_count),
    "type": (torch.get_default_dtype, torch.set_default_dtype),
    "mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "fill": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,  # pyright: ignore[reportAttributeAccessIssue]
        lambda value: setattr(torch.utils.deterministic, "fill_uninitialized_memory", value),
    ),
    "tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda value: setattr(torch.backends.cuda.matmul, "allow_tf32", value),
    ),
    "convolutions": (
        lambda: torch.backends.cudnn.allow_tf32,
        lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
    ),
    "blas": (lambda: os.environ.get(_BLAS), _set_blas),
    "processes": (lambda: multiprocessing.get_start_method(allow_none=True), _set_start_method),
}


@dataclass
class _Users:
    """Threads inside ``as_before``, and the settings before the first of them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


_users = _Users()


@contextmanager
def as_before() -> Iterator[None]:
    """Compute in float32 and with gradients; put back the settings of the process afterwards.

    Of several threads the first notes the settings and the last puts them back: each for itself would put back those of
    another in between.
    """
    with _users.lock:
        if not _users.count:
            _users.settings = {name: read() for name, (read, _) in _SETTINGS.items()}
            torch.set_default_dtype(torch.float32)
        _users.count += 1
    try:
        with usual_modes(), torch.enable_grad():
            yield
    finally:
        with _users.lock:
            _users.count -= 1
            if not _users.count:
                for name, (_, write) in _SETTINGS.items():
                    write(_users.settings[name])
