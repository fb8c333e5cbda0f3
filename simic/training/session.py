"""A training run in its work directory: opened fresh or resumed, with everything that training mutates."""

import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simic import durable
from simic.agent.normalization import REWARD_CLIP, Normalizers, ObservationNormalizer, RewardNormalizer
from simic.agent.policy import ActorCritic, part_of
from simic.agent.ppo import PPO
from simic.data.batches import data_hash, load_split, read_meta
from simic.envs.growth_env import GrowthEnv
from simic.envs.rewards import MODES
from simic.errors import SimicError
from simic.growth.batch.shards import Layout
from simic.params import Params, Runtime
from simic.telemetry import starts
from simic.telemetry.naming import run_name
from simic.telemetry.recorder import FOLDER, NOTHING, Recorder, Silent
from simic.telemetry.rows import FindingRow, StartRow
from simic.training import checkpoint, machine, memory_estimate, resume, run_layout, worker_layout
from simic.training.checkpoint import (
    PARTIAL,
    STATE_FILE,
    CheckpointStore,
    Damaged,
    Manifest,
    PartialManifest,
    PartialStore,
    Scalar,
    cpu_copies,
    read_manifest,
)
from simic.training.growth_task import GrowthTask
from simic.training.gym_task import GymTask, opened
from simic.training.learned import describe_specs
from simic.training.machine import Machine
from simic.training.ranks import ALONE, Ranks
from simic.training.resume import Identity
from simic.training.run_layout import CHECKPOINTS, make_room
from simic.training.task import Task

LOCK_FILE = "lock"
BY_ENVIRONMENT = "reward.running"  # of the normalisers: one entry per environment, a part of them in each process


@dataclass
class Counters:
    """The part of the state that is not a tensor."""

    iteration: int = 0  # iterations done
    env_steps: int = 0  # valid environment steps
    rollbacks: int = 0
    group: int = 0  # hosts that run at once since the memory did not suffice for all; 0 = it always did
    best_score: float | None = None  # mean committed validation accuracy, points
    best_iteration: int | None = None  # iterations done when it was reached
    chain: str = ""  # sha256 over the previous link and the state after each iteration


class TrainState:
    """Policy, optimizer, normalisers and counters; tensors and scalars by path, and back. Of several processes each has
    the same state, those of all environments included.
    """

    def __init__(self, ppo: PPO, normalizers: Normalizers, task: Task, ranks: Ranks):
        self.ppo, self.normalizers, self.task, self.ranks, self.counters = ppo, normalizers, task, ranks, Counters()

    def tensors(self) -> dict[str, Tensor]:
        """Return CPU copies by name, ``ppo/…`` and ``normalizers/…``."""
        normalizers = self.normalizers.state_dict()
        if BY_ENVIRONMENT in normalizers:
            normalizers[BY_ENVIRONMENT] = self.ranks.whole(normalizers[BY_ENVIRONMENT])
        parts = {"ppo": self.ppo.state_dict(), "normalizers": normalizers, "task": self.task.state_dict()}
        return cpu_copies(parts)

    def scalars(self) -> dict[str, Scalar]:
        return asdict(self.counters)

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Scalar]) -> list[FindingRow]:
        """Restore a state; findings where that is not exact; SimicError naming what is missing or unknown."""
        own, given = self.tensors().keys() | self.scalars().keys(), tensors.keys() | scalars.keys()
        for name in sorted(own ^ given):
            raise SimicError(f"checkpoint: {name} is {'missing' if name in own else 'unknown here'}")
        self.ppo.load_state_dict(part_of(tensors, "ppo/"))
        normalizers = part_of(tensors, "normalizers/")
        if BY_ENVIRONMENT in normalizers:
            normalizers[BY_ENVIRONMENT] = self.ranks.part(normalizers[BY_ENVIRONMENT])
        self.normalizers.load_state_dict(normalizers)
        for field in fields(Counters):
            setattr(self.counters, field.name, scalars[field.name])
        strayed = self.task.load_state_dict(part_of(tensors, "task/"))
        return [strayed.model_copy(update={"iteration": self.counters.iteration})] if strayed else []

    def sha256(self) -> str:
        """Return the hash of all tensors, whatever came before."""
        return checkpoint.link({}, self.tensors())

    def link(self) -> str:
        """Add the present state to the hash chain; two runs are equal up to an iteration if their links are."""
        self.counters.chain = checkpoint.link(self.scalars(), self.tensors())
        return self.counters.chain


