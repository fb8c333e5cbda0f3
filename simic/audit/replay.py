"""Play an iteration of training and some episodes of the evaluation again, each in a fresh process, and compare bytes.

Equal or not: there are no bounds. What cannot be played again bit for bit here is not possible, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from simic import rng
from simic.audit import replay_evaluation
from simic.audit.findings import Part, ReplayResult
from simic.audit.record import RunRecord, Table
from simic.audit.replay_evaluation import RunFiles, Values
from simic.errors import DecisionFault, SimicError
from simic.params import Params
from simic.telemetry.columns import Array, published
from simic.telemetry.publish import KEPT_FILE
from simic.telemetry.rows import UpdateRow
from simic.training import kept_iteration, worker_layout
from simic.training.checkpoint import Checkpoint, Manifest
from simic.training.machine import Machine
from simic.training.replay import replay

MOST_NAMED = 5  # differences that a report names
# What this machine or a missing file prevents. Any other error did not occur in the run, so it is a difference.
OBSTACLES = (SimicError, BrokenProcessPool, MemoryError, torch.OutOfMemoryError, OSError)


@dataclass(frozen=True)
class Attempt:
    """Hold what a fresh process plays again, and what the record has of it."""

    play: Callable[[], Values]  # is pickled
    recorded: Values
    subject: str  # in words


@contextmanager
def replaying(run: RunRecord, files: RunFiles) -> Iterator[Callable[[], tuple[ReplayResult, ...]]]:
    """Replay an iteration of training and a sample of the evaluation side by side, each in a fresh process, while this
    one goes on; what is yielded waits for both, and gives the same results whenever it is asked.
    """
    # Fresh processes: nothing that this one has loaded, seeded or configured may help a replay to agree. Each part has
    # its own, so that one that is killed leaves the other its result.
    runtime = run.params.runtime
    with worker_layout.pool(1, runtime) as trainer, worker_layout.pool(1, runtime) as evaluator:
        # Both have begun before anybody waits for the first.
        begun = (
            _begin("training", _training, run, files, trainer),
            _begin("evaluation", _evaluation, run, files, evaluator),
        )

        @cache
        def results() -> tuple[ReplayResult, ...]:
            compared = [
                part if isinstance(part, ReplayResult) else _compare(*part) for part in begun
            ]
            return tuple(_excused(result, run, files) for result in compared)

        yield results


def _begin(
    part: Part,
    prepare: Callable[[RunRecord, RunFiles], Attempt],
    run: RunRecord,
    files: RunFiles,
    workers: Executor,
) -> tuple[Part, Attempt, Future[Values]] | ReplayResult:
    """Begin to replay a part, or say why that is not possible."""
    try:
        attempt = prepare(run, files)
    except SimicError as obstacle:
        return ReplayResult(part=part, outcome="not possible", detail=str(obstacle))
    return part, attempt, workers.submit(attempt.play)


def _excused(result: ReplayResult, run: RunRecord, files: RunFiles) -> ReplayResult:
    """Excuse a difference where a Gymnasium environment draws numbers of its own, so that no replay can agree."""
    if result.outcome != "differs" or not run.params.prepare.is_gym:
        return result
    with worker_layout.pool(1, run.params.runtime) as workers:
        repeats = workers.submit(replay_evaluation.environment_repeats, run.params, files)
        # An environment that fails here excuses nothing.
        if repeats.exception() is not None or repeats.result():
            return result
    reason = "the environment does not repeat itself: equal seeds and actions lead elsewhere"
    return ReplayResult(part=result.part, outcome="not possible", detail=reason)


def _compare(part: Part, attempt: Attempt, future: Future[Values]) -> ReplayResult:
    """Wait for a replay and compare it with the record."""
    error = future.exception()
    # No answer: this machine prevents one, or the replay goes where the run did not, as an illegal decision does.
    if isinstance(error, OBSTACLES) and not isinstance(error, DecisionFault):
        reason = str(error) if isinstance(error, SimicError) else f"{type(error).__name__}: {error}"
        return ReplayResult(part=part, outcome="not possible", detail=reason)
    if error is not None:
        name = type(error).__name__
        detail = f"{attempt.subject}: the replay failed, which the run did not: {name}: {error}"
        return ReplayResult(part=part, outcome="differs", detail=detail, differences=(name,))
    # An answer: every byte counts.
    replayed = future.result()
    if names := differences(attempt.recorded, replayed):
        count = len(attempt.recorded.keys() | replayed.keys())
        detail = f"{attempt.subject}: {len(names)} of {count} values differ: {', '.join(names[:MOST_NAMED])}"
        return ReplayResult(part=part, outcome="differs", detail=detail, differences=tuple(names))
    size = sum(column.nbytes for column in replayed.values())
    detail = f"{attempt.subject}: {size:,} bytes of {len(replayed)} values"
    return ReplayResult(part=part, outcome="equal", detail=detail)


def differences(first: Mapping[str, Array], second: Mapping[str, Array]) -> list[str]:
    """List the names whose values are not byte for byte the same, in order."""
    names = sorted(first.keys() | second.keys())
    return [
        name
        for name in names
        if name not in first or name not in second or not _equal(first[name], second[name])
    ]


def _equal(first: Array, second: Array) -> bool:
    # Kinds, not widths: a table stores int64 and float64 where a replay computes in narrower types.
    if first.dtype.kind != second.dtype.kind or first.shape != second.shape:
        return False
    # Arrays of text are as wide as their longest entry, so that equal texts may differ in bytes.
    if first.dtype.kind == "U":
        return bool((first == second).all())
    # Bytes and not ==, by which NaN differs from itself and 0.0 equals -0.0.
    return published(first).tobytes() == published(second).tobytes()


def _checkpoint(run: RunRecord, files: RunFiles, name: str) -> Checkpoint:
    """Choose a checkpoint to replay from; SimicError without it, without the data, or where the code has changed."""
    checkpoint = (run.checkpoints or {}).get(name)
    if checkpoint is None or not files.prepared.exists():
        raise SimicError("prepared data or checkpoints are missing or damaged")
    # Other code may rightly give other numbers: a difference would accuse the machine without reason.
    assert run.provenance is not None  # collected with the checkpoints
    if changed := run.provenance.code_changed_since:
        raise SimicError(f"the code is not that of the run: {', '.join(changed)}")
    return checkpoint


def _as_recorded(params: Params, machine: Machine, cores: int) -> Params:
    """Take over the settings of the machine of the run, except the number of cores, and an environment's processes."""
    # Threads, tf32 and backend change the last bits; cores do not, so that another number of them is a stronger proof.
    settings = {
        "threads": machine.threads,
        "tf32": machine.tf32,
        "backend": machine.backend,
        "cores": cores,
        "device": "cpu" if machine.device == "cpu" else "auto",
    }
    changes: dict[str, object] = {"runtime": params.runtime.model_copy(update=settings)}
    # Environments run in one process too: another number than in the run, and equal bytes all the same.
    if params.prepare.is_gym and params.prepare.gym.vector == "processes":
        task = params.prepare.gym.model_copy(update={"vector": "one"})
        changes["prepare"] = params.prepare.model_copy(update={"gym": task})
    return params.model_copy(update=changes)


