"""``python -m simic.selftest``: plants the faults of the catalogue and prints which the audit finds."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from simic import durable
from simic.audit import known
from simic.errors import SimicError
from simic.selftest import matrix
from simic.selftest.catalogue import BY_ID
from simic.selftest.fault import Fault
from simic.selftest.runner import Tried, self_test


def chosen(ids: Sequence[str]) -> list[Fault]:
    """The faults of these ids, or whose ids begin so; all where none is named. SimicError for one that is unknown."""
    for each in ids:
        if not any(known.startswith(each) for known in BY_ID):
            raise SimicError(
                f"--only {each}: no such fault; the families are the beginnings of the ids: {', '.join(BY_ID)}"
            )
    return [fault for known, fault in BY_ID.items() if not ids or known.startswith(tuple(ids))]


def run(faults: Sequence[Fault], processes: int, out: Path | None, ship: Path | None = None) -> str:
    """The matrix; a line is printed and ``out`` is written anew whenever a fault is done, ``ship`` when all are."""
    tried: list[Tried] = []
    code = known.code()
    clean: dict[int, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="simic-self-test-") as folder:
        for laboratory, done in self_test(Path(folder), faults, processes, lambda line: print(line, flush=True)):
            clean = laboratory.clean
            if done is not None:
                tried.append(done)
                print(matrix.line(done), flush=True)
            if out is not None:
                durable.replace_file(out, matrix.to_json(code, clean, tried).encode())
    if ship is not None:
        durable.replace_file(ship, matrix.shippable(matrix.result(code, clean, tried)).to_json().encode())
    return matrix.table(code, clean, tried)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 for a message to the user."""
    parser = argparse.ArgumentParser(prog="python -m simic.selftest", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID", help="these faults, or those whose ids begin so")
    parser.add_argument("--processes", type=int, default=1, help="faults tried at once")
    parser.add_argument("--out", type=Path, help="write the matrix as JSON")
    parser.add_argument("--ship", action="store_true", help=f"write what reports say of it: {known.FILE.name}")
    asked = parser.parse_args(arguments)
    try:
        if asked.ship and asked.only:
            raise SimicError("--ship with --only: reports need all faults; leave one of them out")
        print(run(chosen(asked.only), asked.processes, asked.out, known.FILE if asked.ship else None))
    except SimicError as error:
        print(f"simic: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
