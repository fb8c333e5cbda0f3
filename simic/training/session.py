"""A training run in its work directory: opened fresh or resumed, with everything that training mutates."""

import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from simic import durable
from simic.agent.policy import ActorCritic
from simic.data.batches import data_hash
from simic.params import Params
from simic.telemetry import starts
from simic.telemetry.naming import run_name
from simic.telemetry.recorder import FOLDER, NOTHING, Recorder, Silent
from simic.telemetry.rows import FindingRow, StartRow
from simic.training import machine, resume, run_layout
from simic.training.assemble import assemble, hosts_together, runtime_for
from simic.training.checkpoint import CheckpointStore, Manifest
from simic.training.learned import describe_specs
from simic.training.machine import Machine
from simic.training.ranks import ALONE, Ranks
from simic.training.resume import RunIdentity
from simic.training.run_layout import CHECKPOINTS, make_room
from simic.training.state import TrainState
from simic.training.task import Task

LOCK_FILE = "lock"


@dataclass(frozen=True)
class Session:
    """An open run; ``findings`` are those of opening it, not yet recorded."""

    params: Params
    work_dir: Path
    state: TrainState
    recorder: Recorder
    checkpoints: CheckpointStore
    identity: RunIdentity
    findings: list[FindingRow]
    ranks: Ranks = ALONE

    @property
    def task(self) -> Task:
        return self.state.task

    @property
    def env(self) -> Any:
        return self.task.env

    @property
    def policy(self) -> ActorCritic:
        return self.state.ppo.policy

    def save(self) -> Path:
        """Write telemetry, then the state that refers to it, in the first process; all of them have to ask."""
        # In this order: a log that is too long is cut at the next start, but a state without its log is lost.
        extent = self.recorder.flush()
        # All processes take part in collecting the state; the first writes it.
        counters = self.state.counters
        tensors = self.state.tensors()
        if not self.ranks.leads:
            return self.checkpoints.path(counters.iteration)
        manifest = Manifest(
            params=self.identity.params,
            params_sha256=self.identity.params_sha256,
            data_sha256=self.identity.data_sha256,
            machine=self.identity.machine,
            scalars=self.state.scalars(),
            iteration=counters.iteration,
            best_iteration=counters.best_iteration,
            telemetry_files=extent.files,
            telemetry_sha256=extent.sha256,
            specs=describe_specs(self.env.action_spec, self.env.observation_spec),
        )
        return self.checkpoints.write(tensors, manifest)


@contextmanager
def open_session(
    params: Params,
    work_dir: Path,
    prepared_dir: Path,
    fresh: bool = False,
    ranks: Ranks = ALONE,
    code: str = "",
    changed_files: Sequence[str] = (),
) -> Iterator[Session]:
    """Open the run in ``work_dir`` under a lock, at its newest good checkpoint or at its start.

    Of several processes that train together the first one holds the lock, reads and writes.

    Args:
        params: The whole of params.yaml.
        work_dir: Where checkpoints and telemetry of the run are.
        prepared_dir: The prepared data.
        fresh: Whether to throw away what is there.
        ranks: The processes of torchrun.
        code: The revision that trains, noted with the start.
        changed_files: Files of the code that differ from it.

    Raises:
        SimicError: Another process holds the lock, or what is there belongs to other params or data.
    """
    # What this training would be made from; a checkpoint is compared with it.
    device = machine.configure(runtime_for(params, ranks))
    group = hosts_together(params, device, ranks)
    identity = RunIdentity(
        RunIdentity.params_of(params),
        data_hash(prepared_dir),
        _describe(params, device, group, ranks),
    )
    store = CheckpointStore(work_dir / CHECKPOINTS, params.runtime.keep_last)
    with ExitStack() as files:
        # Go on in the checkpoint's groups of hosts, so that any number of cores goes on bit for bit.
        start = ranks.from_first(lambda: _choose_start(files, work_dir, store, identity, fresh))
        if start.checkpoint is not None:
            group = hosts_together(params, device, ranks, start.checkpoint.manifest.machine.group)
            identity = replace(identity, machine=_describe(params, device, group, ranks))

        # The state: untrained, or that of the checkpoint.
        state = assemble(params, prepared_dir, device, ranks, group)
        # Registered at once: it closes whatever fails below.
        files.callback(state.task.env.close)
        extent = NOTHING
        findings = list(start.findings)
        if start.checkpoint is not None:
            findings += state.load(start.checkpoint.tensors, start.checkpoint.manifest.scalars)
            # As it was chosen now, and not as it was saved: that one may be damaged since.
            state.counters.best_iteration, state.counters.best_score = start.best
            extent = resume.extent_of(start.checkpoint.manifest)

        # The log goes on behind what belongs to that state.
        recorder = Silent()
        if ranks.leads:
            iteration = state.counters.iteration
            recorder = files.enter_context(Recorder(work_dir, extent, iteration))
            lost = resume.lost_times(iteration, recorder.lost_times)
            findings += lost
            begun = StartRow(
                name=run_name(work_dir.name),
                command=_command(),
                unix_seconds=round(time.time(), 3),
                host=platform.node(),
                process=os.getpid(),
                code=code,
                changed_files=list(changed_files),
                start_iteration=iteration,
                iterations=params.train.iterations,
                telemetry_files_dropped=recorder.dropped,
                findings=[*start.findings, *lost],
            )
            starts.note(work_dir / starts.RUN_FILE, begun)
        # The checkpoint's tensors are not kept beside the state they were loaded into.
        del start
        yield Session(params, work_dir, state, recorder, store, identity, findings, ranks)


def _choose_start(
    files: ExitStack, work_dir: Path, store: CheckpointStore, identity: RunIdentity, fresh: bool
) -> resume.Start:
    """Choose where to resume; under the lock, which ``files`` releases."""
    files.enter_context(durable.locked(work_dir / LOCK_FILE, "trains"))
    # Under the lock, as another process may be about to write there.
    make_room(work_dir)
    if fresh:
        _clear(work_dir)
    return resume.choose(store, work_dir / FOLDER, identity)


def _describe(params: Params, device: torch.device, group: int, ranks: Ranks) -> Machine:
    return machine.describe(params.runtime, device, group, ranks.size)


def _clear(work_dir: Path) -> None:
    """Remove all but the lock that is held, and the recipe; checkpoints first: a run without any begins anew."""
    durable.remove_directory(work_dir / CHECKPOINTS)
    for path in work_dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK_FILE, run_layout.IDENTITY):
            path.unlink()


def _command() -> str:
    """Write how this process was started: ``simic run -S train.iterations=30``, ``python -m prefect.engine``."""
    # With -m or -c there is no script whose name would say what ran.
    program, *arguments = sys.orig_argv[1:] or ["python"]
    words = ["python", program] if program.startswith("-") else [Path(program).name]
    return shlex.join([*words, *arguments])
