"""Recomputation of what training recorded from tables and checkpoints; any difference is a fault."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from simic.audit.checks.base import (
    MOST_EVIDENCE,
    Check,
    Outcome,
    Values,
    check,
    episodes,
    failed,
    length_of,
    passed,
    undecided,
)
from simic.audit.findings import Evidence, number
from simic.audit.recompute import rewards
from simic.audit.recompute.rewards import Steps
from simic.audit.record import RunRecord
from simic.certify import ppo as derived
from simic.certify.agent import Scale
from simic.certify.life import FOSSILIZED, GERMINATE
from simic.telemetry.columns import Array
from simic.training.checkpoint import Checkpoint
from simic.training.resume import LOST_BEST

SUM = 1e-6  # relative and absolute: float64 in another order, from what was measured in float32
SCALED = 1e-4  # relative to the largest: a float32 recursion over an episode
LEAST_RETURN = 0.1  # scaled
EXPLAINED = 10.0  # size of an explained variance: a ratio of small numbers
AT_THE_END = ("committed_accuracy", "live_accuracy", "params", "committed_params", "committed_flops")
AGAIN = "recomputed here from the published tables"

Moment = tuple[str, float, float]  # name, expected value, unit
RATE_FALLS = 0.8  # share of a linear learning rate that is gone in the last update


class RecomputedCheck(Check):
    """Recompute numbers that follow from others; needs the checkpoints, without which there is no run to prove."""

    severity = "critical"
    post_hoc = True
    layer = "recompute"
    source = AGAIN
    fix = "The record is not of the run it claims to be of, or the code that made it is wrong; do not use the run."


def rollouts(run: RunRecord) -> Iterator[tuple[int, Steps]]:
    """Yield each iteration and its steps."""
    columns = run.steps.columns
    for rows in episodes(run):
        yield int(columns["iteration"][rows[0]]), {name: values[rows] for name, values in columns.items()}


def host_params(run: RunRecord) -> int:
    """Return the parameters of the bare host: no episode begins with a fossilized seed."""
    return int(run.steps.column("committed_params").min())


def places(bad: Array, iteration: int, what: str) -> list[Evidence]:
    """Return evidence of the first bad places ``[T, E]``."""
    at = np.argwhere(bad)[:MOST_EVIDENCE]
    return [{"what": what, "iteration": iteration, "step": int(t) + 1, "env": int(e)} for t, e in at]


def concluded(problems: list[Evidence], measured: str) -> Outcome:
    """Return a finding if there are problems, else a pass."""
    said = f"{len(problems)} or more differences" if problems else measured
    return failed(said, None, tuple(problems[:MOST_EVIDENCE])) if problems else passed(said)


def close(first: float, second: float, tolerance: float, scale: float = 1.0) -> bool:
    """Tell whether both are NaN, or differ by at most the tolerance times the larger of ``scale`` and the two."""
    if np.isnan(first) and np.isnan(second):
        return True
    return abs(first - second) <= tolerance * max(scale, abs(first), abs(second))


@check
class EpisodesAddUp(RecomputedCheck):
    """Check C1: an episode is the sum of its steps."""

    id = "C1"
    title = "Episodes are not what their steps add up to"
    question = "Do returns, lengths, counts and last measurements of episodes follow from their steps?"
    needs = ("checkpoints", "steps.reward", "episodes.return")
    threshold = f"any count that differs, or a return or an accuracy by more than {number(SUM)}"
    passes_when = "all follow"

    def examine(self, run: RunRecord) -> Outcome:
        problems: list[Evidence] = []
        iterations = run.episodes.column("iteration").tolist()
        for iteration, steps in rollouts(run):
            if iteration not in iterations:
                problems.append({"what": "no episodes", "iteration": iteration})
                continue
            row = iterations.index(iteration)
            for name, expected in self._expected(steps).items():
                recorded = run.episodes.column(name)[row]
                equal = np.isclose(recorded, expected, rtol=SUM, atol=SUM, equal_nan=True)
                for env in np.flatnonzero(~equal)[:1]:
                    said = {"recorded": float(recorded[env]), "expected": float(expected[env])}
                    problems.append({"what": name, "iteration": iteration, "env": int(env), **said})
        return concluded(problems, f"{len(iterations)} x {run.episodes.column('return').shape[1]} episodes add up")

    def _expected(self, steps: Steps) -> dict[str, Array]:
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


@check
class ComponentsFollow(RecomputedCheck):
    """Check C2: components of the reward follow from the recorded states."""

    id = "C2"
    title = "Rewards do not follow from the states"
    question = "Do the components of the reward follow from stages, ops, parameters and accuracies?"
    needs = ("checkpoints", "params", "steps.reward", "steps.stage")
    threshold = f"a component that differs by more than {number(SUM)} at any step"
    passes_when = "all components that the record determines are as defined"

    def examine(self, run: RunRecord) -> Outcome:
        train, host = run.params.train, host_params(run)
        names = [name for name in run.steps.below("components") if name in rewards.KNOWN]
        if not names:
            return undecided(f"no component of mode {train.reward.mode} can be told from the record alone").of(0)
        problems: list[Evidence] = []
        for iteration, steps in rollouts(run):
            for name in names:
                problems += places(~(rewards.deviation(name, steps, train, host) <= SUM), iteration, name)
        return concluded(problems, f"{', '.join(names)} at {run.steps.column('reward').size} steps")


@check
class AdvantagesFollow(RecomputedCheck):
    """Check C3: advantages, returns and scales follow from rewards and values."""

    id = "C3"
    title = "Advantages or returns are not what the rewards give"
    question = "Do advantages, returns, the scale of rewards and explained variance follow from the recorded rewards?"
    needs = ("checkpoints", "params", "steps.reward", "steps.value", "updates.return_mean")
    threshold = f"a moment that differs by more than {number(SCALED)} of the largest value"
    passes_when = "scale, generalised advantages and returns give the recorded moments"

    def examine(self, run: RunRecord) -> Outcome:
        ppo, problems, compared = run.params.train.ppo, list[Evidence](), 0
        nothing = torch.zeros(1, dtype=torch.float64)
        scale = Scale(0.0, nothing, nothing) if ppo.normalize_rewards else None
        clipped = "components.shaping" not in run.steps  # not where shaping is to telescope
        rows = {int(iteration): row for row, iteration in enumerate(run.updates.column("iteration"))}
        for iteration, steps in rollouts(run):
            valid = torch.from_numpy(steps["valid"])
            paid = torch.from_numpy(steps["reward"]).float().double().where(valid, 0.0)
            scale, scaled, _ = derived.scaled(paid, valid, scale, ppo.gamma, clipped)
            if iteration not in rows or len(paid) != length_of(run, iteration):
                problems.append({"what": "no update, or steps are missing", "iteration": iteration})
                continue
            for name, expected, size in self._moments(run, steps, scaled, valid):
                recorded = float(run.updates.column(name)[rows[iteration]])
                compared += 1
                if not close(recorded, expected, SCALED, size):
                    said = {"recorded": recorded, "expected": expected}
                    problems.append({"what": name, "iteration": iteration, **said})
        problems += self._state(run, scale)
        return concluded(problems, f"{compared} moments and the final scale")

    def _moments(self, run: RunRecord, steps: Steps, scaled: Tensor, valid: Tensor) -> Iterator[Moment]:
        """Yield name, expected value and unit of each moment; of truncated episodes the last value is not recorded."""
        train, ended = run.params.train, torch.from_numpy(steps["panicked"].copy())
        if train.episode_end != "terminate":
            return
        ended[-1] = True
        values = torch.from_numpy(steps["value"].astype(np.float64)).where(valid, 0.0)
        following = torch.cat((values[1:], torch.zeros_like(values[:1])))
        gained, returns = derived.advantages(
            scaled, values, following, ended, torch.zeros_like(ended), valid, train.ppo.gamma, train.ppo.gae_lambda
        )
        moments = derived.summary(gained[valid], returns[valid], values[valid])
        units = {"value_mean": 1.0, "explained_variance": EXPLAINED}
        for name, value in moments.items():
            largest = max(moments.get(f"{name.partition('_')[0]}_max_abs", 0.0), LEAST_RETURN)
            if not math.isnan(value):
                yield name, value, units.get(name, largest)

    def _state(self, run: RunRecord, scale: Scale | None) -> list[Evidence]:
        """Return differences of the latest checkpoint's scale of rewards."""
        latest = (run.checkpoints or {}).get("latest")
        recorded = Scale.read(latest.tensors, "reward") if latest is not None else None
        if recorded is None or scale is None:
            return []
        pairs = {
            "count": (recorded.count, scale.count),
            "mean": (float(recorded.mean), float(scale.mean)),
            "m2": (float(recorded.squares), float(scale.squares)),
        }
        return [
            {"what": f"scale of rewards: {name}", "recorded": own, "expected": expected}
            for name, (own, expected) in pairs.items()
            if not close(own, expected, SCALED)
        ]


