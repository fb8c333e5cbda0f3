"""The record: files have their hashes, tables agree with each other, and every number follows from them.

All comparisons are exact, up to the rounding of what is stored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from simic.audit.checks.base import (
    MOST_EVIDENCE,
    Outcome,
    Values,
    check,
    failed,
    first_steps,
    judged,
    passed,
    rows_of_iterations,
    undecided,
)
from simic.audit.derived import (
    apart,
    derived_evaluation,
    derived_gym,
    derived_headroom,
    derived_metrics,
)
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord, Steps, Table
from simic.data.bank import CLIP_DEVIATIONS
from simic.data.batches import Dataset, TaskGroup
from simic.data.sources import equal_rows
from simic.evaluation.gym_evaluation import GymEvaluation, GymHeadroom
from simic.evaluation.result import Evaluation, Frozen, HeadroomReport
from simic.growth.life.vocabulary import Op, Stage
from simic.telemetry.columns import Array
from simic.training.gym_task import tally_episodes
from simic.training.resume import LOST_BEST

STORED = 1e-6  # relative and absolute: sums of what is stored in float32
RATE_FALLS = 0.8  # share of a linear learning rate that is gone in the last update
SCHEDULES = ("entropy_coef", "learning_rate")
AT_THE_END = (
    "committed_accuracy",
    "live_accuracy",
    "params",
    "committed_params",
    "committed_flops",
)

record_check = partial(
    check,
    severity="critical",
    layer="record",
    post_hoc=True,
    threshold="any difference",
    source="derived again from the published tables",
    fix="Restore the files with dvc checkout, or run the stage again; do not use the run before.",
)


@record_check(
    id="X6",
    title="Files do not match their seals",
    question="Have params, data, checkpoints, telemetry and results still the hashes that each stage recorded?",
    needs=("provenance",),
    threshold="a hash that differs from the seal of the stage that made or read the file, or a seal that is missing",
    source="Huang et al. 2022, recommendation on reproducibility",
)
def _seals_hold(run: RunRecord) -> Outcome:
    assert run.provenance is not None  # stated in needs
    # Every other check of the record trusts these files, so that this one is read first when several fail.
    damaged = list(run.provenance.damaged)
    evaluation = run.evaluation or run.gym
    if (
        evaluation
        and run.provenance.data_sha256
        and evaluation.data_sha256 != run.provenance.data_sha256
    ):
        damaged.append("evaluation.json: data_sha256 is not the training run's")
    if damaged:
        return failed(f"{len(damaged)} mismatches", None, [{"file": name} for name in damaged])
    # No damage and no seal is not the same as whole: without a hash nothing was compared.
    if not run.provenance.sealed:
        return undecided("no stage left a seal")
    return passed(f"{', '.join(run.provenance.sealed)}: every hash holds")


# --- tables of training ----------------------------------------------------------------------------------------------


def _rollouts(run: RunRecord) -> Iterator[tuple[int, Steps]]:
    """Yield each iteration and its steps."""
    columns = run.steps.columns
    for rows in rows_of_iterations(run):
        yield (
            int(columns["iteration"][rows[0]]),
            {name: values[rows] for name, values in columns.items()},
        )


def _differences(expected: Mapping[str, Array], run: RunRecord, iteration: int) -> list[Evidence]:
    """Compare expected columns of the episodes of an iteration with the recorded ones."""
    # Exactly one row, or there is nothing to compare with.
    rows = np.flatnonzero(run.episodes.column("iteration") == iteration)
    if len(rows) != 1:
        what = "recorded twice" if len(rows) else "no episodes"
        return [{"what": what, "iteration": iteration}]
    problems: list[Evidence] = []
    for name, values in expected.items():
        recorded = run.episodes.column(name)[rows[0]]
        equal = np.isclose(recorded, values, rtol=STORED, atol=STORED, equal_nan=True)
        # One host is evidence enough: the same mistake is usually made for all of them.
        for env in np.flatnonzero(~equal)[:1]:
            numbers = {"recorded": float(recorded[env]), "expected": float(values[env])}
            problems.append({"what": name, "iteration": iteration, "env": int(env), **numbers})
    return problems


@record_check(
    id="C1",
    subject="growth",
    title="Episodes are not what their steps add up to",
    question="Do returns, lengths, counts and last measurements of episodes follow from their steps?",
    needs=(
        *(f"steps.{name}" for name in ("reward", "valid", "effective_op", "stage", "panicked")),
        *(f"steps.{name}" for name in AT_THE_END),
        *(f"episodes.{name}" for name in ("return", "length", "germinated", "fossilized")),
        *(f"episodes.{name}" for name in ("panicked", *AT_THE_END)),
    ),
)
def _episodes_add_up(run: RunRecord) -> Outcome:
    problems: list[Evidence] = []
    for iteration, steps in _rollouts(run):
        # Rows after a rollback are recorded, but are no experience: they count in no sum.
        valid = steps["valid"]
        germinated = (steps["effective_op"] == Op.GERMINATE) & valid
        expected = {
            "return": np.where(valid, steps["reward"], 0.0).sum(axis=0),
            "length": valid.sum(axis=0),
            "germinated": germinated.sum(axis=0),
            "fossilized": (steps["stage"][-1] == Stage.FOSSILIZED).sum(axis=1),
            "panicked": np.logical_or.reduce(steps["panicked"], axis=0),
            # The last row, valid or not: an episode records the last measurement also of a host that was rolled back.
            **{name: steps[name][-1] for name in AT_THE_END},
        }
        problems += _differences(expected, run, iteration)
    return judged(problems, f"{run.episodes.column('return').size} episodes")


@record_check(
    id="Y1",
    subject="gym",
    title="Episodes are not what their steps add up to",
    question="Do numbers, returns and lengths of episodes follow from the steps, from the first iteration on?",
    needs=(
        "steps.reward",
        "steps.starts",
        "steps.terminated",
        "steps.truncated",
        "episodes.episodes",
        "episodes.return",
        "episodes.length",
    ),
    threshold="any difference, or a start that does not follow an end",
)
def _gym_episodes_add_up(run: RunRecord) -> Outcome:
    problems: list[Evidence] = []
    # Episodes go on from one rollout to the next.
    running = np.zeros((2, run.episodes.column("return").shape[1]))
    ended = np.ones(running.shape[1], dtype=bool)
    for iteration, steps in _rollouts(run):
        # An episode begins where another has ended and nowhere else; before the first iteration all have ended.
        ends = steps["terminated"] | steps["truncated"]
        if (steps["starts"] != np.concatenate((ended[None], ends[:-1]))).any():
            problems.append({"what": "a start without an end before it", "iteration": iteration})
        ended = ends[-1]
        problems += _differences(tally_episodes(steps, running), run, iteration)
    return judged(problems, f"{int(np.nansum(run.episodes.column('episodes')))} episodes")


@record_check(
    id="P5",
    subject="growth",
    title="Reward components do not add up to the reward",
    question="Is the reward of every step the sum of its components?",
    needs=("steps.reward", "steps.components", "steps.valid"),
    post_hoc=False,  # training on a wrong reward can be stopped
    fix="Pay nothing outside the registered reward terms.",
)
def _components_add_up(run: RunRecord) -> Outcome:
    # A term outside of the components would be paid, and no table or figure would show it.
    components = run.steps.below("components")
    difference = np.abs(run.steps.column("reward") - np.sum(list(components.values()), axis=0))
    # Rows after a rollback are no experience.
    difference = np.where(run.steps.column("valid"), difference, 0.0)
    # Not greater than: a NaN is neither small nor large, and must not pass.
    evidence = first_steps(run, ~(difference <= STORED), "difference", difference)
    return judged(
        evidence, f"largest difference {np.max(difference):.2g} over {len(components)} components"
    )


# Masks make every sampled action legal, so only a gate may keep an op from taking effect.
@record_check(
    id="M1",
    subject="growth",
    title="An illegal action was sampled or executed",
    question="Did every sampled op take effect unless a gate refused it?",
    needs=("steps.op", "steps.effective_op", "steps.gate", "steps.gate_passed", "steps.valid"),
    post_hoc=False,
    threshold="a valid step whose effective op is not the sampled one (WAIT where a gate refused)",
    source="Huang and Ontanon 2020 (invalid action masking); sb3-contrib tests",
    fix="Build masks from the lifecycle's own table, and replay with exactly the masks used when acting.",
)
def _actions_are_legal(run: RunRecord) -> Outcome:
    column = run.steps.column
    # A refused op becomes WAIT; gate is negative where no gate was asked.
    refused = (column("gate") >= 0) & ~column("gate_passed")
    expected = np.where(refused, int(Op.WAIT), column("op"))
    bad = column("valid") & (expected != column("effective_op"))
    return judged(_ops(run, bad), f"{int(bad.sum())} of {int(column('valid').sum())} decisions")


@record_check(
    id="M2",
    subject="growth",
    title="Validity of rows does not follow the rollbacks",
    question="Is every row valid up to a rollback and none after it?",
    needs=("steps.valid", "steps.panicked", "steps.op"),
    post_hoc=False,
    severity="high",
    threshold="a valid row after its host's rollback, or an invalid row without one before it",
    source="cleanrl#198, skrl#224 (rows of ended episodes leak into advantages)",
    fix="Mask the rows after a rollback, and only those, out of the rollout.",
)
def _rows_end_at_rollbacks(run: RunRecord) -> Outcome:
    valid = run.steps.column("valid")
    panicked = run.steps.column("panicked")
    # The step of the rollback itself was played and is valid; from the next one on none is.
    expected = np.ones_like(valid)
    for rows in rows_of_iterations(run):
        expected[rows[1:]] = ~np.logical_or.accumulate(panicked[rows[:-1]])
    bad = valid != expected
    return judged(_ops(run, bad), f"{int(bad.sum())} rows whose validity is wrong")


def _ops(run: RunRecord, bad: Array) -> list[Evidence]:
    names = np.array([op.name for op in Op])
    return first_steps(run, bad, "op", names[run.steps.column("op")])


@record_check(
    id="C5",
    title="Counters do not agree with what was done",
    question="Are environment steps, samples, optimiser steps and rows counted correctly, and schedules followed?",
    needs=(
        "checkpoints",
        "steps.valid",
        *(f"updates.{name}" for name in ("env_steps", "samples", "updates", "steps")),
        *(f"updates.{name}" for name in SCHEDULES),
    ),
)
def _counts_agree(run: RunRecord) -> Outcome:
    assert run.checkpoints is not None  # stated in needs
    # Derived from the rows of the tables: counters are added up in training and could drift from what was done.
    updates = run.updates
    valid = int(sum(steps["valid"].sum() for _, steps in _rollouts(run)))
    optimiser_steps = updates.column("steps")
    # Whole numbers, recorded and expected, by name.
    counts: dict[str, tuple[float, float]] = {
        "environment steps": (updates.column("env_steps")[-1], valid),
        "updates": (updates.column("updates")[-1], (optimiser_steps > 0).sum()),
        "iterations": (len(updates), run.params.train.iterations),
        "samples": (updates.column("samples").sum(), valid),
    }
    # At every update and not only at the end, where two errors could cancel out.
    steps_apart = np.abs(updates.column("env_steps") - np.cumsum(updates.column("samples")))
    counts["environment steps that are no samples"] = (steps_apart.max(), 0)
    # The state has counters of its own: a resume from a stale one would show here.
    latest = run.checkpoints.get("latest")
    if latest is not None:
        counts["Adam's steps"] = (float(latest.tensors["ppo/adam.step"]), optimiser_steps.sum())
        counts["environment steps of the checkpoint"] = (
            float(latest.manifest.scalars["env_steps"] or 0),
            valid,
        )
        if "normalizers/observation.count" in latest.tensors:
            counts["rows of the normaliser"] = (
                float(latest.tensors["normalizers/observation.count"]),
                valid,
            )
    wrong = {name: pair for name, pair in counts.items() if pair[0] != pair[1]}
    # Schedules, where they are wrong first; NaN is expected where the horizon is unknown.
    for name, expected in zip(SCHEDULES, _schedules(run), strict=True):
        recorded = updates.column(name)
        equal = np.isclose(recorded, expected, rtol=STORED, atol=0.0) | np.isnan(expected)
        if not equal.all():
            first = int(equal.argmin())
            wrong[name] = (recorded[first], expected[first])
    problems: list[Evidence] = [
        {"what": name, "recorded": float(recorded), "expected": float(expected)}
        for name, (recorded, expected) in wrong.items()
    ]
    return judged(problems, f"{len(counts)} counts, {int(optimiser_steps.sum())} optimiser steps")


def _schedules(run: RunRecord) -> tuple[Values, Values]:
    """Derive the entropy coefficient and the learning rate of each update from the params."""
    train = run.params.train
    # Without a horizon they fall over all iterations, and a run may have been made longer on the way.
    iterations = run.updates.column("iteration")
    horizon = np.full(len(iterations), np.nan)
    starts = run.provenance.origin.lengths if run.provenance and not train.horizon else ()
    for begin, length in starts or ((0, train.horizon or train.iterations),):
        horizon[iterations >= begin] = length
    # Only updates that took a step count.
    stepped = run.updates.column("steps") > 0
    # The schedule of an update is that of the steps taken before it, so that the first has progress 0.
    before = np.concatenate(([0], np.cumsum(stepped)[:-1]))
    progress = np.minimum(1.0, before / np.maximum(1, horizon - 1))
    # The entropy coefficient reaches its final value, while the learning rate keeps a rest to learn with.
    falls = RATE_FALLS if train.ppo.learning_rate_schedule == "linear" else 0.0
    return (
        train.ppo.entropy_coef + progress * (train.ppo.entropy_coef_final - train.ppo.entropy_coef),
        train.ppo.learning_rate * (1.0 - falls * progress),
    )


def _best_is_best(run: RunRecord, column: str) -> Outcome:
    assert run.checkpoints is not None  # stated in needs
    if losses := run.found_at_starts(LOST_BEST):
        return undecided(f"a better checkpoint was lost on the way: {losses[-1].message}")
    # Validations have the mean score of their episodes.
    episodes = zip(
        run.validations.column("iteration").tolist(),
        run.validations.column(column).tolist(),
        strict=True,
    )
    means = {iteration: sum(scores) / len(scores) for iteration, scores in episodes}
    updates = zip(
        run.updates.column("iteration").tolist(),
        run.updates.column("validation_accuracy"),
        strict=True,
    )
    # NaN is expected of iterations without validation, and a mean where there was none is a difference.
    recorded = {iteration: float(score) for iteration, score in updates}
    problems: list[Evidence] = [
        {"what": "validation_accuracy", "iteration": iteration, "recorded": score}
        for iteration, score in recorded.items()
        if not np.isclose(
            score, means.get(iteration, np.nan), rtol=STORED, atol=STORED, equal_nan=True
        )
    ]
    # The first of the highest that training recorded: another order of summation could break a tie differently.
    best = 1 + max(recorded, key=lambda iteration: np.nan_to_num(recorded[iteration], nan=-np.inf))
    # Numbers of checkpoints count iterations done, one more than the iteration that was validated.
    expected = {"best": best, "latest": len(recorded)}
    for name, checkpoint in run.checkpoints.items():
        if checkpoint.manifest.iteration != expected[name]:
            problems.append(
                {"what": f"iteration of {name}", "recorded": checkpoint.manifest.iteration}
            )
    return judged(problems, f"iteration {best} of {len(recorded)}, {len(means)} validations")


# Growth is chosen by its score, which has the price of parameters taken off; Gymnasium by its return.
CHOSEN_BY = {"C6": ("growth", "score"), "Y2": ("gym", "return")}
for check_id, (subject, column) in CHOSEN_BY.items():
    record_check(
        id=check_id,
        subject=subject,
        title="The best checkpoint is not the best",
        question="Is the best checkpoint the one with the highest mean score in validation?",
        needs=("checkpoints", "updates.validation_accuracy", f"validations.{column}"),
        threshold="a mean that is not that of its episodes, or another iteration than that of the first maximum",
        complete=False,  # validation is not played in every iteration
    )(partial(_best_is_best, column=column))


# --- data ------------------------------------------------------------------------------------------------------------


@record_check(
    id="C7",
    subject="growth",
    title="Training and validation tasks are mixed up",
    question="Were training episodes played on training tasks, and validation episodes on validation tasks?",
    needs=("meta", "episodes.task", "validations.task"),
    threshold="an episode on a task of another group; training tasks that are not dealt out in turn",
)
def _tasks_apart(run: RunRecord) -> Outcome:
    assert run.meta is not None  # stated in needs
    # Each group of tasks for its purpose; a single task serves all.
    purposes: dict[TaskGroup, Table] = {"train": run.episodes, "val": run.validations}
    problems: list[Evidence] = [
        {"what": f"task of a {group} episode", "task": task}
        for group, table in purposes.items()
        for task in np.setdiff1d(table.column("task"), run.meta.of_group(group)).tolist()
    ]
    # In turn: the tasks of consecutive hosts and iterations follow each other.
    tasks = run.episodes.column("task")
    first = run.episodes.column("iteration")[:, None] * tasks.shape[1]
    turns = (tasks - first - np.arange(tasks.shape[1])) % len(run.meta.of_group("train"))
    if len(np.unique(turns)) > 1:
        problems.append({"what": "tasks that are not dealt out in turn"})
    return judged(problems, f"{len(np.unique(tasks))} training tasks")


@record_check(
    id="C11",
    subject="growth",
    title="A sample is in two splits of its task",
    question="Is no sample in two of the training, validation and test splits of its task?",
    needs=("splits",),
    threshold="a sample that is in another split too",
    source="definition of splits",
    fix="Run simic prepare again.",
)
def _splits_apart(run: RunRecord) -> Outcome:
    assert run.splits is not None  # stated in needs
    problems: list[Evidence] = []
    compared = 0
    # Splits of one group serve the same tasks; those of different groups may share samples.
    for group, splits in run.splits.items():
        for task in range(next(iter(splits.values())).tasks):
            # By bytes, since two samples that agree in every bit are one sample, whatever they are called.
            samples = {name: _samples(split, task) for name, split in splits.items()}
            firsts = equal_rows(np.concatenate([*samples.values()])).numpy()
            begin = 0
            for name, of_split in samples.items():
                own = firsts[begin : begin + len(of_split)]
                if copies := len(np.unique(own[own < begin])):
                    problems.append({"what": f"{group}: {name}", "task": task, "samples": copies})
                begin += len(of_split)
            compared += begin
    return judged(problems, f"{compared:,} samples")


def _samples(split: Dataset, task: int) -> Array:
    """Select the samples of a task, without those clipped in every column: these may be equal by that."""
    # Clipping maps far values to one bound, and with few columns two different samples may meet there.
    samples = split.x[task * len(split) : (task + 1) * len(split)].flatten(1)
    clipped = (samples.abs() == CLIP_DEVIATIONS).all(dim=1) & samples.is_floating_point()
    return (samples[~clipped] if clipped.any() else samples).numpy(force=True)


# --- results ---------------------------------------------------------------------------------------------------------


@record_check(
    id="X8",
    subject="growth",
    title="The evaluation does not follow from its tables",
    question="Do headroom.json and evaluation.json belong together, and do all numbers follow from values per host?",
    needs=("headroom", "evaluation"),
    threshold="parts of another run, or a number that does not follow",
    source="Agarwal et al. 2021 (rliable): claims rest on the scores of all runs",
)
def _evaluation_follows(run: RunRecord) -> Outcome:
    assert run.headroom is not None and run.evaluation is not None  # stated in needs
    shared = ("data_sha256", "tasks", "rows", "host")
    # Without the same lengths there is nothing to derive from: a long list of differences would hide that.
    if run.headroom.others.keys() != run.evaluation.others.keys():
        return failed(
            "headroom and evaluation are of other lengths of episodes", None, [{"number": "others"}]
        )
    derived = {
        "headroom.json": (partial(derived_headroom, run.headroom), run.headroom),
        "evaluation.json": (partial(derived_evaluation, run), run.evaluation),
    }
    return _follow(run, run.headroom, run.evaluation, shared, derived)


@record_check(
    id="Y3",
    subject="gym",
    title="The evaluation does not follow from its episodes",
    question="Do means, intervals and differences follow from the returns, and are headroom and evaluation of one run?",
    needs=("gym", "gym_headroom"),
    threshold="parts of another run, or a number that does not follow",
)
def _gym_evaluation_follows(run: RunRecord) -> Outcome:
    assert run.gym_headroom is not None and run.gym is not None  # stated in needs
    derived = {"evaluation.json": (partial(derived_gym, run), run.gym)}
    return _follow(run, run.gym_headroom, run.gym, ("data_sha256", "peer"), derived)


def _follow(
    run: RunRecord,
    headroom: HeadroomReport | GymHeadroom,
    evaluation: Evaluation | GymEvaluation,
    shared: Sequence[str],
    derived: Mapping[str, tuple[Callable[[], Frozen], Frozen]],
) -> Outcome:
    """Judge whether headroom, evaluation and checkpoint are of one run, and whether every number follows.

    Args:
        run: the whole record.
        headroom: that of the run.
        evaluation: likewise.
        shared: fields that both have.
        derived: by file how to derive it again, and what it says.
    """
    # Parts of another run would make every number differ: name the parts.
    strangers = [name for name in shared if getattr(headroom, name) != getattr(evaluation, name)]
    # The evaluation repeats the headroom's policies, host by host: other values there show that the two are not of one
    # run.
    baselines = {
        name: policy.per_seed
        for name, policy in evaluation.policies.items()
        if name in headroom.policies
    }
    if headroom.policies != baselines:
        strangers.append("policies")
    # The result of an earlier training with the same data and hosts may differ in its checkpoint alone.
    checkpoint = (run.checkpoints or {}).get(evaluation.checkpoint)
    if checkpoint is not None and checkpoint.manifest.iteration != evaluation.checkpoint_iteration:
        strangers.append("checkpoint_iteration")
    if strangers:
        evidence = [{"number": name} for name in strangers]
        return failed(f"{len(strangers)} parts belong to another run", None, evidence)
    # The same functions on the same values give the same numbers.
    wrong = [
        f"{file}: {place}"
        for file, (derive, recorded) in derived.items()
        for place in apart(derive().model_dump(), recorded.model_dump())
    ]
    return judged([{"number": place} for place in wrong], f"{len(wrong)} numbers differ")


@record_check(
    id="X7",
    title="The numbers that are followed from run to run do not follow from the tables",
    question="Are reports/metrics.json and telemetry/metrics.json what the tables come to?",
    needs=("metrics",),
    threshold="a number that does not follow",
)
def _metrics_follow(run: RunRecord) -> Outcome:
    assert run.metrics is not None  # stated in needs
    # No numbers and no tables agree, but prove nothing.
    derived = derived_metrics(run)
    if not (derived or run.metrics):
        return undecided("there are neither tables nor numbers")
    # A file without its tables, and tables without their file, differ as a whole.
    wrong = list(apart(derived, run.metrics))[:MOST_EVIDENCE]
    count = sum(len(numbers) for numbers in run.metrics.values())
    return judged([{"number": place} for place in wrong], f"{count} numbers")
