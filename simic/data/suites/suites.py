"""Register suites by name: the kinds that each holds out, and how hosts are trained on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from simic import registry
from simic.errors import SimicError


@dataclass(frozen=True)
class TaskSuite:
    """A suite. ``held_out`` kinds have no instance in training. ``overrides`` of params.yaml suit it: host, batches,
    budget.

    ``val`` kinds serve only to choose the checkpoint; without any, those of training do. ``outside`` kinds, which only
    a suite of tables has, may have other widths. Each of ``parts`` gets as many tasks of a group as any other part that
    has kinds there; within a part kinds take turns.
    """

    name: str
    held_out: tuple[str, ...]
    # Number of samples of each task, by split.
    samples: dict[str, int]
    val: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()
    # Samples are rows [n, 1, 1, D]: standardised by column, clipped to ±5, kept as float16.
    table: bool = False

    def deal(self, kinds: Sequence[str], count: int) -> list[tuple[str, int]]:
        """Deal ``count`` tasks out to parts in turn, and within each to its kinds in turn.

        Returns:
            For each task its kind and the number of the instance.
        """
        # Kinds of no part are a part of their own.
        parts = [[name for name in part if name in kinds] for part in self.parts]
        parts.append([name for name in kinds if not any(name in part for part in parts)])
        parts = [part for part in parts if part]
        tasks = []
        for number in range(count if parts else 0):
            # The next part's turn, and within it the next kind's.
            turn, place = divmod(number, len(parts))
            instance, member = divmod(turn, len(parts[place]))
            tasks.append((parts[place][member], instance))
        return tasks


SUITES: dict[str, TaskSuite] = {}


def suite(item: TaskSuite) -> TaskSuite:
    """Register a suite; SimicError where the name is taken."""
    if item.name in SUITES:
        raise SimicError(f"suite {item.name!r} is registered already")
    SUITES[item.name] = item
    registry.add(registry.SUITE, item.name)
    return item
