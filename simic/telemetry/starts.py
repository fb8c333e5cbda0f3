"""Keep the starts and resumes of a run in a file of their own because they differ between equal runs."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from simic import durable
from simic.errors import SimicError
from simic.telemetry.rows import FindingRow, StartRow

RUN_FILE = "run.json"
_ROWS = TypeAdapter(list[StartRow])


def read(path: Path) -> list[StartRow]:
    """Read all starts in order; SimicError where the file is not what was written."""
    try:
        return _ROWS.validate_python(durable.checked(path.read_bytes())["starts"])
    except OSError as error:
        raise SimicError(f"{path}: not readable: {error.strerror}") from None
    except (ValueError, KeyError, ValidationError) as error:
        raise SimicError(
            f"{path}: damaged: not the starts of a run: {str(error).splitlines()[0]}"
        ) from None


def note(path: Path, start: StartRow) -> None:
    """Add a start, whole or not at all. Where the file is damaged, or missing after an earlier start, a new one begins,
    and that is one of its findings.
    """
    # A start must not fail over a damaged file that nothing else depends on.
    earlier = list[StartRow]()
    try:
        # A run that goes on had a file: where it is missing, reading says so.
        earlier = read(path) if path.exists() or start.start_iteration else []
    except SimicError as damage:
        aside = f"kept as {durable.put_aside(path).name}, " if path.exists() else ""
        lost = FindingRow(
            iteration=start.start_iteration,
            check="starts_lost",
            severity="low",
            message=f"{damage}; {aside}earlier starts are unknown",
        )
        start = start.model_copy(update={"findings": [*start.findings, lost]})
    # Written whole: a kill leaves the earlier starts.
    rows = _ROWS.dump_python([*earlier, start], mode="json")
    durable.replace_file(path, durable.with_checksum({"starts": rows}))