# --- training --------------------------------------------------------------------------------------------------------


def _training(run: RunRecord, files: RunFiles) -> Attempt:
    """Choose the newest iteration whose state was kept; SimicError where the rest of training was elsewhere."""
    # The latest manifest names the machine of the end of training, so that the newest kept state is the likeliest to
    # fit.
    manifest = _checkpoint(run, files, "latest").manifest
    iteration = kept_iteration.published(run.params)[-1]
    if any(finding.iteration > iteration for finding in run.found_at_starts("inexact_resume")):
        raise SimicError(
            "training moved to another machine after the iteration whose state was kept"
        )
    # Another number of cores than trained; Gymnasium's environments have one.
    trained_on = manifest.machine
    cores = 1 if trained_on.cores > 1 or run.params.prepare.is_gym else 2
    params = _as_recorded(run.params, trained_on, cores)
    return Attempt(
        play=partial(replay_iteration, params, files, iteration, manifest),
        recorded=_recorded_iteration(run, iteration),
        subject=f"iteration {iteration + 1} on {cores} core(s), trained on {trained_on.cores}",
    )


def replay_iteration(params: Params, files: RunFiles, iteration: int, manifest: Manifest) -> Values:
    """Play and learn an iteration again from the state that was kept before it.

    Args:
        params: of the run, with the settings of the machine that trained.
        files: of the run.
        iteration: counted from 0.
        manifest: of the latest checkpoint.

    Returns:
        Steps, episodes and the update, and the hashes of the state before and after.
    """
    # Read in the fresh process: tensors need not be pickled, and a damaged file is an obstacle of this part alone.
    file = files.telemetry / KEPT_FILE.format(iteration)
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise SimicError(f"{file}: the kept state cannot be read: {error}") from None
    # What it leaves behind, under the names of the record.
    replayed = replay(params, files.prepared, iteration, tensors, manifest)
    # As the recorder would write them, since the record is what they are compared with.
    steps = Table.of_steps(iteration, replayed.columns.steps)
    values: Values = {f"steps.{name}": column for name, column in steps.columns.items()}
    values |= {
        f"episodes.{name}": published(column) for name, column in replayed.columns.episodes.items()
    }
    values |= {
        f"update.{name.replace('/', '.')}": np.array([value], dtype=float)
        for name, value in replayed.metrics.items()
    }
    hashes = {"state before": replayed.state_begun, "state after": replayed.state_ended}
    return values | {name: np.array([digest]) for name, digest in hashes.items()}