@check
class CountsAgree(RecomputedCheck):
    """Check C5: every step of an environment and of the optimiser is counted once."""

    id = "C5"
    title = "Counters do not agree with what was done"
    question = "Are environment steps, samples, optimiser steps and rows counted correctly, and schedules followed?"
    needs = ("checkpoints", "params", "steps.valid", "updates.steps", "updates.env_steps")
    threshold = "any count that differs"
    passes_when = "telemetry and checkpoint hold the same counts"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.checkpoints is not None
        updates, train = run.updates, run.params.train
        valid = np.array([int(steps["valid"].sum()) for _, steps in rollouts(run)])
        taken = updates.column("steps")
        pairs: dict[str, tuple[float, float]] = {
            "environment steps": (float(updates.column("env_steps")[-1]), float(valid.sum())),
            "updates": (float(updates.column("updates")[-1]), float((taken > 0).sum())),
            "iterations": (float(len(updates)), float(train.iterations)),
        }
        pairs["samples"] = (float(updates.column("samples").sum()), float(valid.sum()))
        latest = run.checkpoints.get("latest")
        if latest is not None:
            pairs |= self._in_checkpoint(latest, int(taken.sum()), int(valid.sum()))
        most = train.ppo.epochs * train.ppo.minibatches
        if len(taken) and train.policy.core != "none":
            pairs["steps of an update, at most"] = (float(max(most, taken.max())), float(most))
        pairs |= self._schedules(run)
        problems: list[Evidence] = [
            {"what": name, "recorded": recorded, "expected": expected}
            for name, (recorded, expected) in pairs.items()
            if not close(recorded, expected, SUM, 0.0)
        ]
        return concluded(problems, f"{len(pairs)} counts, {int(taken.sum())} optimiser steps")

    def _schedules(self, run: RunRecord) -> dict[str, tuple[float, float]]:
        """Return recorded and expected entropy coefficient and learning rate of each update."""
        ppo, updates, pairs = run.params.train.ppo, run.updates, dict[str, tuple[float, float]]()
        done = schedule_done(run)
        expected = ppo.entropy_coef + done * (ppo.entropy_coef_final - ppo.entropy_coef)
        for iteration, (recorded, own) in enumerate(zip(updates.column("entropy_coef"), expected, strict=True)):
            pairs[f"entropy bonus of iteration {iteration + 1}"] = float(recorded), float(own)
        rates, own = updates.column("learning_rate"), learning_rates(run)
        worst = int(np.abs(rates - own).argmax())
        pairs["learning rate"] = float(rates[worst]), float(own[worst])
        return pairs

    def _in_checkpoint(self, latest: Checkpoint, taken: int, valid: int) -> dict[str, tuple[float, float]]:
        tensors, scalars = latest.tensors, latest.manifest.scalars
        pairs = {
            "Adam's steps": (float(tensors["ppo/adam.step"]), float(taken)),
            "environment steps of the checkpoint": (float(scalars["env_steps"] or 0), float(valid)),
        }
        rows = tensors.get("normalizers/observation.count")
        return pairs if rows is None else pairs | {"rows of the normaliser": (float(rows), float(valid))}


