"""Play an iteration of training and some episodes of the evaluation again, each in a fresh process, and compare bytes.

Equal or not: there are no bounds. What cannot be played again bit for bit here is not possible, with the reason.
"""

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from simic import registry, rng
from simic.audit import replay_evaluation
from simic.audit.findings import ReplayResult
from simic.audit.record import RunRecord, Table
from simic.audit.replay_evaluation import ReplayedHosts, Values
from simic.errors import SimicError
from simic.growth.batch.shards import begin_process
from simic.params import Params
from simic.telemetry.columns import Array, published
from simic.telemetry.publish import KEPT_FILE
from simic.telemetry.rows import UpdateRow
from simic.training import checkpoint, kept_iteration, machine, worker_layout
from simic.training.checkpoint import Manifest
from simic.training.learned import Learned
from simic.training.replay import replay

Part = Literal["training", "evaluation"]
MOST_NAMED = 5  # differences that a report names
# What a damaged file or an environment may raise; a failed replay says so and ends no audit.
FAILURES = (SimicError, BrokenProcessPool, MemoryError, RuntimeError, ValueError, LookupError, TypeError, OSError)


class NotPossible(SimicError):
    """Something that an exact replay needs is missing."""


@dataclass(frozen=True)
class RunFiles:
    """Name the folders of a run that a replay reads."""

    prepared: Path
    telemetry: Path
    checkpoints: Path


@dataclass(frozen=True)
class Job:
    """Hold all that a fresh process needs for its replay."""

    params: Params
    files: RunFiles
    manifest: Manifest  # of the latest checkpoint, for the machine that trained
    iteration: int
    sample: int  # a hash that chooses episodes
    population: ReplayedHosts | None = None  # the hosts to play again, where networks grow
    tasks: tuple[int, ...] = field(default=())  # of the evaluated hosts, likewise
    steps: int = 0  # of their episodes, likewise


