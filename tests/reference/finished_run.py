"""Compare a whole run with the reference: its iterations, episodes, evaluation, headroom and exported network.

This is a driver: it reads what the run published, and lets the reference compute the same again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from simic.audit.record import RunRecord
from simic.evaluation.result import HeadroomReport, PerSeed
from simic.evaluation.static_baselines import sizes
from simic.telemetry.columns import DECIDED
from simic.telemetry.publish import VALIDATED_FILE
from simic.training.checkpoint import Checkpoint, read_chain
from tests.reference import bank, episodes, evaluation, iteration
from tests.reference.agent import Interface
from tests.reference.bank import NoReference
from tests.reference.comparison import Comparison, ComparisonLog
from tests.reference.evaluation import TEST, VAL, Ground
from tests.reference.host import World
from tests.reference.iteration import Known, RecordedIteration

# Where it is paid, scaled rewards are not clipped, so that they telescope
SHAPING = "components.shaping"
RULED = 3  # hosts of each hand-written rule
CHOOSING = 6  # hosts that choose a schedule
SEARCHED = 6  # hosts of the search for the common schedule
STATIC = 4  # hosts of each static network
VALIDATED = 3  # hosts of the validation that chose the best checkpoint
COUNTED = ("germinated", "fossilized", "pruned")
OF_POLICY = ("params", "flops_per_sample", "training_flops", *COUNTED)


class Part(NamedTuple):
    """The comparisons of one part of a run, or the ``reason`` why the reference has none."""

    lines: tuple[Comparison, ...]
    reason: str = ""

    @property
    def differences(self) -> tuple[Comparison, ...]:
        """Select the comparisons out of bounds."""
        return tuple(line for line in self.lines if not line.ok)


@dataclass(frozen=True)
class FinishedRun:
    """A run and where its files are; each method compares one part of it, or raises NoReference.

    ``recorded`` has the tensors of iterations that the test recorded whole, by number.
    """

    prepared: Path
    grown: Path
    telemetry: Path
    checkpoints: Path
    run: RunRecord
    recorded: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)

    @property
    def iterations_recorded(self) -> dict[int, RecordedIteration]:
        return {
            number: RecordedIteration(number, tensors) for number, tensors in self.recorded.items()
        }

    @cached_property
    def latest(self) -> Checkpoint:
        """The checkpoint after the last iteration."""
        latest = (self.run.checkpoints or {}).get("latest")
        if latest is None:
            raise NoReference("there is no latest checkpoint")
        return latest

    @cached_property
    def known(self) -> Known:
        """The params and the policy's interface."""
        specs = self.latest.manifest.specs
        return Known(self.run.params, Interface.of(specs), SHAPING not in self.run.steps)

    @cached_property
    def world(self) -> World:
        """The hosts and tasks of training."""
        return World.read(self.run.params, self.prepared)

    @cached_property
    def ground(self) -> Ground:
        """The held-out tasks."""
        world = World.read(self.run.params, self.prepared, bank.read_evaluated(self.prepared))
        return Ground(world, bank.read_held_out(self.prepared))

    def iterations(self) -> Sequence[Comparison]:
        """Derive the recorded iterations down to the weights, and the hash chain of the published checkpoints."""
        log = ComparisonLog(iteration.ALLOWED)
        updates = self.run.updates
        rows = {int(number): row for row, number in enumerate(updates.column("iteration"))}
        numbers = {
            name: values for name, values in updates.columns.items() if values.dtype.kind in "fi"
        }
        begun = updates.column("state_begun").tolist()
        ended = updates.column("state_ended").tolist()
        for number, recorded in self.iterations_recorded.items():
            row = rows[number]
            metrics = {name: float(values[row]) for name, values in numbers.items()}
            iteration.compare_iteration(self.known, recorded, metrics, log)
            iteration.compare_states(recorded, (begun[row], ended[row]), log)
        # The state that an iteration takes up is the one that the iteration before it ended with.
        iteration.compare_taken_up(begun, ended, log)
        same = iteration.hashed({}, self.latest.tensors) == ended[-1]
        log.equal("state of the latest checkpoint", f"iteration {len(ended)}", same)
        # Each checkpoint's link hashes its counters, the link before and its tensors.
        links = read_chain(self.checkpoints).links
        for name, checkpoint in (self.run.checkpoints or {}).items():
            scalars = checkpoint.manifest.scalars
            before = links.get(checkpoint.manifest.iteration - 1, "")
            link = iteration.hashed({**scalars, "chain": before}, checkpoint.tensors)
            log.equal("hash chain", f"checkpoint {name}", link == scalars["chain"])
        return log.comparisons()

    def episodes(self, hosts: Sequence[int] | None = None) -> Sequence[Comparison]:
        """Replay the episodes of recorded iterations on these hosts (None: all), then of validation."""
        steps = self.run.steps
        iterations = steps.column("iteration")
        log = ComparisonLog(*episodes.bounds(self.world))
        envs = steps.column("op").shape[1]
        for number, recorded in self.iterations_recorded.items():
            rows = np.flatnonzero(iterations == number)
            for env in hosts or range(envs):
                columns = {
                    name: values[rows][:, env]
                    for name, values in steps.columns.items()
                    if values.ndim > 1
                }
                episodes.replay_episode(self.world, columns, number, env, recorded, log)
        return [*log.comparisons(), *self._validation()]

    def _validation(self) -> Sequence[Comparison]:
        """Replay validation episodes that chose the best checkpoint, decided by its weights."""
        log = _log()
        path = self.telemetry / VALIDATED_FILE
        best = (self.run.checkpoints or {}).get("best")
        if best is None:
            return ()
        chose = self.run.validations.column("iteration") + 1 == best.manifest.iteration
        log.equal(
            "validation of the best checkpoint",
            "telemetry",
            path.exists() and int(chose.sum()) == 1,
        )
        if not (path.exists() and chose.any()):
            return log.comparisons()
        decided = load_file(path)[DECIDED].tolist()
        columns = self.run.validations.where(chose).columns
        ground = Ground(self.world, None, evaluation.VALIDATION_ITERATION)
        for host in evaluation.chosen(
            self.run.params.rng_seed, best.manifest.iteration, len(decided), VALIDATED
        ):
            own = {
                name: float(values[0, host]) for name, values in columns.items() if values.ndim > 1
            }
            task = self.world.bank.validation_task(host)
            log.equal("task of a validation episode", f"host {host}", own["task"] == task)
            if not own["panicked"]:
                claimed = {
                    "params": own["committed_params"],
                    "flops_per_sample": own["committed_flops"],
                }
                claimed |= {name: own[name] for name in COUNTED} | {VAL: own["committed_accuracy"]}
                how = evaluation.VALIDATION, host, task, decided[host], claimed, log
                evaluation.replay_decisions(ground, self.known, best.tensors, *how)
        return log.comparisons()

    def evaluation(self) -> Sequence[Comparison]:
        """Replay the recorded decisions of the evaluated policies, each on some hosts by hash."""
        evaluated = self.run.evaluation
        run = self.run
        checkpoint = (run.checkpoints or {}).get(evaluated.checkpoint or "") if evaluated else None
        if evaluated is None or checkpoint is None or not evaluated.actions:
            raise NoReference("no trained policy was evaluated")
        log = _log()
        for task, what, share in bank.shared_samples(self.prepared):
            log.note(what, task, share)
        for number, (name, actions) in enumerate(evaluated.actions.items()):
            seeds = evaluated.policies[name].per_seed
            for host in evaluation.chosen(run.params.rng_seed, number, evaluated.eval_seeds):
                if not seeds.rollbacks[host]:
                    claimed = _claimed(seeds, host)
                    decided = _decided(actions[host])
                    task = evaluated.rows[host]
                    state = checkpoint.tensors
                    evaluation.replay_decisions(
                        self.ground, self.known, state, name, host, task, decided, claimed, log
                    )
        return log.comparisons()

    def headroom(self) -> Sequence[Comparison]:
        """Replay what was measured before anything was learned, each on hosts by hash."""
        headroom = self.run.headroom
        if headroom is None:
            raise NoReference("no headroom was measured")
        compared = self._schedules, self._search, self._static, self._rules
        return [
            line for compare in compared for log in compare(headroom) for line in log.comparisons()
        ]

    def _chosen(self, about: int, count: int, most: int) -> list[int]:
        return evaluation.chosen(self.run.params.rng_seed, about, count, most)

    def _schedules(self, headroom: HeadroomReport) -> Iterator[ComparisonLog]:
        """Replay static, the common schedule and others by hash, some on the hosts that choose as well."""
        log = _log()
        choosing = _log()
        hosts = len(headroom.bare or headroom.rows)
        count = len(headroom.schedules)
        for number, host in enumerate(self._chosen(count, hosts, evaluation.HOSTS)):
            others = self._chosen(host, count, 2)
            for schedule in {0 if number % 2 else headroom.common, *others}:
                claimed = _of_schedule(headroom, host, schedule)
                name = headroom.schedules[schedule]
                task = headroom.rows[host]
                evaluation.replay_schedule(
                    self.ground, name, host, task, headroom.epochs, claimed, log
                )
            if number < CHOOSING:  # those of the same task that choose come after all that score
                schedule = others[0]
                chose = {VAL: headroom.choosing_val_pct[host][schedule]}
                name = headroom.schedules[schedule]
                task = headroom.rows[host]
                evaluation.replay_schedule(
                    self.ground, name, hosts + host, task, headroom.epochs, chose, choosing
                )
        yield from (log, choosing)

    def _search(self, headroom: HeadroomReport) -> Iterator[ComparisonLog]:
        """Replay schedules on training tasks, by which the common one was found."""
        log = _log()
        ground = Ground(self.world, None, evaluation.SEARCH_ITERATION)
        for host in self._chosen(0, len(headroom.search_scores), SEARCHED):
            [schedule] = self._chosen(host, len(headroom.schedules), 1)
            reached = {evaluation.SCORE: headroom.search_scores[host][schedule]}
            name = headroom.schedules[schedule]
            task = host % self.world.bank.of_training
            evaluation.replay_schedule(ground, name, host, task, headroom.epochs, reached, log)
        yield log

    def _static(self, headroom: HeadroomReport) -> Iterator[ComparisonLog]:
        """Train networks of several sizes that never grow."""
        log = _log()
        params = self.run.params
        for name, network in sizes(params.train.host.family).items():
            if name not in headroom.floors:
                continue
            own = headroom.floors[name]
            train = params.train.model_copy(update={"host": network})
            tasks = self.ground.world.bank
            ground = replace(
                self.ground, world=World(params.model_copy(update={"train": train}), tasks)
            )
            for host in self._chosen(0, len(headroom.rows), STATIC):
                claimed = {
                    each: float(getattr(own, each)[host]) for each in ("params", "flops_per_sample")
                }
                claimed = claimed | {TEST: own.test_accuracy_pct[host]}
                task = headroom.rows[host]
                evaluation.replay_schedule(
                    ground, "static", host, task, headroom.epochs, claimed, log
                )
        yield log

    def _rules(self, headroom: HeadroomReport) -> Iterator[ComparisonLog]:
        """Replay the recorded decisions of the hand-written rules."""
        log = _log()
        for number, (name, actions) in enumerate(headroom.actions.items()):
            seeds = headroom.policies[name]
            for host in self._chosen(number, len(headroom.bare or headroom.rows), RULED):
                if not seeds.rollbacks[host]:
                    claimed = _claimed(seeds, host)
                    decided = _decided(actions[host])
                    how = name, host, headroom.rows[host], decided, claimed, log
                    evaluation.replay_decisions(self.ground, self.known, {}, *how)
        yield log

    def grown_network(self) -> Sequence[Comparison]:
        """Run the exported network: the one that the first policy of the evaluation grew best by validation."""
        evaluated = self.run.evaluation
        if evaluated is None or not self.grown.exists():
            raise NoReference("nothing was evaluated")
        log = ComparisonLog({})
        seeds = evaluated.policies[self.run.params.evaluate.policies[0]].per_seed
        host = max(range(len(evaluated.rows)), key=lambda place: seeds.val_accuracy_pct[place])
        held_out = bank.read_held_out(self.prepared)
        task = evaluated.rows[host]
        samples = held_out.samples("test", task)
        classes = held_out.task_classes[task]
        evaluation.compare_grown(
            self.grown, samples, classes, seeds.test_accuracy_pct[host], seeds.params[host], log
        )
        return log.comparisons()


def _log() -> ComparisonLog:
    return ComparisonLog(evaluation.ALLOWED, evaluation.TYPICAL)


def _decided(steps: Sequence[str]) -> list[list[int]]:
    return [[int(index) for index in step.split()] for step in steps]


def _claimed(seeds: PerSeed, host: int) -> dict[str, float]:
    numbers = {name: float(getattr(seeds, name)[host]) for name in OF_POLICY}
    return numbers | {VAL: seeds.val_accuracy_pct[host], TEST: seeds.test_accuracy_pct[host]}


def _of_schedule(headroom: HeadroomReport, host: int, schedule: int) -> dict[str, float]:
    numbers = {
        name: getattr(headroom, name)[host][schedule] for name in ("params", "flops_per_sample")
    }
    return numbers | {
        VAL: headroom.val_pct[host][schedule],
        TEST: headroom.test_pct[host][schedule],
    }


def part(compare: Callable[[], Sequence[Comparison]]) -> Part:
    """Compare one part of a run, or say why there is no reference for it."""
    try:
        return Part(tuple(compare()))
    except NoReference as none:
        return Part((), str(none))
