"""Killed at any change of a file and resumed, a run is byte for byte the one that never was."""

import os
import shutil
import signal
import subprocess
import sys
from itertools import count, takewhile
from pathlib import Path

import pytest
from small_runs import Watcher, assert_same_run, findings_of, run, small_params

from tests.helpers import ROOT

PARAMS = {"iterations": 2, "validate_every": 1}
PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_killed import PARAMS
from small_runs import run, small_params
from tests.pipeline.hook import sitecustomize as hook
hook.watch(sys.argv[2], int(sys.argv[4]), Path(os.devnull), (os.getpid(),))
run(Path(sys.argv[2]), Path(sys.argv[3]), params=small_params(**PARAMS))
"""


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("undisturbed")
    run(work, prepared, params=small_params(**PARAMS))
    return work


def killed_at(change: int, undisturbed: Path, prepared: Path, tmp_path: Path) -> bool:
    """Tell whether a process could be killed at that change of a file; then no checkpoint is lost."""
    work = tmp_path / f"killed-at-{change}"
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(Path(__file__).parent),
        str(work),
        str(prepared),
        str(change),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    status = subprocess.run(command, env=environment, check=False).returncode
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