@check
class BestIsBest(RecomputedCheck):
    """Check C6: the best checkpoint is the one with the best validation."""

    id = "C6"
    title = "The best checkpoint is not the best"
    question = "Is the best checkpoint the one with the highest mean score in validation?"
    needs = ("checkpoints", "updates.validation_accuracy", "validations.score")
    threshold = "a mean that is not that of its episodes, or another iteration than that of the first maximum"
    passes_when = "best is the first maximum, latest the last iteration"
    complete = False  # validation is not played in every iteration

    def examine(self, run: RunRecord) -> Outcome:
        assert run.checkpoints is not None
        lost = [each for each in run.provenance.origin.findings if each.check == LOST_BEST] if run.provenance else []
        if lost:
            return undecided(f"a better checkpoint was lost on the way: {lost[-1].message}")
        iterations, scores = run.validations.column("iteration"), run.validations.column("score")
        played = dict(zip(iterations.tolist(), scores.mean(axis=1).tolist(), strict=True))
        problems: list[Evidence] = []
        recorded = run.updates.column("validation_accuracy")
        for iteration, said in enumerate(recorded.tolist()):
            if not close(said, played.get(iteration, np.nan), SUM):
                problems.append({"what": "validation_accuracy", "iteration": iteration, "recorded": said})
        best = max(played, key=lambda iteration: (played[iteration], -iteration)) + 1
        expected = {"best": best, "latest": len(recorded)}
        for name, kept in run.checkpoints.items():
            if kept.manifest.iteration != expected[name]:
                said = {"recorded": kept.manifest.iteration, "expected": expected[name]}
                problems.append({"what": f"iteration of {name}", **said})
        committed = run.validations.column("committed_accuracy")
        if run.params.train.price == 0 and not np.allclose(scores, committed, rtol=SUM, atol=SUM):
            problems.append({"what": "score of validation episodes is not their committed accuracy"})
        return concluded(problems, f"iteration {best} of {len(recorded)}, {len(played)} validations")


