"""Saved inside an iteration: stopped, killed or damaged there, a run is byte for byte the one that never was."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from functools import partial
from itertools import count, takewhile
from pathlib import Path

import pytest
from small_runs import (
    Watcher,
    assert_same_run,
    findings_of,
    flip,
    interrupted_after,
    recorded,
    rewritten,
    run,
    small_params,
)

from simic.errors import SimicError
from simic.telemetry.rows import FindingRow
from simic.training import session
from simic.training.checkpoint import PartialStore
from simic.training.interrupts import Interrupted
from simic.training.ranks import Ranks
from simic.training.session import open_session
from tests.helpers import ROOT

EVERY = {"checkpoint_steps": 1}


def partials_of(work: Path) -> list[str]:
    return sorted(path.name for path in (work / "partial").iterdir()) if (work / "partial").exists() else []


def steps_done_anew(work: Path, prepared: Path, params=None) -> list[tuple]:
    """Runs to the end; the steps that it took."""
    watcher = Watcher()
    run(work, prepared, [watcher], params=params)
    return [call[1:] for call in watcher.calls if call[0] == "step"]


# 4 iterations of 3 steps: in the first, at an end, in the last.
def test_a_stop_at_any_step_costs_no_step(finished, prepared, tmp_path):
    params = small_params({"checkpoint_steps": 3})
    for steps, done, inside in ((2, 0, 2), (1, 0, 3), (7, 3, 1)):
        message = rf"^stopped with {done} iterations and {inside} steps of iteration {done + 1} saved; to resume"
        interrupted_after(steps, tmp_path, prepared, params, message)
        assert partials_of(tmp_path) == [f"{inside:06d}"]
    assert steps_done_anew(tmp_path, prepared, params) == [(3, 2), (3, 3)]
    assert_same_run(tmp_path, finished)
    assert partials_of(tmp_path) == []


def newest(work: Path) -> tuple[int, int]:
    """Iterations, and steps of the next one, that are saved."""
    done = max((int(path.name) for path in (work / "checkpoints").glob("[0-9]*")), default=0)
    store = PartialStore(work / "partial")
    return done, max((step for step in store.numbers() if store.read(step).manifest.iteration == done), default=0)


KILLED = {"iterations": 2, "validate_every": 1}
PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_partial import EVERY, KILLED
from small_runs import run, small_params
from tests.pipeline.hook import sitecustomize as hook
hook.watch(sys.argv[2], int(sys.argv[4]), Path(os.devnull), (os.getpid(),))
run(Path(sys.argv[2]), Path(sys.argv[3]), params=small_params(EVERY, **KILLED))
"""


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("undisturbed")
    run(work, prepared, params=small_params(EVERY, **KILLED))
    return work


def killed_at(change: int, undisturbed: Path, prepared: Path, tmp_path: Path) -> bool:
    """Whether a process could be killed at that change of a file, of about 90 there are; then nothing is lost."""
    work = tmp_path / f"killed-at-{change}"
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(work), str(prepared), str(change)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    status = subprocess.run(command, env=environment, check=False).returncode
    assert status in (0, -signal.SIGKILL)
    if status:
        done, steps = newest(work)
        assert len(steps_done_anew(work, prepared, small_params(EVERY, **KILLED))) == 3 * (2 - done) - steps
    assert_same_run(work, undisturbed)
    assert findings_of(work) == [] and partials_of(work) == []
    shutil.rmtree(work)
    return status != 0


def test_a_kill_at_a_change_of_a_file_loses_nothing(undisturbed, prepared, tmp_path):
    assert killed_at(41, undisturbed, prepared, tmp_path)


@pytest.mark.prove
def test_a_kill_at_any_change_of_a_file_loses_nothing(undisturbed, prepared, tmp_path):
    killed = list(takewhile(lambda change: killed_at(change, undisturbed, prepared, tmp_path), count(1)))
    assert len(killed) > 41


@pytest.fixture(scope="module")
def stopped(prepared, tmp_path_factory) -> Path:
    """The work directory of a run that was stopped after two steps of its second iteration; read only."""
    work = tmp_path_factory.mktemp("stopped")
    interrupted_after(5, work, prepared, small_params(EVERY))
    return work


@pytest.fixture
def work(stopped, tmp_path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "work"))


def edit(path: Path, tensors=None, **changes) -> None:
    found = PartialStore(path.parent).read(int(path.name))
    rewritten(found, tensors(found.tensors) if tensors else found.tensors, **changes)


