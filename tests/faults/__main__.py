"""``python -m tests.faults``: plants the faults of the catalogue and prints which the audit finds."""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from simic.errors import SimicError
from tests.faults.catalogue import ALL
from tests.faults.fault import FAMILIES, Fault
from tests.faults.runner import Tried, gravest, self_test

MESSAGE_LENGTH = 90  # of a refusal, in a line


def chosen(ids: Sequence[str]) -> list[Fault]:
    """Return the faults of these ids, or whose ids begin so; all where none is named. SimicError for an unknown one."""
    for each in ids:
        if not any(fault.id.startswith(each) for fault in ALL):
            raise SimicError(f"--only {each}: no such fault; ids begin with the family: {', '.join(FAMILIES)}")
    return [fault for fault in ALL if not ids or fault.id.startswith(tuple(ids))]


def line(one: Tried) -> str:
    """Return a fault × what found it × how grave it was taken."""
    judged = one.judgement
    by = ", ".join(f"{check} {severity}" for check, severity in judged.by.items())
    by = by or f"{judged.stage} {judged.message.strip().rpartition(chr(10))[2][:MESSAGE_LENGTH]}".strip()
    by = by if one.changed else f"{by} (no file is changed)".strip()
    return f"{one.fault.id:44} {one.fault.severity:9} {judged.word:8} {by:40} {one.seconds:5.0f} s".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 for a message to the user."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="ID", help="these faults, or those whose ids begin so")
    parser.add_argument("--processes", type=int, default=1, help="faults tried at once")
    asked = parser.parse_args(arguments)
    tried: list[Tried] = []
    try:
        faults = chosen(asked.only)
        with tempfile.TemporaryDirectory(prefix="simic-faults-") as folder:
            for laboratory, done in self_test(Path(folder), faults, asked.processes):
                said = (
                    f"no fault, {len(laboratory.clean)} runs: {gravest(laboratory.clean.values())}"
                    if done is None
                    else line(done)
                )
                print(said, flush=True)
                tried += [] if done is None else [done]
        print(json.dumps(Counter(one.judgement.word for one in tried)))
    except SimicError as error:
        print(f"simic: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