@check
class TasksApart(RecomputedCheck):
    """Check C7: training, validation and evaluation use different tasks."""

    id = "C7"
    title = "Training and validation tasks are mixed up"
    question = "Were training episodes played on training tasks, and validation episodes on validation tasks?"
    needs = ("checkpoints", "tasks", "params", "episodes.task", "validations.task")
    threshold = "an episode on a task of another group; training tasks that are not dealt out in turn"
    passes_when = "every episode is on a task of its group, and tasks are dealt out in turn"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.tasks is not None
        groups = [task.group for task in run.tasks]
        if len(groups) == 1:
            return undecided("there is one task, which serves everything").of(0)
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


def schedule_done(run: RunRecord) -> Values:
    """Return the progress of schedules in each update, from 0 to 1; only updates that took a step count."""
    train, taken = run.params.train, run.updates.column("steps") > 0
    before = np.concatenate(([0], np.cumsum(taken)[:-1]))
    return np.minimum(1.0, before / max(1, (train.horizon or train.iterations) - 1))


def learning_rates(run: RunRecord) -> Values:
    """Return the learning rate of each update by the params."""
    ppo = run.params.train.ppo
    falls = RATE_FALLS if ppo.learning_rate_schedule == "linear" else 0.0
    return ppo.learning_rate * (1.0 - falls * schedule_done(run))
