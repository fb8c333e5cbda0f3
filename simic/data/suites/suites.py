"""The suites by name: which of their kinds are held out entirely, and how hosts are trained on them."""

from dataclasses import dataclass

from simic import registry
from simic.data.suites.kinds import Kind
from simic.errors import SimicError
from simic.params import Host


@dataclass(frozen=True)
class SourceTask:
    """What the hosts of a suite were trained on before: samples are made as those of a kind, and all tasks keep their
    scale, so that nothing is standardised.
    """

    host: Host
    problem: Kind
    samples: int
    epochs: int


@dataclass(frozen=True)
class TaskSuite:
    """``held_out`` kinds have no instance in training. ``overrides`` of params.yaml suit it: host, batches, budget.
    With a ``source`` the hosts come trained and stay as they are.
    """

    name: str
    held_out: tuple[str, ...]
    samples: dict[str, int]  # of each split of each task
    overrides: tuple[str, ...]
    source: SourceTask | None = None


SUITES: dict[str, TaskSuite] = {}


def suite(item: TaskSuite) -> TaskSuite:
    """Register a suite; SimicError where the name is taken."""
    if item.name in SUITES:
        raise SimicError(f"suite {item.name!r} is registered already")
    SUITES[item.name] = item
    registry.add(registry.SUITE, item.name)
    return item
