"""What a work directory consists of, and what took the place of a part of it."""

from pathlib import Path

from simic import durable
from simic.telemetry import recorder, starts, timing
from simic.training import partial, seams

CHECKPOINTS = "checkpoints"
FOLDERS = (CHECKPOINTS, partial.FOLDER, recorder.FOLDER)
FILES = (seams.FILE, starts.RUN_FILE, timing.TIMING_FILE)


def make_room(work_dir: Path) -> None:
    """Puts a file that stands where a folder has to be aside, and a folder where a file has to be. That something is
    missing then is found by whoever reads it.
    """
    for name in (*FOLDERS, *FILES):
        path = work_dir / name
        if path.exists() and path.is_dir() is not (name in FOLDERS):
            durable.put_aside(path)


def had_begun(work_dir: Path) -> bool:
    """Whether something was ever recorded there."""
    times = work_dir / timing.TIMING_FILE
    return any((work_dir / recorder.FOLDER).glob("*")) or (times.exists() and times.stat().st_size > 0)
