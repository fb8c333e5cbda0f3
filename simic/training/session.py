"""A training run in its work directory: opened fresh or where it stopped, with everything the trainer needs."""

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock
import torch

from simic import durable
from simic.agent.normalization import Normalizers, ObservationNormalizer, RewardNormalizer
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO
from simic.data.batches import data_hash, load_split
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.params import Params
from simic.telemetry import recorder
from simic.telemetry.recorder import Recorder
from simic.telemetry.rows import FindingRow
from simic.training import machine, resume
from simic.training.checkpoint import CheckpointStore, Manifest
from simic.training.learned import describe_specs
from simic.training.resume import Identity
from simic.training.state import TrainState

CHECKPOINTS = "checkpoints"
TELEMETRY_FILE = "telemetry.jsonl"
TIMING_FILE = "timing.jsonl"
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Session:
    """An open run. ``findings`` are those of opening it, not yet recorded."""

    params: Params
    work_dir: Path
    env: GrowthEnv
    state: TrainState
    recorder: Recorder
    timing: Recorder
    checkpoints: CheckpointStore
    identity: Identity
    findings: list[FindingRow]

    @property
    def policy(self) -> ActorCritic:
        return self.state.ppo.policy

    def save(self) -> Path:
        """Telemetry first, then the state that refers to it; the new checkpoint's directory."""
        offset = self.recorder.flush_and_sync()
        self.timing.flush_and_sync()
        counters = self.state.counters
        manifest = Manifest(
            iteration=counters.iteration,
            best_iteration=counters.best_iteration,
            telemetry_offset=offset,
            params=self.identity.params,
            params_sha256=self.identity.params_sha256,
            data_sha256=self.identity.data_sha256,
            machine=self.identity.machine,
            specs=describe_specs(self.env.action_spec, self.env.observation_spec),
            scalars=self.state.scalars(),
        )
        return self.checkpoints.write(self.state.tensors(), manifest)


@contextmanager
def open_session(params: Params, work_dir: Path, prepared_dir: Path, fresh: bool = False) -> Iterator[Session]:
    """The run in ``work_dir`` under a lock, at its newest good checkpoint; at its start with ``fresh`` or without one.

    SimicError when another process holds it, or when what is there belongs to other params or data.
    """
    device = machine.configure(params.runtime)
    with locked(work_dir), ExitStack() as files:
        if fresh:
            _clear(work_dir)
        identity = Identity.of(params, data_hash(prepared_dir), machine.describe(params.runtime, device))
        store = CheckpointStore(work_dir / CHECKPOINTS, params.runtime.keep_last)
        log = work_dir / TELEMETRY_FILE
        start = resume.choose(store, log, identity)
        env, state = compose(params, prepared_dir, device)
        offset = 0
        if start.checkpoint is not None:
            state.load(start.checkpoint.tensors, start.checkpoint.manifest.scalars)
            offset = start.checkpoint.manifest.telemetry_offset
        recorder.keep_before(work_dir / TIMING_FILE, state.counters.iteration)
        rows = files.enter_context(Recorder(log))
        dropped = rows.truncate(offset)
        _note_start(work_dir / RUN_FILE, state.counters.iteration, dropped, start.findings)
        timing = files.enter_context(Recorder(work_dir / TIMING_FILE))
        yield Session(params, work_dir, env, state, rows, timing, store, identity, start.findings)


def compose(params: Params, prepared_dir: Path, device: torch.device) -> tuple[GrowthEnv, TrainState]:
    """Environment and learner as they are before the first iteration."""
    train, settings = params.train, params.train.ppo
    training, validation = load_split(prepared_dir, "train", device), load_split(prepared_dir, "val", device)
    env = GrowthEnv(train, params.rng_seed, training, validation, device=device, backend=params.runtime.backend)
    policy = ActorCritic(env.action_spec, env.observation_spec, train.policy, params.rng_seed).to(device)
    normalizers = Normalizers(
        ObservationNormalizer(env.observation_spec, device) if settings.normalize_observations else None,
        RewardNormalizer(env.num_envs, settings.gamma, device) if settings.normalize_rewards else None,
    )
    return env, TrainState(PPO(policy, settings, params.rng_seed, total_updates=train.iterations), normalizers)


@contextmanager
def locked(work_dir: Path) -> Iterator[None]:
    """Held by one process at a time; the operating system frees the lock of one that died."""
    lock_file, holder = work_dir / "lock", work_dir / "holder"
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(lock_file, timeout=0):
            holder.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
            yield
    except filelock.Timeout:
        name = holder.read_text(encoding="utf-8") if holder.exists() else "another process"
        raise SimicError(f"{work_dir}: {name} trains here; wait for it, or stop it first") from None


def _clear(work_dir: Path) -> None:
    """Everything but the lock that is held."""
    for path in work_dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("lock", "holder"):
            path.unlink()


def _note_start(path: Path, iteration: int, dropped: int, findings: list[FindingRow]) -> None:
    """One entry per life of the run: what differs between equal runs, and is in no checkpoint."""
    lives = json.loads(path.read_bytes()) if path.exists() else []
    lives.append(
        {
            "unix_seconds": round(time.time(), 3),
            "host": platform.node(),
            "process": os.getpid(),
            "start_iteration": iteration,
            "telemetry_rows_dropped": dropped,
            "findings": [finding.message for finding in findings],
        }
    )
    durable.replace_file(path, (json.dumps(lives, indent=2) + "\n").encode())
