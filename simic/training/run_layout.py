"""The files of a work directory, and the record of where a run went on with what other code or params had made."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from simic import durable
from simic.telemetry import recorder, starts, timing
from simic.telemetry.rows import FindingRow

CHECKPOINTS = "checkpoints"
RECIPE = "recipe.json"  # what the run is made from, and its lineage
LINEAGE = "seams"  # its key in that file
FOLDERS = (CHECKPOINTS, recorder.FOLDER)
FILES = (RECIPE, starts.RUN_FILE, timing.TIMING_FILE)
_ROWS = TypeAdapter(tuple[FindingRow, ...])


def make_room(work_dir: Path) -> None:
    """Put aside a file that stands where a folder belongs, and a folder where a file does."""
    for name in (*FOLDERS, *FILES):
        path = work_dir / name
        if path.exists() and path.is_dir() is not (name in FOLDERS):
            durable.put_aside(path)


def had_begun(work_dir: Path) -> bool:
    """Tell whether something was ever recorded there."""
    times = work_dir / timing.TIMING_FILE
    return any((work_dir / recorder.FOLDER).glob("*")) or (times.exists() and times.stat().st_size > 0)


def read_lineage(work_dir: Path) -> tuple[FindingRow, ...]:
    """Return where the run went on with what others had made; empty where that is not noted, or not whole."""
    try:
        return _ROWS.validate_python(durable.checked((work_dir / RECIPE).read_bytes())[LINEAGE])
    except (OSError, ValueError, KeyError, ValidationError):
        return ()