def _recorded_iteration(run: RunRecord, iteration: int) -> Values:
    """Collect what telemetry has of the iteration; rows that are missing make a difference."""
    # Missing rows leave empty columns: their shape differs from the replay's, which is a difference and no error.
    update, steps, episodes = (
        table.where(table.column("iteration") == iteration)
        for table in (run.updates, run.steps, run.episodes)
    )
    values: Values = {f"steps.{name}": column for name, column in steps.columns.items()}
    values |= {
        f"episodes.{name}": column.reshape(-1)
        for name, column in episodes.columns.items()
        if column.ndim > 1
    }
    # What is said about an update stands in fields of the row; all other columns are its metrics.
    about = UpdateRow.model_fields  # beside the metrics
    values |= {
        f"update.{name}": column.astype(float)
        for name, column in update.columns.items()
        if name not in about
    }
    hashes = {"state before": "state_begun", "state after": "state_ended"}
    return values | {name: update.column(column).astype(str) for name, column in hashes.items()}


# --- evaluation ------------------------------------------------------------------------------------------------------


def _evaluation(run: RunRecord, files: RunFiles) -> Attempt:
    """Choose what of the evaluation is played again; SimicError where that cannot be done alike."""
    # Refusals come before any choice: what is missing here makes every sample impossible.
    evaluation = run.evaluation or run.gym
    if evaluation is None:
        raise SimicError("the run was not evaluated")
    _checkpoint(run, files, run.params.evaluate.checkpoint)
    # A hash chooses.
    iteration = kept_iteration.published(run.params)[-1]
    sample = int(
        rng.bits(rng.key(run.params.rng_seed, rng.Purpose.KEPT_ITERATION, iteration), (1,))
    )
    # The sample is what was computed together, and its last bits depend on that.
    params = _as_recorded(run.params, evaluation.machine, cores=1)
    if run.gym is not None:
        seeds = replay_evaluation.chosen_episodes(params, sample)
        return Attempt(
            play=partial(
                replay_evaluation.replay_episodes, params, files, evaluation.machine, seeds
            ),
            recorded=replay_evaluation.recorded_episodes(run.gym, params.evaluate.policies, seeds),
            subject=f"{len(seeds)} episodes of each policy in one process",
        )
    assert run.evaluation is not None  # the other kind of run
    population = replay_evaluation.choose_population(params, run.evaluation, sample)
    if population is None:
        raise SimicError(
            "the blind policy saw the mean of hosts that were shared out to several groups"
        )
    return Attempt(
        play=partial(replay_evaluation.replay_hosts, params, files, evaluation.machine, population),
        recorded=replay_evaluation.recorded_hosts(run.evaluation, population),
        subject=f"{len(population.rows)} episodes in one process",
    )
