"""Fixtures shared by all tests."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


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
