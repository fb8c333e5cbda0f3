"""Killed at any change of a file and resumed, a run is byte for byte the one that never was."""

import os
import shutil
import signal
from itertools import count, takewhile
from pathlib import Path

import pytest
from small_runs import Watcher, assert_same_run, findings_of, run, small_params

from tests.helpers import FORKING
from tests.pipeline.hook import sitecustomize as hook

PARAMS = {"iterations": 2, "validate_every": 1}


def run_watched(work: Path, prepared: Path, change: int) -> None:
    """Train, and be killed at that change of a file."""
    hook.watch(str(work), change, Path(os.devnull), (os.getpid(),))
    run(work, prepared, params=small_params(**PARAMS))


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("undisturbed")
    run(work, prepared, params=small_params(**PARAMS))
    return work


def killed_at(change: int, undisturbed: Path, prepared: Path, tmp_path: Path) -> bool:
    """Tell whether a process could be killed at that change of a file; then no checkpoint is lost."""
    work = tmp_path / f"killed-at-{change}"
    process = FORKING.Process(target=run_watched, args=(work, prepared, change))
    process.start()
    process.join()
    status = process.exitcode
    assert status in (0, -signal.SIGKILL)
    saved = max((int(path.name) for path in (work / "checkpoints").glob("[0-9]*")), default=0)
    watcher = Watcher()
    run(work, prepared, [watcher], params=small_params(**PARAMS))
    assert sum(call[0] == "step" for call in watcher.calls) == 3 * (2 - saved)
    assert_same_run(work, undisturbed)
    assert findings_of(work) == []
    shutil.rmtree(work)
    return status != 0


@pytest.mark.parametrize("change", [9, 21])
def test_a_kill_at_a_change_of_a_file_loses_nothing(change, undisturbed, prepared, tmp_path):
    assert killed_at(change, undisturbed, prepared, tmp_path)


@pytest.mark.prove
def test_a_kill_at_any_change_of_a_file_loses_nothing(undisturbed, prepared, tmp_path):
    killed = list(
        takewhile(lambda change: killed_at(change, undisturbed, prepared, tmp_path), count(1))
    )
    assert len(killed) > 21
