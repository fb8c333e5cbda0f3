"""torch.compile where it works; where it does not, the same function as it is, and nobody is left to guess."""

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
T = TypeVar("T")

log = logging.getLogger(__name__)


class Compiled(Generic[Given, T]):
    """``function`` compiled at its first call. ``error`` says why it is not, if it cannot be; None: it is."""

    def __init__(self, function: Callable[Given, T], backend: str = "inductor") -> None:
        self.function, self.error = function, None
        self.compiled: Callable[Given, T] = torch.compile(function, backend=backend)

    error: str | None

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> T:
        if self.error is None:
            try:
                return self.compiled(*args, **kwargs)
            # No compiler, no Triton, an operator it does not know. A fault of the function itself is raised below.
            except (RuntimeError, ImportError, OSError) as error:
                self.error = " ".join(str(error).split())[:300] or type(error).__name__
                log.warning("torch.compile failed, continuing without it: %s", self.error)
        return self.function(*args, **kwargs)
