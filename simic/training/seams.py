"""Where a run went on with what other code or params had made: noted in its work directory by whoever arranged it."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from simic import durable
from simic.telemetry.rows import FindingRow

FILE = "recipe.json"  # what the run is made from, and its seams
SEAMS = "seams"
_ROWS = TypeAdapter(tuple[FindingRow, ...])


def read(work_dir: Path) -> tuple[FindingRow, ...]:
    """All of them; none where nothing is noted, or not whole."""
    try:
        return _ROWS.validate_python(durable.checked((work_dir / FILE).read_bytes())[SEAMS])
    except (OSError, ValueError, KeyError, ValidationError):
        return ()
