"""The training loop of the controller."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from simic.agent.health import Health, acting
from simic.agent.metrics import UpdateMetrics, numbers
from simic.agent.ppo import with_advantages
from simic.agent.rollout import Rollout, StepRecord, Unfinished, collect
from simic.errors import DecisionFault, SimicError
from simic.growth.batch.shards import ProcessLost, recovered
from simic.telemetry.columns import Columns
from simic.telemetry.recorder import Iteration
from simic.telemetry.rows import FindingRow, Severity, TimingRow, UpdateRow
from simic.training import episodes, validation
from simic.training.checkpoint import Damaged
from simic.training.interrupts import Interrupted, in_training
from simic.training.observers import EndStatus, Observer, Observers, RunInfo
from simic.training.playing import Playing
from simic.training.ranks import merged
from simic.training.session import Session
from simic.training.state import Counters

SKIPPED_STEPS_BUDGET = 10  # optimiser steps of a run with a non-finite loss or gradient; ours: more is no accident

# Findings that end a run whatever train.stop_on says: a budget is spent, or the policy cannot decide.
FATAL = ("non_finite_updates", "rollback_budget", "decision_fault")

T = TypeVar("T")


class StoppedByFinding(SimicError):
    """A finding as grave as train.stop_on, or a fatal one; the last checkpoint is from before it."""


class _StopRequested(Exception):
    """Out of the middle of an iteration."""


@dataclass(frozen=True)
class Recorded:
    """What is recorded of an episode of every host: its steps ``[T, E]`` and what they add up to ``[E]``."""

    steps: Columns
    episode: Columns


class _SharedFault(DecisionFault):
    """A fault that all processes know of."""


def train(session: Session, observers: Sequence[Observer] = (), stop: threading.Event | None = None) -> Counters:
    """Trains up to ``train.iterations``; the best and the latest checkpoint are in the session's store then.

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
    """The steps of ``train``, and what they share."""

    def __init__(self, session: Session, observers: Sequence[Observer], stop: threading.Event):
        self.session, self.observers, self.stop, self.ranks = session, Observers(observers), stop, session.ranks
        self.state, self.counters = session.state, session.state.counters
        self.settings = session.params.train
        self.saved = self.ranks.from_first(lambda: session.checkpoints.iterations()[-1:] == [self.counters.iteration])
        self.begun = self.counters.iteration
        self.whole = True  # nothing of the state has moved since the last whole iteration
        self.every = session.params.runtime.checkpoint_steps
        self.partial = session.partial  # where the first rollout goes on
        self.inside = 0 if self.partial is None else self.partial.step  # steps of it that are saved
        self.reached = 0  # steps of the rollout that is played
        self.seconds: dict[str, float] = {}
        if self.counters.group:
            session.env.population.group = self.counters.group
        self.validation: Columns | None = None
        self.validation_accuracy = float("nan")
        self.gravest: FindingRow | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Observers see a start and an end, whatever happens between; a stop request becomes ``Interrupted``."""
        status: EndStatus = "failed"
        session = self.session
        info = RunInfo(
            session.params,
            session.work_dir,
            session.identity.data_sha256,
            self.counters.iteration,
            self.report,
            self.inside,
        )
        try:
            self.observers.on_start(info)
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
            self.observers.on_end(status)

    def collect(self, iteration: int) -> tuple[Rollout, Recorded]:
        """One episode of every host with frozen policy and scales, and its telemetry, of all processes."""
        self.seconds, self.begun = {}, iteration + 1
        rollout, own = self._played("collect", iteration, lambda: self._rollout(iteration))
        self._look_at_memory(iteration)
        parts = self.ranks.gather(own)
        steps = merged([part.steps for part in parts], axis=1)
        self.observers.on_rollout(iteration, steps)
        return rollout, Recorded(steps, merged([part.episode for part in parts], axis=0))

    def _rollout(self, iteration: int) -> tuple[Rollout, Recorded]:
        """And what is recorded of the hosts of this process."""
        env, ppo, normalizers = self.session.env, self.state.ppo, self.state.normalizers
        unfinished, playing = self._unfinished(iteration)
        self.reached = 0 if unfinished is None else unfinished.steps

        def on_step(transition: StepRecord) -> None:
            playing.add(transition)
            self.reached = transition.step + 1
            self.observers.on_step(iteration, self.reached)
            self._look_inside(playing, transition.reached)

        how = iteration, self.session.params.rng_seed, env.length_of(iteration), on_step
        rollout, self.end = collect(env, ppo.policy, normalizers, *how, unfinished=unfinished)
        return rollout, Recorded(playing.collector.fetched(), playing.tally.columns())

    def _unfinished(self, iteration: int) -> tuple[Unfinished | None, Playing]:
        """What an earlier life of this run left of the iteration, if it did; and the episode, as it is then."""
        found, self.partial = self.partial, None
        playing = Playing.begun(self.session.env)
        if found is None:
            return None, playing
        partials, state = self.session.partials, self.state
        try:
            unfinished = playing.resume(partials.read(found.step), state.ppo.policy, state.normalizers, iteration)
        except Damaged as damage:
            self.report(partials.set_aside(found.step, iteration, damage))
            self.inside = 0
            return None, Playing.begun(self.session.env)
        for finding in found.findings:
            self.report(finding)
        return unfinished, playing

    def _look_inside(self, playing: Playing, reached: Unfinished) -> None:
        """Saves what the rollout has come to, every ``checkpoint_steps`` steps and where it is asked to stop."""
        try:
            self._look_for_stop()
        except _StopRequested:
            if self.every:
                self._save_inside(playing, reached)
            raise
        if self.every and reached.steps % self.every == 0:
            self._save_inside(playing, reached)

    def _save_inside(self, playing: Playing, reached: Unfinished) -> None:
        self.session.save_inside(reached.steps, playing.tensors(reached), playing.columns)
        self.inside = reached.steps

    def _look_at_memory(self, iteration: int) -> None:
        """Fewer hosts at once since the last look: a finding, and part of the state, as it changes the last bits."""
        population = self.session.env.population
        population.group = min(self.ranks.gather(population.group))
        if population.group < (self.counters.group or len(population)):
            self.counters.group = population.group
            text = f"not enough memory for all hosts at once; from here on {population.group} at a time"
            self._found(iteration, "out_of_memory", "low", text, population.group)

    def advantages(self, rollout: Rollout) -> Rollout:
        """Move the scales, in this one place, then return the rollout with GAE on the scaled rewards."""
        self.whole = False
        normalizers, ppo, reduce = self.state.normalizers, self.settings.ppo, self.ranks.reduce
        self.acted = acting(self.state.ppo.policy, rollout, self.end, normalizers, reduce)
        seen = rollout.raw_features, rollout.rewards, rollout.starts, rollout.valid
        rewards = normalizers.update(*seen, reduce)
        return with_advantages(rollout, rewards, ppo.gamma, ppo.gae_lambda)

    def update(self, rollout: Rollout, iteration: int) -> UpdateMetrics:
        """Run one update of PPO, and the checks of it that can end a run."""
        ppo = self.state.ppo
        metrics = self._timed("update", lambda: ppo.update(rollout, iteration, Health(ppo, self.acted)))
        self.counters.env_steps += metrics.samples
        if not metrics.first_ratio_ok:
            deviation = metrics.first_ratio_deviation
            self._found(iteration, "replay_differs", "critical", f"first ratio is off 1 by {deviation:.3g}", deviation)
        skipped = ppo.skipped_steps
        if skipped > SKIPPED_STEPS_BUDGET:
            text = f"{skipped} optimizer steps had no finite loss or gradient, at most {SKIPPED_STEPS_BUDGET} may"
            self._found(iteration, "non_finite_updates", "critical", text, skipped)
        return metrics

    def validate(self, iteration: int) -> None:
        """Every ``validate_every`` iterations and after the last: the same greedy episodes; the best score is kept."""
        done = iteration + 1
        self.validation, self.validation_accuracy = None, float("nan")
        if done % self.settings.validate_every and done != self.settings.iterations:
            return
        env, ppo = self.session.env, self.state.ppo
        own = self._played(
            "validate",
            iteration,
            lambda: validation.validate(env, ppo.policy, self.state.normalizers, self._look_for_stop),
        )
        self.validation = merged(self.ranks.gather(own), axis=0)
        self.validation_accuracy = validation.score(self.validation)
        if self.counters.best_score is None or self.validation_accuracy > self.counters.best_score:
            self.counters.best_score, self.counters.best_iteration = self.validation_accuracy, done

    def record(self, iteration: int, metrics: UpdateMetrics, recorded: Recorded) -> None:
        """The iteration is whole: counters, hash chain; everyone who watches is told; then all of it is written."""
        started = time.perf_counter()
        self.counters.iteration = iteration + 1
        self.counters.rollbacks += int(recorded.episode["panicked"].sum())
        budget = self.settings.governor.rollback_budget
        if self.counters.rollbacks > budget:
            text = f"{self.counters.rollbacks} rollbacks in this run, train.governor.rollback_budget allows {budget}"
            self._found(iteration, "rollback_budget", "critical", text, self.counters.rollbacks)
        update = UpdateRow(
            iteration=iteration,
            env_steps=self.counters.env_steps,
            metrics=numbers(asdict(metrics)),
            validation_accuracy=self.validation_accuracy,
            best_iteration=self.counters.best_iteration,
            state_chain=self.state.link(),
        )
        self.observers.on_iteration(update, recorded.episode)
        events = episodes.events(recorded.steps)
        self.session.recorder.write(Iteration(update, recorded.steps, recorded.episode, self.validation, events))
        self.seconds["record"] = time.perf_counter() - started
        names = ("collect", "update", "validate", "record")
        times = {f"{name}_seconds": round(self.seconds.get(name, 0.0), 6) for name in names}
        self.session.recorder.time(TimingRow(iteration=iteration, **times))
        self.whole, self.saved = True, False
        self._end_if_grave()

    def checkpoint(self) -> None:
        """Every ``checkpoint_every`` iterations, or every one where steps are saved too; at a new best and at the end;
        and leaves if asked to.
        """
        done = self.counters.iteration
        last = done == self.settings.iterations
        due = self.every > 0 or done % self.session.params.runtime.checkpoint_every == 0
        if due or done == self.counters.best_iteration or last:
            self._save()
        if not last:
            self._look_for_stop()

    def finish(self) -> None:
        """A run of no iterations leaves its untrained policy; any other is saved already."""
        if self.counters.best_iteration is None:
            self.counters.best_iteration = self.counters.iteration
            self.saved = False
        if not self.saved:
            self._save()

    def report(self, finding: FindingRow) -> None:
        """Records a finding and tells everyone; one that is fatal or as grave as ``stop_on`` ends the run."""
        self.session.recorder.find(finding)
        self.observers.on_finding(finding)
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
        found = self.gravest
        assert found is not None
        why = "" if found.check in FATAL else "; train.stop_on decides what stops a run"
        return StoppedByFinding(
            f"stopped by finding {found.check} in iteration {found.iteration + 1}: {found.message}; "
            f"earlier checkpoints are kept{why}"
        )

    def _save(self) -> Path:
        path = self.session.save()
        self.saved, self.inside = True, 0
        self.observers.on_checkpoint(path, self.counters.iteration)
        return path

    def _played(self, name: str, iteration: int, work: Callable[[], T]) -> T:
        """Episodes; again from their reset where a process with hosts was lost. A fault of one of torchrun's processes
        is met by the others where they look for a stop.
        """

        def again(lost: ProcessLost) -> None:
            self._look_for_stop()
            self._found(iteration, "process_lost", "info", f"{lost}; its episodes are played again", 1)

        try:
            return self._timed(name, lambda: recovered(self.session.env.population, work, again))
        except _SharedFault:
            raise
        except DecisionFault as fault:
            self._look_for_stop(str(fault))
            raise

    def _look_for_stop(self, fault: str | None = None) -> None:
        """After each step, in all processes together."""
        if self.ranks.any(self.stop.is_set() or fault is not None):
            for met in self.ranks.gather(fault):
                if met is not None:
                    raise _SharedFault(met)
            raise _StopRequested

    def _interrupted(self) -> Interrupted:
        """Back to the end of the last whole iteration, saved if the state is still that of it."""
        self.session.recorder.forget()
        if self.whole and not self.saved and self.counters.iteration:
            self._save()
        kept = self.session.checkpoints.iterations()
        done = kept[-1] if kept else 0
        more = not self.whole or self.begun > done + 1 or self.reached > self.inside
        return in_training(done, self.begun, self.inside, more)

    def _timed(self, name: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        self.seconds[name] = time.perf_counter() - started
        return result