@dataclass(frozen=True)
class Session:
    """An open run; ``findings`` are those of opening it, not yet recorded."""

    params: Params
    work_dir: Path
    task: Task
    state: TrainState
    recorder: Recorder
    checkpoints: CheckpointStore
    identity: Identity
    findings: list[FindingRow]
    partials: PartialStore
    partial: PartialManifest | None = None  # where to go on inside an iteration
    ranks: Ranks = ALONE

    @property
    def env(self) -> Any:
        return self.task.env

    @property
    def policy(self) -> ActorCritic:
        return self.state.ppo.policy

    def save(self) -> Path:
        """Write telemetry, then the state that refers to it, in the first process; all of them have to ask."""
        extent = self.recorder.flush()
        counters, tensors = self.state.counters, self.state.tensors()
        if not self.ranks.leads:
            return self.checkpoints.path(counters.iteration)
        manifest = Manifest(
            **vars(self.identity), params_sha256=self.identity.params_sha256, scalars=self.state.scalars(),
            iteration=counters.iteration, best_iteration=counters.best_iteration,
            telemetry_files=extent.files, telemetry_sha256=extent.sha256,
            specs=describe_specs(self.env.action_spec, self.env.observation_spec),
        )  # fmt: skip
        path = self.checkpoints.write(tensors, manifest)
        self.partials.clear()
        return path

    def save_inside(self, step: int, tensors: Mapping[str, Tensor], columns: list[str]) -> None:
        """Save what the rollout that follows the newest checkpoint has come to after ``step`` steps."""
        done = self.state.counters.iteration
        belongs_to = read_manifest(self.checkpoints.path(done)).sha256[STATE_FILE]
        manifest = PartialManifest(
            iteration=done, step=step, checkpoint_sha256=belongs_to, columns=columns, findings=self.recorder.pending
        )
        self.partials.write(tensors, manifest)


@contextmanager
def open_session(
    params: Params, work_dir: Path, prepared_dir: Path, fresh: bool = False, ranks: Ranks = ALONE, code: str = ""
) -> Iterator[Session]:
    """Open the run in ``work_dir`` under a lock, at its newest good checkpoint; at its start with ``fresh`` or without.

    Of several processes that train together the first one holds the lock, reads and writes. ``code`` is the revision
    that trains, noted with the start. SimicError when another process holds the lock, or when what is there belongs to
    other params or data.
    """
    device, every = machine.configure(_possible(params, ranks)), params.runtime.checkpoint_steps
    shared = layout(params, device, ranks)
    hosts = len(ranks.env_ids(params.train.envs))
    if not params.prepare.is_gym:
        memory_estimate.refuse_training(params, prepared_dir, hosts, shared.processes, device)
    if every and ranks.size > 1:
        raise SimicError(
            f"runtime.checkpoint_steps = {every}: must be 0 with the {ranks.size} processes of torchrun, which save "
            "whole iterations"
        )
    identity = Identity(Identity.params_of(params), data_hash(prepared_dir), _describe(params, device, shared, ranks))
    stores = CheckpointStore(work_dir / CHECKPOINTS, params.runtime.keep_last), PartialStore(work_dir / PARTIAL)
    with ExitStack() as files:
        start, inside = ranks.from_first(lambda: _begin(files, work_dir, *stores, identity, fresh, ranks))
        if start.checkpoint is not None:  # in its groups, so that any number of processes goes on bit for bit
            shared = layout(params, device, ranks, start.checkpoint.manifest.machine.group)
            identity = replace(identity, machine=_describe(params, device, shared, ranks))
        task, state = assemble(params, prepared_dir, device, ranks, shared)
        files.callback(task.env.close)
        extent, findings = NOTHING, list(start.findings)
        if start.checkpoint is not None:
            findings += state.load(start.checkpoint.tensors, start.checkpoint.manifest.scalars)
            state.counters.best_iteration, state.counters.best_score = start.best
            extent = resume.extent(start.checkpoint.manifest)
        recorder = Silent()
        if ranks.leads:
            done = state.counters.iteration
            recorder = files.enter_context(Recorder(work_dir, extent, done))
            lost = resume.lost_times(done, recorder.lost_times)
            # What no checkpoint is behind is noted with the start; what is no mere remark is a finding too.
            lineage = [each for each in run_layout.read_lineage(work_dir) if each.iteration >= done]
            findings += [*lost, *(each for each in lineage if each.severity != "info")]
            _note_start(work_dir, done, recorder.dropped, [*start.findings, *lost, *lineage], code)
        del start  # the checkpoint's tensors are not kept beside the state they were loaded into
        yield Session(params, work_dir, task, state, recorder, stores[0], identity, findings, stores[1], inside, ranks)


def _begin(
    files: ExitStack, work_dir: Path, store: CheckpointStore, partials: PartialStore, identity: Identity, fresh: bool,
    ranks: Ranks,
) -> tuple[resume.Start, PartialManifest | None]:  # fmt: skip
    """Choose where to resume, and where in the iteration that follows; under the lock, which ``files`` releases."""
    files.enter_context(durable.locked(work_dir / LOCK_FILE, "trains"))
    make_room(work_dir)
    if fresh:
        _clear(work_dir)
    start = resume.choose(store, work_dir / FOLDER, identity)
    inside, unusable = partials.choose(start.checkpoint)
    if inside is not None and ranks.size > 1:
        why = Damaged(f"{partials.path(inside.step)}: of one process, and now there are {ranks.size} of torchrun")
        inside, unusable = None, [*unusable, partials.report(inside.step, inside.iteration, why)]
    return replace(start, findings=[*start.findings, *unusable]), inside


