"""Name the files of a work directory."""

from pathlib import Path

from simic import durable
from simic.telemetry import recorder, starts, timing

CHECKPOINTS = "checkpoints"
IDENTITY = "identity.json"  # of the stage train: what the run is made from
FOLDERS = (CHECKPOINTS, recorder.FOLDER)
FILES = (IDENTITY, starts.RUN_FILE, timing.TIMING_FILE)


def make_room(work_dir: Path) -> None:
    """Put aside a file that stands where a folder belongs, and a folder where a file does."""
    # Put aside, not removed: it may be somebody's, and a run must not fail over it hours later.
    for name in (*FOLDERS, *FILES):
        path = work_dir / name
        if path.exists() and path.is_dir() is not (name in FOLDERS):
            durable.put_aside(path)


def had_begun(work_dir: Path) -> bool:
    """Tell whether something was ever recorded there."""
    times = work_dir / timing.TIMING_FILE
    return any((work_dir / recorder.FOLDER).glob("*")) or (
        times.exists() and times.stat().st_size > 0
    )
