"""The training loop of the controller."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from simic.agent.metrics import UpdateMetrics, numbers
from simic.agent.rollout import Rollout, StepRecord
from simic.errors import DecisionFault, SimicError
from simic.telemetry.columns import DECIDED, Columns
from simic.telemetry.recorder import Iteration
from simic.telemetry.rows import FindingRow, Severity, TimingRow, UpdateRow
from simic.training import kept_iteration
from simic.training.interrupts import Interrupted, in_training
from simic.training.iteration import Experience, play, scale_and_estimate
from simic.training.observers import EndStatus, Observer, RunInfo
from simic.training.ranks import merged
from simic.training.session import Session
from simic.training.state import Counters
from simic.training.task import RolloutColumns

# Optimiser steps of a run with a non-finite loss or gradient; ours: more is no accident.
SKIPPED_STEPS_BUDGET = 10

# Findings that end a run whatever train.stop_on says: a budget is spent, or the policy cannot decide.
FATAL = ("non_finite_updates", "rollback_budget", "decision_fault")

PHASES = ("collect", "update", "validate", "record")  # that are timed

T = TypeVar("T")


class StoppedByFinding(SimicError):
    """A finding as grave as train.stop_on, or a fatal one, ended the run; the last checkpoint is from before it."""


class _StopRequested(Exception):
    """A stop was asked for in the middle of an iteration."""


class _SharedFault(DecisionFault):
    """A fault that all processes know of."""


@dataclass
class LoopState:
    """Where the loop is, beside the state that it trains."""

    saved: bool  # the last whole iteration has a checkpoint
    moved: bool = False  # the trained state has moved since the last whole iteration
    step: int = 0  # steps of the rollout that were played since then
    seconds: dict[str, float] = field(default_factory=dict)  # of the phases of this iteration
    ending: FindingRow | None = None  # the first finding that ends the run


@dataclass(frozen=True)
class Collection:
    """What one iteration learns from: the rollout of this process, and the telemetry of all of them."""

    experience: Experience
    columns: RolloutColumns
    state_begun: str  # sha256 of the state before
    state: Columns  # that state, of an iteration that is kept for the audit; else empty


@dataclass(frozen=True)
class Validation:
    """Episodes that choose the best checkpoint, what was decided in them, and their score; none and NaN if not due."""

    episodes: Columns | None = None
    decisions: Columns = field(default_factory=dict)
    score: float = float("nan")


def train(
    session: Session, observers: Sequence[Observer] = (), stop: threading.Event | None = None
) -> Counters:
    """Train up to ``train.iterations``; the best and the latest checkpoint are in the session's store then.

    Args:
        session: An open run, at its start or where it goes on.
        observers: What watches it, in the order in which they are told.
        stop: Ends the run when it is set; it is looked at after every environment step.

    Raises:
        Interrupted: ``stop`` was set. Here and below, the same call in a new session goes on from the last whole
            iteration, bit for bit.
        StoppedByFinding: A finding is fatal or as grave as ``train.stop_on``.
    """
    run = TrainingRun(session, observers, stop or threading.Event())
    with run.observed():
        for iteration in range(run.counters.iteration, session.params.train.iterations):
            collection = run.collect(iteration)
            rollout = run.advantages(collection)
            metrics = run.update(rollout, iteration)
            validation = run.validate(iteration)
            run.record(iteration, collection, metrics, validation)
            run.checkpoint()
        run.finish()
    return run.counters


class TrainingRun:
    """The steps of ``train``, and the state they share."""

    def __init__(self, session: Session, observers: Sequence[Observer], stop: threading.Event):
        self.session = session
        self.observers = tuple(observers)
        self.stop = stop
        self.ranks = session.ranks
        self.state = session.state
        self.counters = session.state.counters
        self.settings = session.params.train
        # The first process asks for all: the others may not see the disk.
        is_saved = self.ranks.from_first(
            lambda: session.checkpoints.numbers()[-1:] == [self.counters.iteration]
        )
        self.loop = LoopState(saved=is_saved)
        # In groups of the size that it had: that decides the last bits.
        if self.counters.group:
            session.task.envs_at_once = self.counters.group
        self.envs_at_once = session.task.envs_at_once

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Tell observers of a start and an end, whatever happens between; a stop request becomes ``Interrupted``."""
        # Unless it ends otherwise, it failed.
        status: EndStatus = "failed"
        session = self.session
        info = RunInfo(
            params=session.params,
            work_dir=session.work_dir,
            data_sha256=session.identity.data_sha256,
            start_iteration=self.counters.iteration,
            report=self.report,
        )
        # What was found when the run was opened is reported now that somebody listens.
        try:
            for observer in self.observers:
                observer.on_start(info)
            for finding in session.findings:
                self.report(finding)
            session.recorder.flush()
            yield
            status = "finished"
        except _StopRequested:
            status = "interrupted"
            raise self._interrupted() from None
        except DecisionFault as fault:
            self._found(self.counters.iteration, "decision_fault", "critical", str(fault), 1)
            raise self._stopped() from None
        finally:
            for observer in self.observers:
                observer.on_end(status)

    def collect(self, iteration: int) -> Collection:
        """Play one episode of every host with frozen policy and scales; its telemetry is that of all processes."""
        self.loop.seconds = {}
        # Before anything moves: the state, for its hash and for the few iterations that are kept.
        state: Columns = {}
        if iteration in kept_iteration.chosen(self.session.params):
            state = {name: tensor.numpy() for name, tensor in self.state.tensors().items()}
        state_begun = self.state.sha256()
        experience = self._timed_episodes("collect", lambda: self._play(iteration))
        self._report_shortage(iteration)

        # Telemetry of all processes, in the order of the environments.
        parts = self.ranks.gather(experience.columns)
        steps = merged([part.steps for part in parts], axis=1)
        episodes = merged([part.episodes for part in parts], axis=0)
        for observer in self.observers:
            observer.on_rollout(iteration, steps)
        return Collection(experience, RolloutColumns(steps, episodes), state_begun, state)

    def _play(self, iteration: int) -> Experience:
        """Play the rollout of the hosts of this process."""
        self.loop.step = 0

        # After each step, as an episode takes long: a stop is heeded within one epoch of the hosts.
        def on_step(step: StepRecord) -> None:
            self.loop.step = step.step + 1
            for observer in self.observers:
                observer.on_step(iteration, self.loop.step)
            self._stop_if_asked()

        return play(self.state, iteration, self.session.params.rng_seed, on_step)

    def _report_shortage(self, iteration: int) -> None:
        """Report where fewer hosts fit at once than before; part of the state, as it changes the last bits."""
        # The least that fits in any process: the state is one, so all go on in groups of that size.
        task = self.session.task
        task.envs_at_once = fits = min(self.ranks.gather(task.envs_at_once))
        if fits < self.envs_at_once:
            self.envs_at_once = self.counters.group = fits
            text = f"not enough memory for all hosts at once; from here on {fits} at a time"
            self._found(iteration, "out_of_memory", "low", text, fits)

    def advantages(self, collection: Collection) -> Rollout:
        """Move the scales and return the rollout with GAE on the scaled rewards."""
        self.loop.moved = True
        return scale_and_estimate(self.state, collection.experience)

    def update(self, rollout: Rollout, iteration: int) -> UpdateMetrics:
        """Run one update of PPO, and the checks of it that can end a run."""
        # Only steps that were learned from count.
        ppo = self.state.ppo
        metrics = self._timed("update", lambda: ppo.update(rollout, iteration))
        self.counters.env_steps += metrics.samples
        # Replayed under the weights that acted, every ratio must be 1.
        if not metrics.first_ratio_ok:
            deviation = metrics.first_ratio_deviation
            self._found(
                iteration,
                "replay_differs",
                "critical",
                f"first ratio is off 1 by {deviation:.3g}",
                deviation,
            )
        # Of the whole run: one accident is none, many have a cause.
        skipped = ppo.skipped_steps
        if skipped > SKIPPED_STEPS_BUDGET:
            text = f"{skipped} optimizer steps had no finite loss or gradient, at most {SKIPPED_STEPS_BUDGET} may"
            self._found(iteration, "non_finite_updates", "critical", text, skipped)
        return metrics

    def validate(self, iteration: int) -> Validation:
        """Play the same greedy episodes every ``validate_every`` iterations and after the last; keep the best score."""
        # After the last one too, whatever the interval: that checkpoint may be the best.
        iterations = iteration + 1
        if iterations % self.settings.validate_every and iterations != self.settings.iterations:
            return Validation()
        task = self.session.task
        columns = self._timed_episodes(
            "validate",
            lambda: task.validate(
                self.state.ppo.policy, self.state.normalizers, self._stop_if_asked
            ),
        )
        # The episodes of all processes choose the best checkpoint together.
        episodes = merged(self.ranks.gather(columns), axis=0)
        decisions = {DECIDED: episodes.pop(DECIDED)}
        score = task.score(episodes)
        # Better and not equal: of equal scores the earlier one stays.
        if self.counters.best_score is None or score > self.counters.best_score:
            self.counters.best_score = score
            self.counters.best_iteration = iterations
        return Validation(episodes, decisions, score)

    def record(
        self, iteration: int, collection: Collection, metrics: UpdateMetrics, validation: Validation
    ) -> None:
        """Make the iteration whole: counters and hash chain; tell the observers; then write all of it.

        Args:
            iteration: Its number, from 0.
            collection: What was learned from, with its telemetry.
            metrics: Of the update.
            validation: Empty where none was due.
        """
        started = time.perf_counter()
        task = self.session.task
        columns = collection.columns

        # Counters, of which the hash chain takes account.
        self.counters.iteration = iteration + 1
        self.counters.rollbacks += task.rollbacks(columns.episodes)
        budget = self.settings.governor.rollback_budget
        if self.counters.rollbacks > budget:
            text = f"{self.counters.rollbacks} rollbacks in this run, train.governor.rollback_budget allows {budget}"
            self._found(iteration, "rollback_budget", "critical", text, self.counters.rollbacks)

        # The row of the update, for observers and the log.
        update = UpdateRow(
            iteration=iteration,
            env_steps=self.counters.env_steps,
            metrics=numbers(asdict(metrics)),
            validation_accuracy=validation.score,
            best_iteration=self.counters.best_iteration,
            state_begun=collection.state_begun,
            state_ended=self.state.sha256(),
            state_chain=self.state.link(),
        )
        for observer in self.observers:
            observer.on_iteration(update, columns.episodes)
        # On disk before the iteration counts as whole: a checkpoint refers to this file by its hash.
        self.session.recorder.write(
            Iteration(
                update=update,
                steps=columns.steps,
                train=columns.episodes,
                validation=validation.episodes,
                events=task.events(columns.steps),
                state=collection.state,
                decisions=validation.decisions,
                layout=task.layout,
            )
        )
        # Wall times differ between equal runs, so they have a file of their own.
        self.loop.seconds["record"] = time.perf_counter() - started
        times = {
            f"{phase}_seconds": round(self.loop.seconds.get(phase, 0.0), 6) for phase in PHASES
        }
        self.session.recorder.time(TimingRow(iteration=iteration, **times))
        # Only now may a finding end the run: everything that led to it is on disk.
        self.loop.moved = self.loop.saved = False
        self.loop.step = 0
        self._end_if_grave()

    def checkpoint(self) -> None:
        """Save every ``checkpoint_every`` iterations, at a new best and at the end."""
        # A new best is saved at once, since the next update moves on from it.
        iterations = self.counters.iteration
        is_last = iterations == self.settings.iterations
        is_due = iterations % self.session.params.runtime.checkpoint_every == 0
        if is_due or is_last or iterations == self.counters.best_iteration:
            self._save()
        # After the last iteration there is nothing left to stop.
        if not is_last:
            self._stop_if_asked()

    def finish(self) -> None:
        """Save what is not saved yet. Where the best checkpoint was lost, and no other validated, the last is best."""
        # Where none was validated, the last has learned longest.
        if self.counters.best_iteration is None:
            self.counters.best_iteration = self.counters.iteration
            self.loop.saved = False
        if not self.loop.saved:
            self._save()

    def report(self, finding: FindingRow) -> None:
        """Record a finding and tell the observers; one that is fatal or as grave as ``stop_on`` ends the run."""
        self.session.recorder.find(finding)
        for observer in self.observers:
            observer.on_finding(finding)
        limit = self.settings.stop_on
        is_grave = finding.check in FATAL or (limit != "never" and finding.at_least(limit))
        # The first one ends the run; those that follow may be its consequences.
        if is_grave and self.loop.ending is None:
            self.loop.ending = finding

    def _found(
        self, iteration: int, check: str, severity: Severity, message: str, value: float
    ) -> None:
        self.report(
            FindingRow(
                iteration=iteration,
                check=check,
                severity=severity,
                message=message,
                evidence={"value": value},
            )
        )

    def _end_if_grave(self) -> None:
        # All processes end together, or the others would wait for this one for ever.
        findings = self.ranks.gather(self.loop.ending)
        self.loop.ending = next((finding for finding in findings if finding is not None), None)
        if self.loop.ending is not None:
            raise self._stopped()

    def _stopped(self) -> StoppedByFinding:
        finding = self.loop.ending
        assert finding is not None
        why = "" if finding.check in FATAL else "; train.stop_on decides what stops a run"
        return StoppedByFinding(
            f"stopped by finding {finding.check} in iteration {finding.iteration + 1}: {finding.message}; "
            f"earlier checkpoints are kept{why}"
        )

    def _save(self) -> None:
        path = self.session.save()
        self.loop.saved = True
        for observer in self.observers:
            observer.on_checkpoint(path, self.counters.iteration)

    def _timed_episodes(self, phase: str, work: Callable[[], T]) -> T:
        """Play episodes; a fault of one of torchrun's processes reaches the others where they look for a stop."""
        try:
            return self._timed(phase, work)
        except _SharedFault:
            raise
        except DecisionFault as fault:
            # The others ask after their next step, and learn of the fault there.
            self._stop_asked(str(fault))
            raise

    def _stop_if_asked(self) -> None:
        if self._stop_asked():
            raise _StopRequested

    def _stop_asked(self, fault: str | None = None) -> bool:
        """Tell whether any process was asked to stop; ``_SharedFault`` where one met a fault. All ask together."""
        if not self.ranks.any(self.stop.is_set() or fault is not None):
            return False
        for text in self.ranks.gather(fault):
            if text is not None:
                raise _SharedFault(text)
        return True

    def _interrupted(self) -> Interrupted:
        """Go back to the end of the last whole iteration, saved if the state is still that of it."""
        # Findings of the unfinished iteration come again with it.
        self.session.recorder.forget()
        if self.counters.iteration and not self.loop.moved and not self.loop.saved:
            self._save()
        iterations = max(self.session.checkpoints.numbers(), default=0)
        return in_training(iterations, more=self.loop.moved or self.loop.step > 0)

    def _timed(self, phase: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        self.loop.seconds[phase] = time.perf_counter() - started
        return result
