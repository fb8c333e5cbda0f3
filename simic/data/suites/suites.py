"""The suites by name: which of their kinds are held out entirely, and how hosts are trained on them."""

from dataclasses import dataclass

from simic import registry
from simic.errors import SimicError


@dataclass(frozen=True)
class TaskSuite:
    """``held_out`` kinds have no instance in training. ``overrides`` of params.yaml suit it: host, batches, budget."""

    name: str
    held_out: tuple[str, ...]
    samples: dict[str, int]  # of each split of each task
    overrides: tuple[str, ...]


SUITES: dict[str, TaskSuite] = {}


def suite(item: TaskSuite) -> TaskSuite:
    """Register a suite; SimicError where the name is taken."""
    if item.name in SUITES:
        raise SimicError(f"suite {item.name!r} is registered already")
    SUITES[item.name] = item
    registry.add(registry.SUITE, item.name)
    return item
