"""The training loop of the controller."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

from simic.agent.metrics import UpdateMetrics, numbers
from simic.agent.ppo import collect, with_advantages
from simic.agent.rollout import PartialRollout, Rollout, StepRecord
from simic.errors import DecisionFault, SimicError
from simic.telemetry.columns import DECIDED, Columns
from simic.telemetry.recorder import Iteration
from simic.telemetry.rows import FindingRow, Severity, TimingRow, UpdateRow
from simic.training import kept_iteration
from simic.training.checkpoint import Damaged
from simic.training.interrupts import Interrupted, in_training
from simic.training.observers import EndStatus, Observer, RunInfo
from simic.training.ranks import merged
from simic.training.session import Counters, Session
from simic.training.task import Recorded, Recording

SKIPPED_STEPS_BUDGET = 10  # optimiser steps of a run with a non-finite loss or gradient; ours: more is no accident

# Findings that end a run whatever train.stop_on says: a budget is spent, or the policy cannot decide.
FATAL = ("non_finite_updates", "rollback_budget", "decision_fault")

T = TypeVar("T")


class StoppedByFinding(SimicError):
    """A finding as grave as train.stop_on, or a fatal one, ended the run; the last checkpoint is from before it."""


class _StopRequested(Exception):
    """A stop was asked for in the middle of an iteration."""


class _SharedFault(DecisionFault):
    """A fault that all processes know of."""


def train(session: Session, observers: Sequence[Observer] = (), stop: threading.Event | None = None) -> Counters:
    """Train up to ``train.iterations``; the best and the latest checkpoint are in the session's store then.

    Raises ``Interrupted`` when ``stop`` is set (looked at after every environment step) and ``StoppedByFinding``; in
    either case the same call in a new session goes on from the last whole iteration, or from the last step that was
    saved after it, bit for bit.
    """
    run = TrainingRun(session, observers, stop or threading.Event())
    with run.watched():
        for iteration in range(run.counters.iteration, session.params.train.iterations):
            rollout, recorded = run.collect(iteration)
            rollout = run.advantages(rollout)
            metrics = run.update(rollout, iteration)
            run.validate(iteration)
            run.record(iteration, metrics, recorded)
            run.checkpoint()
        run.finish()
    return run.counters


class TrainingRun:
    """The steps of ``train``, and the state they share."""

    def __init__(self, session: Session, observers: Sequence[Observer], stop: threading.Event):
        self.session, self.observers, self.stop, self.ranks = session, tuple(observers), stop, session.ranks
        self.state, self.counters = session.state, session.state.counters
        self.settings = session.params.train
        self.saved = self.ranks.from_first(lambda: session.checkpoints.numbers()[-1:] == [self.counters.iteration])
        self.whole = True  # nothing of the state has moved since the last whole iteration
        self.every = session.params.runtime.checkpoint_steps
        self.partial = session.partial  # where the first rollout goes on
        self.inside = 0 if self.partial is None else self.partial.step  # steps of it that are saved
        self.reached = 0  # steps of the rollout that follows the last whole iteration
        self.seconds: dict[str, float] = {}
        if self.counters.group:
            session.task.at_once = self.counters.group
        self.validation: Columns | None = None
        self.gravest: FindingRow | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell observers of a start and an end, whatever happens between; a stop request becomes ``Interrupted``."""
        status: EndStatus = "failed"
        session = self.session
        done, data = self.counters.iteration, session.identity.data_sha256
        info = RunInfo(session.params, session.work_dir, data, done, self.report, self.inside)
        try:
            for observer in self.observers:
                observer.on_start(info)
            for finding in session.findings:
                self.report(finding)
            session.recorder.flush()
            if self.every and not self.saved:
                self._save()  # what is saved inside the first iteration belongs to it
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

    def collect(self, iteration: int) -> tuple[Rollout, Recorded]:
        """Play one episode of every host with frozen policy and scales; its telemetry is that of all processes."""
        self.seconds = {}
        keeps = iteration in kept_iteration.chosen(self.session.params)
        self.kept = kept_iteration.state(self.state.tensors(), kept_iteration.BEFORE) if keeps else {}
        self.taken_up = self.state.sha256()
        rollout, own = self._played("collect", iteration, lambda: self._rollout(iteration))
        self._look_at_memory(iteration)
        parts = self.ranks.gather(own)
        steps = merged([part.steps for part in parts], axis=1)
        for observer in self.observers:
            observer.on_rollout(iteration, steps)
        return rollout, Recorded(steps, merged([part.episode for part in parts], axis=0))

    def _rollout(self, iteration: int) -> tuple[Rollout, Recorded]:
        """Collect the rollout of the hosts of this process, and its telemetry."""
        task, ppo, normalizers = self.session.task, self.state.ppo, self.state.normalizers
        unfinished, recorder = self._unfinished(iteration)
        self.reached = 0 if unfinished is None else unfinished.steps

        def on_step(transition: StepRecord) -> None:
            recorder.add(transition)
            self.reached = transition.step + 1
            for observer in self.observers:
                observer.on_step(iteration, self.reached)
            self._after_step(recorder, transition.reached)

        how = iteration, self.session.params.rng_seed, task.length_of(iteration), on_step, task.position()
        rollout, self.end = collect(task.env, ppo.policy, normalizers, *how, unfinished=unfinished)
        if self.kept:
            self.kept |= kept_iteration.of_all(recorder.kept(rollout), self.ranks)
        return rollout, recorder.recorded(rollout)

    def _unfinished(self, iteration: int) -> tuple[PartialRollout | None, Recording]:
        """Return what an earlier life of this run saved of the iteration, if any, and the recorder as it was then."""
        saved, self.partial = self.partial, None
        recorder = self.session.task.recording()
        if saved is None:
            return None, recorder
        partials, state = self.session.partials, self.state
        try:
            unfinished = recorder.resume(partials.read(saved.step), state.ppo.policy, state.normalizers, iteration)
        except Damaged as damage:
            self.report(partials.report(saved.step, iteration, damage))
            self.inside = 0
            return None, self.session.task.recording()
        for finding in saved.findings:
            self.report(finding)
        return unfinished, recorder

    def _after_step(self, recorder: Recording, reached: PartialRollout) -> None:
        """Stop if asked to; save what the rollout has come to, then and every ``checkpoint_steps`` steps."""
        asked = self._stop_asked()
        if self.every and (asked or reached.steps % self.every == 0):
            self.session.save_inside(reached.steps, recorder.tensors(reached), recorder.columns)
            self.inside = reached.steps
        if asked:
            raise _StopRequested

    def _look_at_memory(self, iteration: int) -> None:
        """Report where fewer hosts fit at once than before; part of the state, as it changes the last bits."""
        task = self.session.task
        task.at_once = fits = min(self.ranks.gather(task.at_once))
        if fits < (self.counters.group or task.env.num_envs):
            self.counters.group = fits
            text = f"not enough memory for all hosts at once; from here on {fits} at a time"
            self._found(iteration, "out_of_memory", "low", text, fits)

    def advantages(self, rollout: Rollout) -> Rollout:
        """Move the scales, in this one place, then return the rollout with GAE on the scaled rewards."""
        self.whole = False
        self.session.task.moved(self.end)
        normalizers, ppo, reduce = self.state.normalizers, self.settings.ppo, self.ranks.reduce
        seen = rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid
        rewards = normalizers.update(*seen, reduce)
        return with_advantages(rollout, rewards, ppo.gamma, ppo.gae_lambda)

    def update(self, rollout: Rollout, iteration: int) -> UpdateMetrics:
        """Run one update of PPO, and the checks of it that can end a run."""
        ppo = self.state.ppo
        metrics = self._timed("update", lambda: ppo.update(rollout, iteration))
        self.counters.env_steps += metrics.samples
        if self.kept:
            self.kept |= kept_iteration.rollout_columns(rollout, self.end, self.ranks)
            self.kept |= kept_iteration.state(self.state.tensors(), kept_iteration.AFTER)
        if not metrics.first_ratio_ok:
            deviation = metrics.first_ratio_deviation
            self._found(iteration, "replay_differs", "critical", f"first ratio is off 1 by {deviation:.3g}", deviation)
        skipped = ppo.skipped_steps
        if skipped > SKIPPED_STEPS_BUDGET:
            text = f"{skipped} optimizer steps had no finite loss or gradient, at most {SKIPPED_STEPS_BUDGET} may"
            self._found(iteration, "non_finite_updates", "critical", text, skipped)
        return metrics

    def validate(self, iteration: int) -> None:
        """Play the same greedy episodes every ``validate_every`` iterations and after the last; keep the best score."""
        done = iteration + 1
        self.validation, self.validated, self.validation_accuracy = None, {}, float("nan")
        if done % self.settings.validate_every and done != self.settings.iterations:
            return
        task, ppo = self.session.task, self.state.ppo
        own = self._played(
            "validate", iteration, lambda: task.validate(ppo.policy, self.state.normalizers, self._look_for_stop)
        )
        self.validation = merged(self.ranks.gather(own), axis=0)
        self.validated = {DECIDED: self.validation.pop(DECIDED)}
        self.validation_accuracy = task.score(self.validation)
        if self.counters.best_score is None or self.validation_accuracy > self.counters.best_score:
            self.counters.best_score, self.counters.best_iteration = self.validation_accuracy, done

    def record(self, iteration: int, metrics: UpdateMetrics, recorded: Recorded) -> None:
        """Make the iteration whole: counters and hash chain; tell the observers; then write all of it."""
        started = time.perf_counter()
        self.counters.iteration = iteration + 1
        self.counters.rollbacks += self.session.task.rollbacks(recorded.episode)
        budget = self.settings.governor.rollback_budget
        if self.counters.rollbacks > budget:
            text = f"{self.counters.rollbacks} rollbacks in this run, train.governor.rollback_budget allows {budget}"
            self._found(iteration, "rollback_budget", "critical", text, self.counters.rollbacks)
        update = UpdateRow(
            iteration=iteration, env_steps=self.counters.env_steps, metrics=numbers(asdict(metrics)),
            validation_accuracy=self.validation_accuracy, best_iteration=self.counters.best_iteration,
            state_begun=self.taken_up, state_ended=self.state.sha256(), state_chain=self.state.link(),
        )  # fmt: skip
        for observer in self.observers:
            observer.on_iteration(update, recorded.episode)
        task, own = self.session.task, (self.kept, self.validated)
        events = task.events(recorded.steps)
        self.session.recorder.write(
            Iteration(update, recorded.steps, recorded.episode, self.validation, events, *own, task.layout)
        )
        self.seconds["record"] = time.perf_counter() - started
        names = ("collect", "update", "validate", "record")
        times = {f"{name}_seconds": round(self.seconds.get(name, 0.0), 6) for name in names}
        self.session.recorder.time(TimingRow(iteration=iteration, **times))
        self.whole, self.saved, self.reached = True, False, 0
        self._end_if_grave()

    def checkpoint(self) -> None:
        """Save every ``checkpoint_every`` iterations (each where steps are saved too), at a new best and at the end."""
        done = self.counters.iteration
        last = done == self.settings.iterations
        due = self.every > 0 or done % self.session.params.runtime.checkpoint_every == 0
        if due or done == self.counters.best_iteration or last:
            self._save()
        if not last:
            self._look_for_stop()

    def finish(self) -> None:
        """Save what is not saved yet. Where the best checkpoint was lost, and no other validated, the last is best."""
        if self.counters.best_iteration is None:
            self.counters.best_iteration = self.counters.iteration
            self.saved = False
        if not self.saved:
            self._save()

    def report(self, finding: FindingRow) -> None:
        """Record a finding and tell the observers; one that is fatal or as grave as ``stop_on`` ends the run."""
        self.session.recorder.find(finding)
        for observer in self.observers:
            observer.on_finding(finding)
        limit = self.settings.stop_on
        ends = finding.check in FATAL or (limit != "never" and finding.at_least(limit))
        if ends and self.gravest is None:
            self.gravest = finding

    def _found(self, iteration: int, check: str, severity: Severity, message: str, value: float) -> None:
        self.report(
            FindingRow(iteration=iteration, check=check, severity=severity, message=message, evidence={"value": value})
        )

    def _end_if_grave(self) -> None:
        self.gravest = next((finding for finding in self.ranks.gather(self.gravest) if finding is not None), None)
        if self.gravest is not None:
            raise self._stopped()

    def _stopped(self) -> StoppedByFinding:
        gravest = self.gravest
        assert gravest is not None
        why = "" if gravest.check in FATAL else "; train.stop_on decides what stops a run"
        return StoppedByFinding(
            f"stopped by finding {gravest.check} in iteration {gravest.iteration + 1}: {gravest.message}; "
            f"earlier checkpoints are kept{why}"
        )

    def _save(self) -> None:
        path = self.session.save()
        self.saved, self.inside = True, 0
        for observer in self.observers:
            observer.on_checkpoint(path, self.counters.iteration)

    def _played(self, name: str, iteration: int, work: Callable[[], T]) -> T:
        """Play episodes; again from their reset where a process with hosts was lost. A fault of one of torchrun's
        processes reaches the others where they look for a stop.
        """

        def again(lost: Exception) -> None:
            self._look_for_stop()
            self._found(iteration, "process_lost", "info", f"{lost}; its episodes are played again", 1)

        try:
            return self._timed(name, lambda: self.session.task.recovered(work, again))
        except _SharedFault:
            raise
        except DecisionFault as fault:
            self._stop_asked(str(fault))
            raise

    def _look_for_stop(self) -> None:
        if self._stop_asked():
            raise _StopRequested

    def _stop_asked(self, fault: str | None = None) -> bool:
        """Tell whether any process was asked to stop; ``_SharedFault`` where one met a fault. All ask together."""
        asked = self.ranks.any(self.stop.is_set() or fault is not None)
        for met in self.ranks.gather(fault) if asked else ():
            if met is not None:
                raise _SharedFault(met)
        return asked

    def _interrupted(self) -> Interrupted:
        """Go back to the end of the last whole iteration, saved if the state is still that of it."""
        self.session.recorder.forget()
        if self.whole and not self.saved and self.counters.iteration:
            self._save()
        kept = self.session.checkpoints.numbers()
        done = kept[-1] if kept else 0
        return in_training(done, self.inside, more=not self.whole or self.reached > self.inside)

    def _timed(self, name: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        self.seconds[name] = time.perf_counter() - started
        return result
