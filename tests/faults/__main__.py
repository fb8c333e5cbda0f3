"""``python -m tests.faults``: plants the faults of the catalogue, and prints which test notices each."""

import argparse
import sys
from collections.abc import Sequence

from tests.faults.catalogue import ALL
from tests.faults.fault import FAMILIES, Fault
from tests.faults.runner import try_out


def chosen(ids: Sequence[str]) -> list[Fault]:
    """Choose the faults of these ids, or whose ids begin so; all where none is named. ValueError for an unknown one."""
    for name in ids:
        if not any(fault.id.startswith(name) for fault in ALL):
            raise ValueError(
                f"--only {name}: no such fault; ids begin with the family: {', '.join(FAMILIES)}"
            )
    return [fault for fault in ALL if not ids or fault.id.startswith(tuple(ids))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit with 1 where a fault is missed, with 2 for a message to the user."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        metavar="ID",
        help="these faults, or those whose ids begin so",
    )
    parser.add_argument("--processes", type=int, default=1, help="faults tried at once")
    options = parser.parse_args(arguments)
    missed = 0
    try:
        faults = chosen(options.only)
        for outcome in try_out(faults, options.processes):
            missed += not outcome.caught_by
            print(
                f"{outcome.fault.id:46} {outcome.seconds:5.0f} s  {outcome.caught_by or 'MISSED'}",
                flush=True,
            )
    except ValueError as error:
        print(f"faults: {error}", file=sys.stderr)
        return 2
    print(f"{len(faults) - missed} of {len(faults)} faults are noticed by a test")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