def without_values(tensors: dict) -> dict:
    return {name: tensor for name, tensor in tensors.items() if name != "rollout/values"}


def with_one_step(tensors: dict) -> dict:
    return tensors | {"steps/op": tensors["steps/op"][:1].clone()}


MISFITS = [
    (lambda path: flip(path / "state.safetensors", 100), "state.safetensors: damaged: its sha256 is not the one"),
    (partial(edit, step=1), "holds the state after 1 steps, not after 2"),
    (partial(edit, checkpoint_sha256="0"), "belongs to another checkpoint than"),
    (partial(edit, format_version=9), "format version 9, this version reads 5"),
    (partial(edit, tensors=without_values), "does not fit this run: a rollout of other environments"),
    (partial(edit, tensors=with_one_step), "does not fit this run: index 1 is out of bounds"),
]


@pytest.mark.parametrize(("damage", "said"), MISFITS)
def test_one_that_is_damaged_or_does_not_fit_is_set_aside_and_the_iteration_starts_again(damage, said, work, prepared):
    damage(work / "partial" / "000002")
    watcher = interrupted_after(
        1, work, prepared, small_params(EVERY), "1 iterations and 1 steps of iteration 2 saved; to"
    )
    assert watcher.calls[1] == ("step", 1, 1)
    [found] = watcher.findings
    assert (found.check, found.severity, found.iteration) == ("damaged_checkpoint", "medium", 1)
    assert said in found.message and "kept as partial/damaged-000002, iteration 2 starts again" in found.message
    assert partials_of(work) == ["000001", "damaged-000002"]


def test_one_of_a_checkpoint_that_is_damaged_itself_is_of_no_use(work, finished, prepared):
    flip(work / "checkpoints" / "000001" / "state.safetensors", 3000)
    assert steps_done_anew(work, prepared, small_params(EVERY))[0] == (0, 1)
    first, second = findings_of(work)
    assert "000001/state.safetensors: damaged" in first.message
    assert "belongs to the checkpoint after 1 iterations, the newest is that after 0 iterations" in second.message
    assert recorded(work) == recorded(finished)


def test_one_of_an_iteration_that_is_saved_by_now_goes_without_a_word(work, finished, prepared, tmp_path):
    """As a kill leaves it between the checkpoint and its removal."""
    partial = shutil.copytree(work / "partial", tmp_path / "partial")
    interrupted_after(2, work, prepared, small_params(EVERY))  # in the third iteration
    shutil.copytree(partial / "000002", work / "partial" / "000002")
    assert partials_of(work) == ["000001", "000002"]
    assert steps_done_anew(work, prepared, small_params(EVERY))[0] == (2, 2)
    assert_same_run(work, finished)
    assert findings_of(work) == []


def test_findings_of_the_iteration_so_far_are_saved_with_it(prepared, tmp_path):
    """The same file of telemetry has them as without the stop."""
    found = FindingRow(iteration=1, check="mine", severity="low", message="seen in step 4")

    class Finds(Watcher):
        def on_step(self, iteration, step):
            super().on_step(iteration, step)
            if (iteration, step) == (1, 1):
                self.info.report(found)

    stop = threading.Event()
    finds = Finds(lambda count: stop.set() if count == 5 else None)
    params = small_params(EVERY, **KILLED)
    with pytest.raises(Interrupted):
        run(tmp_path / "stopped", prepared, [finds], stop, params)
    for name in ("stopped", "whole"):
        run(tmp_path / name, prepared, [Finds()], params=params)
    assert findings_of(tmp_path / "stopped") == [found]
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_processes_of_torchrun_save_whole_iterations_alone(prepared, tmp_path, work):
    with (
        pytest.raises(SimicError, match=r"^runtime.checkpoint_steps = 1: must be 0 with the 2 processes of torchrun"),
        open_session(small_params(EVERY), tmp_path / "new", prepared, ranks=Ranks(0, 2)),
    ):
        pass
    with open_session(small_params(), work, prepared) as opened:
        identity, store, partials = opened.identity, opened.checkpoints, opened.partials
        assert opened.partial is not None
    with ExitStack() as files:
        start, inside = session._begin(files, work, store, partials, identity, False, Ranks(0, 2))
    assert inside is None and start.checkpoint is not None
    assert (
        "of one process, and now there are 2 of torchrun; kept as partial/damaged-000002" in start.findings[-1].message
    )