def replay_run(run: RunRecord, files: RunFiles) -> tuple[ReplayResult, ...]:
    """Replay an iteration of training and a sample of the evaluation side by side, each in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, _begin, (registry.extensions(),)) as pool:
        # Start both before waiting for the first.
        waiting = [_start(part, run, files, pool) for part in ("training", "evaluation")]
        return tuple(finish() for finish in waiting)


def _begin(extensions: tuple[Path, ...]) -> None:
    begin_process()
    for file in extensions:
        registry.load_extension(file)


def _start(part: Part, run: RunRecord, files: RunFiles, pool: ProcessPoolExecutor) -> Callable[[], ReplayResult]:
    """Start the replay of one part; return what waits for it and compares it with the record."""
    try:
        job = _job(run, files)
        if part == "training":
            work, recorded = replay_iteration, partial(_recorded_iteration, run, job)
        else:
            job = _with_sample(run, job)
            work, recorded = replay_sample, partial(_recorded_sample, run, job)
    except NotPossible as obstacle:
        answer = ReplayResult(part=part, outcome="not possible", detail=str(obstacle))
        return lambda: answer
    future = pool.submit(work, job)

    def finish() -> ReplayResult:
        try:
            replayed = future.result()
            names = differences(recorded(), replayed)
            # An environment may draw numbers of its own; then no two replays agree, and nothing can be said.
            if names and run.params.prepare.is_gym and differences(replayed, pool.submit(work, job).result()):
                raise NotPossible("the environment does not repeat itself from its seeds")
        except FAILURES as error:
            reason = str(error) if isinstance(error, SimicError) else f"{type(error).__name__}: {error}"
            return ReplayResult(part=part, outcome="not possible", detail=reason)
        return _judged(part, job, replayed, names)

    return finish


def _judged(part: Part, job: Job, replayed: Values, names: list[str]) -> ReplayResult:
    trained_in = job.manifest.machine.processes
    subject = f"iteration {job.iteration + 1} in {_processes(job)} process(es), trained in {trained_in}"
    if part == "evaluation":
        subject = f"{max(len(values) for values in replayed.values())} episodes of each policy in one process"
    if names:
        detail = f"{subject}: {len(names)} of {len(replayed)} values differ: {', '.join(names[:MOST_NAMED])}"
        return ReplayResult(part=part, outcome="differs", detail=detail, differences=tuple(names))
    size = sum(values.nbytes for values in replayed.values())
    return ReplayResult(part=part, outcome="equal", detail=f"{subject}: {size:,} bytes of {len(replayed)} values")


def differences(first: Mapping[str, Array], second: Mapping[str, Array]) -> list[str]:
    """Return the names whose values are not byte for byte the same, in order."""
    names = sorted(first.keys() | second.keys())
    return [name for name in names if name not in first or name not in second or not _same(first[name], second[name])]


def _same(first: Array, second: Array) -> bool:
    if first.dtype.kind != second.dtype.kind or first.shape != second.shape:
        return False
    if first.dtype.kind == "U":
        return bool((first == second).all())
    return published(first).tobytes() == published(second).tobytes()


def _job(run: RunRecord, files: RunFiles) -> Job:
    """Return what both replays need; NotPossible where one could differ for an honest reason, or has no input."""
    checkpoints = run.checkpoints or {}
    latest = checkpoints.get("latest")
    if latest is None or run.params.evaluate.checkpoint not in checkpoints or not files.prepared.exists():
        raise NotPossible("prepared data or checkpoints are missing or damaged")
    assert run.provenance is not None  # read with the checkpoints
    if changed := run.provenance.code_changed_since:
        raise NotPossible(f"the code is not that of the run: {', '.join(changed)}")
    iteration = kept_iteration.published(run.params)[-1]
    sample = int(rng.bits(rng.key(run.params.rng_seed, rng.Purpose.KEPT_ITERATION, iteration), (1,)))
    moved = [finding for finding in run.provenance.origin.findings if finding.check == "inexact_resume"]
    if any(finding.iteration > iteration for finding in moved):
        raise NotPossible("training moved to another machine after the iteration whose state was kept")
    return Job(run.params, files, latest.manifest, iteration, sample)


def _as_trained(job: Job, processes: int) -> Params:
    """Return the params with the settings of the machine that trained, and another number of processes."""
    trained_on = job.manifest.machine
    settings = {
        "threads": trained_on.threads,
        "tf32": trained_on.tf32,
        "backend": trained_on.backend,
        "processes": processes,
        "device": "cpu" if torch.device(trained_on.device).type == "cpu" else "auto",
    }
    return job.params.model_copy(update={"runtime": job.params.runtime.model_copy(update=settings)})


# --- training --------------------------------------------------------------------------------------------------------


def _processes(job: Job) -> int:
    """Return how many processes replay an iteration: another number than trained, where there are groups to share."""
    trained_on = job.manifest.machine
    groups = -(-job.params.train.envs // trained_on.group)
    return 1 if trained_on.processes > 1 else min(2, groups)


def replay_iteration(job: Job) -> Values:
    """Play and learn the kept iteration from its state; return hashes of the state, steps, episodes and update."""
    params = _as_trained(job, _processes(job))
    task = params.prepare.gym
    if params.prepare.is_gym and task.vector == "processes":
        prepare = params.prepare.model_copy(update={"gym": task.model_copy(update={"vector": "one"})})
        params = params.model_copy(update={"prepare": prepare})
    file = job.files.telemetry / KEPT_FILE.format(job.iteration)
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise NotPossible(f"{file}: the kept state cannot be read: {error}") from None
    replayed = replay(params, job.files.prepared, job.iteration, tensors, job.manifest)
    steps = Table.of_steps(job.iteration, replayed.columns.steps)
    values: Values = {f"steps.{name}": column for name, column in steps.columns.items()}
    values |= {f"episodes.{name}": published(column) for name, column in replayed.columns.episodes.items()}
    values |= {
        f"update.{name.replace('/', '.')}": np.array([value], dtype=float) for name, value in replayed.metrics.items()
    }
    hashes = {"state before": replayed.state_begun, "state after": replayed.state_ended}
    return values | {name: np.array([digest]) for name, digest in hashes.items()}


def _recorded_iteration(run: RunRecord, job: Job) -> Values:
    """Return what telemetry has of the iteration."""
    update, steps, episodes = (
        table.where(table.column("iteration") == job.iteration) for table in (run.updates, run.steps, run.episodes)
    )
    values: Values = {f"steps.{name}": column for name, column in steps.columns.items()}
    values |= {f"episodes.{name}": column[0] for name, column in episodes.columns.items() if column.ndim > 1}
    about = UpdateRow.model_fields  # beside the metrics
    values |= {f"update.{name}": column.astype(float) for name, column in update.columns.items() if name not in about}
    hashes = {"state before": "state_begun", "state after": "state_ended"}
    return values | {name: update.column(column).astype(str) for name, column in hashes.items()}


# --- evaluation ------------------------------------------------------------------------------------------------------


def _with_sample(run: RunRecord, job: Job) -> Job:
    """Choose what of the evaluation is played again; NotPossible where that cannot be done alike."""
    if run.gym is not None:
        return job
    if run.evaluation is None:
        raise NotPossible("the run was not evaluated")
    params, trained_on = job.params, job.manifest.machine
    device = torch.device("cpu" if torch.device(trained_on.device).type == "cpu" else "cuda")
    if worker_layout.layout(params.runtime, params.train.envs, device).group != trained_on.group:
        raise NotPossible("another number of cores shared the hosts")
    hosts = len(run.evaluation.rows)
    rows = hosts * replay_evaluation.policies_at_once(params, hosts)
    group = worker_layout.layout(params.runtime, rows, device).group
    try:
        population = replay_evaluation.choose_population(params, hosts, group, job.sample)
    except SimicError as obstacle:
        raise NotPossible(str(obstacle)) from None
    steps = run.evaluation.episode_steps
    return replace(job, population=population, tasks=run.evaluation.rows, steps=steps)


def replay_sample(job: Job) -> Values:
    """Play the sample of the evaluation again; return scores and actions."""
    params, trained_on = _as_trained(job, processes=1), job.manifest.machine
    device = machine.configure(params.runtime)
    present = machine.describe(params.runtime, device, trained_on.group)
    if other := trained_on.differences(present):
        listed = ", ".join(f"{name} {text}" for name, text in other.items())
        raise NotPossible(f"trained on another machine: {listed}")
    kept = checkpoint.read_published(job.files.checkpoints, params.evaluate.checkpoint)
    learned = Learned.of(kept, device)
    if job.population is None:
        return replay_evaluation.replay_episodes(params, learned, replay_evaluation.chosen_episodes(params, job.sample))
    return replay_evaluation.replay_hosts(
        params, job.files.prepared, learned, job.population, job.tasks, job.steps, device
    )


def _recorded_sample(run: RunRecord, job: Job) -> Values:
    """Return what evaluation.json has of the sample."""
    if run.gym is not None:
        episodes = replay_evaluation.chosen_episodes(job.params, job.sample)
        return replay_evaluation.recorded_episodes(run.gym, job.params.evaluate.policies, episodes)
    assert run.evaluation is not None and job.population is not None
    seeds = {name: policy.per_seed for name, policy in run.evaluation.policies.items()}
    return replay_evaluation.recorded_hosts(job.population, seeds, run.evaluation.actions)