def layout(params: Params, device: torch.device, ranks: Ranks = ALONE, group: int | None = None) -> Layout:
    """Return how the hosts of this process are shared out; those of one of torchrun's are not."""
    if ranks.size > 1 or params.prepare.is_gym:
        hosts = len(ranks.env_ids(params.train.envs))
        return Layout(hosts, hosts, 1)
    return worker_layout.layout(params.runtime, params.train.envs, device, group)


def _possible(params: Params, ranks: Ranks) -> Runtime:
    """Return where training can run: Gymnasium's own environments are on the CPU; SimicError where they cannot."""
    if not params.prepare.is_gym:
        return params.runtime
    if ranks.size > 1:
        raise SimicError("prepare.task = 'gym': trains in one process; start simic train without torchrun")
    if params.prepare.gym.vector == "tensors":
        return params.runtime
    if params.runtime.device == "cuda":
        raise SimicError("runtime.device = 'cuda': Gymnasium's environments are on the CPU; use cpu or auto")
    return params.runtime.model_copy(update={"device": "cpu"})


def _describe(params: Params, device: torch.device, shared: Layout, ranks: Ranks) -> Machine:
    return machine.describe(params.runtime, device, shared.group, ranks.size, shared.processes)


def assemble(
    params: Params, prepared_dir: Path, device: torch.device, ranks: Ranks = ALONE, shared: Layout | None = None
) -> tuple[Task, TrainState]:
    """Return the task of the params and its learner as they are before the first iteration."""
    train, settings, is_gym = params.train, params.train.ppo, params.prepare.is_gym
    own = ranks.env_ids(train.envs)
    if is_gym:
        env = opened(params, prepared_dir, own.to(device))
    else:
        env = _growth_env(params, prepared_dir, device, own, shared or layout(params, device, ranks))
    policy = ActorCritic(env.action_spec, env.observation_spec, train.policy, params.rng_seed).to(device)
    # Without a clip where shaping is paid: it would no longer telescope. Outliers are the audit's to find.
    clip = None if not is_gym and "shaping" in MODES[train.reward.mode] else REWARD_CLIP
    normalizers = Normalizers(
        ObservationNormalizer(env.observation_spec, device) if settings.normalize_observations else None,
        RewardNormalizer(env.num_envs, settings.gamma, device, clip) if settings.normalize_rewards else None,
    )
    updates, everyone = train.horizon or train.iterations, torch.arange(train.envs)
    ppo = PPO(policy, settings, params.rng_seed, total_updates=updates, reduce=ranks.reduce, all_env_ids=everyone)
    task = GrowthTask(env) if isinstance(env, GrowthEnv) else GymTask(params, policy, env)
    return task, TrainState(ppo, normalizers, task, ranks)


def _growth_env(params: Params, prepared_dir: Path, device: torch.device, own: Tensor, shared: Layout) -> GrowthEnv:
    """Return the environments ``own`` of this process."""
    training, validation = load_split(prepared_dir, "train", device), load_split(prepared_dir, "val", device)
    make = worker_layout.population(params.runtime, shared)
    meta = read_meta(prepared_dir)
    of_training, (names, kinds) = len(meta.of_group("train")), meta.kinds()
    kinds = kinds if len(names) > 1 else []  # of one kind there is nothing to tell
    how = params.runtime.backend, make, of_training, kinds
    return GrowthEnv(params.train, params.rng_seed, training, validation, own, device, *how)


def _clear(work_dir: Path) -> None:
    """Remove all but the lock that is held, and the recipe; checkpoints first: a run without any begins anew."""
    durable.remove_directory(work_dir / CHECKPOINTS)
    for path in work_dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK_FILE, run_layout.RECIPE):
            path.unlink()


def _note_start(work_dir: Path, iteration: int, dropped: int, findings: list[FindingRow], code: str) -> None:
    """Add an entry for this start: what differs between equal runs, and so is in no checkpoint."""
    start = StartRow(
        name=run_name(work_dir.name), command=_command(), unix_seconds=round(time.time(), 3), host=platform.node(),
        process=os.getpid(), code=code, start_iteration=iteration, telemetry_files_dropped=dropped, findings=findings,
    )  # fmt: skip
    starts.note(work_dir / starts.RUN_FILE, start)


def _command() -> str:
    """Return how this process was started: ``simic run -S train.iterations=30``, ``python -m prefect.engine``."""
    program, *arguments = sys.orig_argv[1:] or ["python"]
    words = ["python", program] if program.startswith("-") else [Path(program).name]
    return shlex.join([*words, *arguments])
