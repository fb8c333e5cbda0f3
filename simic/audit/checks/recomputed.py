"""Recomputation of what training recorded from tables and checkpoints; any difference is a fault."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from simic import rng
from simic.audit import advantages as derived
from simic.audit.advantages import RunningMoments
from simic.audit.checks.base import MOST_EVIDENCE, Outcome, Values, check, episodes, judged, undecided
from simic.audit.findings import Evidence, number
from simic.audit.recompute import FOSSILIZED, GERMINATE, Steps, reward_components
from simic.audit.record import RunRecord
from simic.data.batches import Dataset
from simic.telemetry.columns import Array
from simic.training.resume import LOST_BEST

POSITIVE = 2**31  # a drawn word is used without its sign
SUM = 1e-6  # relative and absolute: float64 in another order, from what was measured in float32
SCALED = 1e-4  # relative to the largest: a float32 recursion over an episode
LEAST_RETURN = 0.1  # scaled
EXPLAINED = 10.0  # size of an explained variance: a ratio of small numbers
RATE_FALLS = 0.8  # share of a linear learning rate that is gone in the last update
AT_THE_END = ("committed_accuracy", "live_accuracy", "params", "committed_params", "committed_flops")

# Needs the checkpoints, without which there is no run to prove.
recomputed = partial(
    check,
    severity="critical",
    layer="recompute",
    post_hoc=True,
    source="recomputed here from the published tables",
    fix="The record is not of the run it claims to be of, or the code that made it is wrong; do not use the run.",
)


class Pair(NamedTuple):
    """Hold a recorded number beside the expected one; the tolerance is relative to ``scale`` or the larger of both."""

    what: str
    recorded: float
    expected: float
    tolerance: float = SUM
    scale: float = 1.0

    @property
    def agree(self) -> bool:
        """Tell whether both are NaN, or near enough."""
        if np.isnan(self.recorded) and np.isnan(self.expected):
            return True
        size = max(self.scale, abs(self.recorded), abs(self.expected))
        return bool(abs(self.recorded - self.expected) <= self.tolerance * size)


def differing(pairs: Iterable[Pair], **place: int) -> list[Evidence]:
    """Return evidence of the pairs that do not agree, with their place."""
    return [
        {"what": each.what, **place, "recorded": each.recorded, "expected": each.expected}
        for each in pairs
        if not each.agree
    ]


def concluded(problems: list[Evidence], measured: str) -> Outcome:
    """Return a finding that counts the problems, else a pass."""
    return judged(problems, f"{len(problems)} or more differences" if problems else measured)


def rollouts(run: RunRecord) -> Iterator[tuple[int, Steps]]:
    """Yield each iteration and its steps."""
    columns = run.steps.columns
    for rows in episodes(run):
        yield int(columns["iteration"][rows[0]]), {name: values[rows] for name, values in columns.items()}


@recomputed(
    id="C1",
    subject="growth",
    title="Episodes are not what their steps add up to",
    question="Do returns, lengths, counts and last measurements of episodes follow from their steps?",
    needs=("checkpoints", "steps.reward", "episodes.return"),
    threshold=f"any count that differs, or a return or an accuracy by more than {number(SUM)}",
)
def _episodes_add_up(run: RunRecord) -> Outcome:
    problems: list[Evidence] = []
    iterations = run.episodes.column("iteration").tolist()
    for iteration, steps in rollouts(run):
        if iteration not in iterations:
            problems.append({"what": "no episodes", "iteration": iteration})
            continue
        row = iterations.index(iteration)
        for name, expected in _expected(steps).items():
            recorded = run.episodes.column(name)[row]
            equal = np.isclose(recorded, expected, rtol=SUM, atol=SUM, equal_nan=True)
            for env in np.flatnonzero(~equal)[:1]:
                said = {"recorded": float(recorded[env]), "expected": float(expected[env])}
                problems.append({"what": name, "iteration": iteration, "env": int(env), **said})
    return concluded(problems, f"{len(iterations)} x {run.episodes.column('return').shape[1]} episodes add up")


def _expected(steps: Steps) -> dict[str, Array]:
    """Return the expected columns of episodes, ``[E]``."""
    valid, stage = steps["valid"], steps["stage"]
    began = (steps["effective_op"] == GERMINATE) & valid
    return {
        "return": np.where(valid, steps["reward"], 0.0).sum(axis=0),
        "length": valid.sum(axis=0),
        "germinated": began.sum(axis=0),
        "fossilized": (stage[-1] == FOSSILIZED).sum(axis=1),
        "host_grad_norm": np.where(valid, steps["host_grad_norm"], 0.0).sum(axis=0) / valid.sum(axis=0),
        "seed_grad_norm": _mean_of_seeds(steps["seed_grad_norm"], valid),
        "panicked": np.logical_or.reduce(steps["panicked"], axis=0),
        **{name: steps[name][-1] for name in AT_THE_END},
    }


def _mean_of_seeds(norms: Array, valid: Array) -> Array:
    """Return the mean over steps and slots in which a seed trained, ``[E]``; NaN where none did."""
    trained = valid[..., None] & ~np.isnan(norms)
    count = trained.sum(axis=(0, 2))
    total = np.where(trained, norms, 0.0).sum(axis=(0, 2))
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


@recomputed(
    id="C2",
    subject="growth",
    title="Rewards do not follow from the states",
    question="Do the components of the reward follow from stages, ops, parameters and accuracies?",
    needs=("params", "steps.reward", "steps.stage"),
    post_hoc=False,  # training on a wrong reward can be stopped
    threshold=f"a component that differs by more than {number(SUM)} at any step",
)
def _components_follow(run: RunRecord) -> Outcome:
    host_params = int(run.steps.column("committed_params").min())  # no episode begins with a fossilized seed
    paid, problems, compared = run.steps.below("components"), list[Evidence](), set[str]()
    for iteration, steps in rollouts(run):
        for name, values in reward_components(steps, run.params.train, host_params).items():
            if name in paid:
                compared.add(name)
                known = steps["valid"] & np.isfinite(values)
                at = np.argwhere(known & ~(np.abs(steps[f"components.{name}"] - values) <= SUM))[:MOST_EVIDENCE]
                problems += [{"what": name, "iteration": iteration, "step": int(t) + 1, "env": int(e)} for t, e in at]
    if not compared:
        return undecided(f"no component of mode {run.params.train.reward.mode} can be told from the record alone")
    return concluded(problems, f"{', '.join(sorted(compared))} at {run.steps.column('reward').size} steps")


@recomputed(
    id="C3",
    title="Advantages or returns are not what the rewards give",
    question="Do advantages, returns, the scale of rewards and explained variance follow from the recorded rewards?",
    needs=("checkpoints", "params", "steps.reward", "steps.value", "updates.return_mean"),
    threshold=f"a moment that differs by more than {number(SCALED)} of the largest value",
)
def _advantages_follow(run: RunRecord) -> Outcome:
    train = run.params.train
    problems: list[Evidence] = []
    compared = 0
    scale = RunningMoments()
    total = None
    clipped = "components.shaping" not in run.steps  # not where shaping is to telescope
    rows = {int(iteration): row for row, iteration in enumerate(run.updates.column("iteration"))}
    for iteration, steps in rollouts(run):
        # Scale the rewards as training did: by the deviation of discounted returns up to this iteration.
        valid = steps["valid"]
        rewards = np.where(valid, steps["reward"].astype(np.float32).astype(np.float64), 0.0)
        starts = steps.get("starts")
        # Only episodes of a Gymnasium environment go on from one rollout to the next.
        sums = derived.discounted_returns(rewards, train.ppo.gamma, starts, None if starts is None else total)
        total = sums[-1]
        if train.ppo.normalize_rewards:
            scale = scale.with_values(sums[valid])
            rewards = rewards / scale.scale
            if clipped:
                rewards = rewards.clip(-derived.REWARD_CLIP, derived.REWARD_CLIP)
        if iteration not in rows or len(rewards) != _length(run, iteration):
            problems.append({"what": "no update, or steps are missing", "iteration": iteration})
            continue
        # Compare the moments of advantages and returns with those that the update recorded.
        pairs = _moments(run, rows[iteration], steps, rewards)
        compared += len(pairs)
        problems += differing(pairs, iteration=iteration)
    latest = (run.checkpoints or {}).get("latest")
    if latest is not None and train.ppo.normalize_rewards:
        recorded = {name: float(latest.tensors[f"normalizers/reward.{name}"]) for name in ("count", "mean", "m2")}
        expected = {"count": scale.count, "mean": scale.mean, "m2": scale.squares}
        problems += differing(Pair(f"scale of rewards: {n}", recorded[n], expected[n], SCALED) for n in recorded)
    return concluded(problems, f"{compared} moments and the final scale")


def _length(run: RunRecord, iteration: int) -> int:
    """Compute how many steps the episodes of an iteration have."""
    train = run.params.train
    if run.params.prepare.is_gym or isinstance(train.episode_steps, int):
        return train.longest_episode
    low, high = train.episode_steps
    drawn = rng.bits(rng.key(run.params.rng_seed, rng.Purpose.EPISODE_LENGTH, iteration))
    return low + int(drawn) % POSITIVE % (high - low + 1)


def _moments(run: RunRecord, row: int, steps: Steps, rewards: Array) -> list[Pair]:
    """Return each moment of an update, which is that row of the table, beside the recorded one; none where the value
    after a host's last step counts, which is not recorded.
    """
    train = run.params.train
    valid = steps["valid"]
    values = np.where(valid, steps["value"].astype(np.float64), 0.0)
    if run.params.prepare.is_gym:
        terminated = steps["terminated"]
        truncated = steps["truncated"]
        next_values = steps["next_value"].astype(np.float64)
    elif train.episode_end == "terminate":
        terminated = steps["panicked"].copy()
        terminated[-1] = True
        truncated = np.zeros_like(terminated)
        next_values = np.concatenate((values[1:], np.zeros_like(values[:1])))
    else:
        return []
    gained, returns = derived.advantages(
        rewards, values, next_values, terminated, truncated, valid, train.ppo.gamma, train.ppo.gae_lambda
    )
    moments = derived.moments(gained[valid], returns[valid], values[valid])
    units = {"value_mean": 1.0, "explained_variance": EXPLAINED}
    pairs = []
    for name, value in moments.items():
        largest = max(moments.get(f"{name.partition('_')[0]}_max_abs", 0.0), LEAST_RETURN)
        if not np.isnan(value):
            recorded = float(run.updates.column(name)[row])
            pairs.append(Pair(name, recorded, value, SCALED, units.get(name, largest)))
    return pairs


@recomputed(
    id="C5",
    title="Counters do not agree with what was done",
    question="Are environment steps, samples, optimiser steps and rows counted correctly, and schedules followed?",
    needs=("checkpoints", "params", "steps.valid", "updates.steps", "updates.env_steps"),
    threshold="any count that differs",
)
def _counts_agree(run: RunRecord) -> Outcome:
    assert run.checkpoints is not None  # stated in needs
    updates, train = run.updates, run.params.train
    valid = int(sum(steps["valid"].sum() for _, steps in rollouts(run)))
    taken = updates.column("steps")
    most = train.ppo.epochs * train.ppo.minibatches
    counts: dict[str, tuple[float, float]] = {
        "environment steps": (updates.column("env_steps")[-1], valid),
        "updates": (updates.column("updates")[-1], (taken > 0).sum()),
        "iterations": (len(updates), train.iterations),
        "samples": (updates.column("samples").sum(), valid),
    }
    apart = np.abs(updates.column("env_steps") - np.cumsum(updates.column("samples")))
    counts["environment steps that are no samples"] = apart.max(), 0
    latest = run.checkpoints.get("latest")
    if latest is not None:
        counts["Adam's steps"] = float(latest.tensors["ppo/adam.step"]), taken.sum()
        counts["environment steps of the checkpoint"] = float(latest.manifest.scalars["env_steps"] or 0), valid
        if "normalizers/observation.count" in latest.tensors:
            counts["rows of the normaliser"] = float(latest.tensors["normalizers/observation.count"]), valid
    if train.policy.core != "none":
        counts["steps of an update, at most"] = max(most, taken.max()), most
    coefficients, rates = _schedules(run)
    for iteration, pair in enumerate(zip(updates.column("entropy_coef"), coefficients, strict=True), start=1):
        counts[f"entropy bonus of iteration {iteration}"] = pair
    recorded = updates.column("learning_rate")
    worst = int(np.abs(recorded - rates).argmax())
    counts["learning rate"] = recorded[worst], rates[worst]
    pairs = [Pair(name, float(each[0]), float(each[1]), SUM, 0.0) for name, each in counts.items()]
    return concluded(differing(pairs), f"{len(pairs)} counts, {int(taken.sum())} optimiser steps")


def _schedules(run: RunRecord) -> tuple[Values, Values]:
    """Return the entropy coefficient and the learning rate of each update by the params; only updates that took a step
    count.
    """
    train, taken = run.params.train, run.updates.column("steps") > 0
    before = np.concatenate(([0], np.cumsum(taken)[:-1]))
    done = np.minimum(1.0, before / max(1, (train.horizon or train.iterations) - 1))
    falls = RATE_FALLS if train.ppo.learning_rate_schedule == "linear" else 0.0
    coefficients = train.ppo.entropy_coef + done * (train.ppo.entropy_coef_final - train.ppo.entropy_coef)
    return coefficients, train.ppo.learning_rate * (1.0 - falls * done)


@recomputed(
    id="C6",
    title="The best checkpoint is not the best",
    question="Is the best checkpoint the one with the highest mean score in validation?",
    needs=("checkpoints", "updates.validation_accuracy", "validations.return"),
    threshold="a mean that is not that of its episodes, or another iteration than that of the first maximum",
    complete=False,  # validation is not played in every iteration
)
def _best_is_best(run: RunRecord) -> Outcome:
    assert run.checkpoints is not None  # stated in needs
    lost = [each for each in run.provenance.origin.findings if each.check == LOST_BEST] if run.provenance else []
    if lost:
        return undecided(f"a better checkpoint was lost on the way: {lost[-1].message}")
    played_for = "return" if run.params.prepare.is_gym else "score"
    iterations, scores = run.validations.column("iteration"), run.validations.column(played_for)
    played = dict(zip(iterations.tolist(), scores.mean(axis=1).tolist(), strict=True))
    recorded = run.updates.column("validation_accuracy").tolist()
    problems: list[Evidence] = []
    for iteration, said in enumerate(recorded):
        mean = Pair("validation_accuracy", said, played.get(iteration, np.nan))
        problems += differing([mean], iteration=iteration)
    best = max(played, key=lambda iteration: (played[iteration], -iteration)) + 1
    expected = {"best": best, "latest": len(recorded)}
    problems += differing(
        Pair(f"iteration of {name}", kept.manifest.iteration, expected[name], 0.0)
        for name, kept in run.checkpoints.items()
    )
    committed = run.validations.columns.get("committed_accuracy", scores)
    if run.params.train.price == 0 and not np.allclose(scores, committed, rtol=SUM, atol=SUM):
        problems.append({"what": "score of validation episodes is not their committed accuracy"})
    return concluded(problems, f"iteration {best} of {len(recorded)}, {len(played)} validations")


@recomputed(
    id="C7",
    subject="growth",
    title="Training and validation tasks are mixed up",
    question="Were training episodes played on training tasks, and validation episodes on validation tasks?",
    needs=("checkpoints", "tasks", "params", "episodes.task", "validations.task"),
    threshold="an episode on a task of another group; training tasks that are not dealt out in turn",
)
def _tasks_apart(run: RunRecord) -> Outcome:
    assert run.tasks is not None  # stated in needs
    groups = [task.group for task in run.tasks]
    if len(groups) == 1:
        return undecided("there is one task, which serves everything")
    problems: list[Evidence] = []
    for table, group in ((run.episodes, "train"), (run.validations, "val")):
        used = np.unique(table.column("task"))
        wrong = [int(task) for task in used if not 0 <= task < len(groups) or groups[task] != group]
        problems += [{"what": f"task of a {group} episode", "task": task} for task in wrong]
    tasks = run.episodes.column("task")
    begun = run.episodes.column("iteration")[:, None] * tasks.shape[1]
    if len(np.unique((tasks - begun - np.arange(tasks.shape[1])) % groups.count("train"))) > 1:
        problems.append({"what": "tasks that are not dealt out in turn"})
    count = len(np.unique(tasks))
    return concluded(problems, f"{count} training tasks, {len(np.unique(run.validations.column('task')))} others")


TASKS, SAMPLES = 64, 512  # the first of them, for the sake of time
CLIPPED = 5.0  # what the values of a table are within
OFF = 1e-3  # mean and deviation of standardised samples


@recomputed(
    subject="growth",
    id="C11",
    title="Training and validation samples do not belong together",
    question="Are samples standardised by the training split alone, and is none in two splits?",
    needs=("checkpoints", "samples"),
    threshold=(
        f"a validation sample that is a training sample; training samples whose mean is not 0 and deviation not 1 "
        f"within {number(OFF)}"
    ),
    source="definition of splits; tolerance ours",
    fix="Run simic prepare again.",
)
def _splits_apart(run: RunRecord) -> Outcome:
    assert run.samples is not None  # stated in needs
    train, val = run.samples
    if not train.x.is_floating_point():
        return undecided("sequences have no labels of their own")
    problems, tasks = list[Evidence](), range(min(train.tasks, TASKS))
    for task in tasks:
        means = len(run.tasks[task].mean) if run.tasks is not None else 0  # none: samples are as they came
        off = _off_standard(train, task, means) if means else 0.0
        if off > OFF:
            problems.append({"what": "standardised by other samples", "task": task, "off": off})
        copies = len(_samples(train, task) & _samples(val, task))
        if copies:
            problems.append({"what": "samples in both splits", "task": task, "samples": copies})
    return concluded(problems, f"{len(tasks)} tasks")


def _samples(split: Dataset, task: int) -> set[bytes]:
    """Return the bytes of the first samples of a task."""
    first = task * len(split)
    return {row.numpy().tobytes() for row in split.x[first : first + min(SAMPLES, len(split))]}


def _off_standard(split: Dataset, task: int, means: int) -> float:
    """Return how far varying channels (or features, with as many ``means``) are from mean 0 and deviation 1; columns
    that were clipped after standardising are left out.
    """
    x = split.x[task * len(split) : (task + 1) * len(split)].double()
    rows = x.transpose(0, 1).flatten(1) if means == x.shape[1] else x.flatten(1).T
    mean, std = rows.mean(1), rows.std(1, correction=0)
    varies = (std > 0) & (rows.abs().amax(1) != CLIPPED)
    return float(torch.cat((mean[varies].abs(), (std[varies] - 1.0).abs(), x.new_zeros(1))).max())
