"""Explain a decision of the evaluated policy: what it saw, what it expected, and the outcome of every alternative.

The episode of the evaluation is played again to that step; from there every other legal choice is replayed in a host of
its own. Each is played by two hosts side by side: the last bits of a host that shares an operation with no other depend
on its company, those of two equal ones do not (docs/history/experiments.md), and that both end alike is checked.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simic.data.batches import HeldOut, data_hash, load_held_out
from simic.envs.play import Situation
from simic.envs.rewards import score
from simic.errors import SimicError
from simic.evaluation.counterfactual import CounterfactualActor, Replay, at_step, reward_scale
from simic.evaluation.page import aligned
from simic.evaluation.result import LEARNED, Evaluation, TriedChoice
from simic.evaluation.scoring import EvaluationSetup, open_env, play_for_score
from simic.growth.life.vocabulary import Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Runtime
from simic.training import worker_layout
from simic.training.checkpoint import Checkpoint
from simic.training.learned import Learned

TWINS = 2


@dataclass(frozen=True)
class Explanation:
    """One decision of one host; probabilities and values are the policy's, outcomes those of replays."""

    task: str
    row: int
    step: int  # from 0
    steps: int
    slots: tuple[str, ...]  # what was in each
    accuracy_pct: float  # live, on the validation split, when it was decided
    value: float  # expected discounted return, in units of reward
    taken: TriedChoice
    others: tuple[TriedChoice, ...]  # the likeliest first
    recorded_score: float  # of the evaluation's own episode
    exact: bool  # all replays were bit for bit the same up to the decision, and the choice taken ended in the same bits


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation of the policy, and what it takes to replay its episodes."""

    learned: Learned
    scale: float  # one unit of the critic in units of reward
    evaluation: Evaluation
    held_out: HeldOut
    runtime: Runtime
    device: torch.device

    @classmethod
    def open(
        cls, evaluation: Evaluation, checkpoint: Checkpoint, prepared: Path, runtime: Runtime, device: torch.device
    ) -> "Evaluated":
        """Raise SimicError unless policy and data are those that were evaluated."""
        learned = Learned.of(checkpoint, device)
        if LEARNED not in evaluation.policies:
            raise SimicError(f"the evaluation has no policy {LEARNED!r} to explain: name it in evaluate.policies")
        if (learned.iteration, data_hash(prepared)) != (evaluation.checkpoint_iteration, evaluation.data_sha256):
            raise SimicError("reports/evaluation.json is of another policy or other data; run simic evaluate first")
        scale = reward_scale(checkpoint, learned.train.ppo.gamma)
        return cls(learned, scale, evaluation, load_held_out(prepared, device), runtime, device)

    def row(self, task: str) -> int:
        """Return the first host of the task of that name, or the host of that number."""
        names, rows = [each.name for each in self.evaluation.tasks], self.evaluation.rows
        if task in names:
            return rows.index(names.index(task))
        if task.isdecimal() and int(task) < len(rows):
            return int(task)
        raise SimicError(f"task {task!r}: must be a host, 0 to {len(rows) - 1}, or one of {', '.join(names)}")

    def replay(self, row: int, step: int, choices: int) -> tuple[CounterfactualActor, Replay]:
        """Play the policy's own choice in one step of one host and the likeliest others, each by twins side by side."""
        ranks = torch.arange(choices, device=self.device).repeat_interleave(TWINS)
        actor = CounterfactualActor(self.learned.actor(greedy=True), at_step(step), ranks)
        setup = self._setup(row, len(ranks))
        with closing(setup.env):
            [(_, done)] = play_for_score(setup, {LEARNED: actor})
            return actor, Replay.of(setup, done, self.scale)

    def _setup(self, row: int, count: int) -> EvaluationSetup:
        """Return so many hosts equal to that of an evaluation's row; each process has whole pairs of twins."""
        held_out, ids = self.held_out, torch.full((count,), row)
        layout = worker_layout.layout(self.runtime, count, self.device)
        group = layout.group + layout.group % TWINS
        splits = held_out.train, held_out.val
        env = open_env(
            self.learned.train, self.evaluation.rng_seed, self.runtime, splits, ids, self.device, group=group
        )
        tasks = torch.full_like(env.env_ids, self.evaluation.rows[row])
        return EvaluationSetup(env, held_out, tasks, self.evaluation.data_sha256, self.runtime)


def explain(evaluated: Evaluated, task: str, step: int) -> Explanation:
    """Explain the decision in ``step`` (from 1) on a host of the evaluation; SimicError where there is none."""
    row, steps = evaluated.row(task), evaluated.learned.train.longest_episode
    if not 1 <= step <= steps:
        raise SimicError(f"step {step}: must be 1 to {steps}, as the report counts them")
    at = step - 1
    asked, own = evaluated.replay(row, at, choices=1)
    assert own.done.values is not None  # a trained policy has a critic
    situation = own.done.turns[at].situation
    if not bool(situation.alive[0]):
        raise SimicError(f"step {step}: the host had been rolled back by then, so nothing was decided for it")
    legal = int(asked.legal[0])
    actor, replays = evaluated.replay(row, at, legal)
    names = [item.name for item in blueprints_of(evaluated.learned.train.host.family)]
    choices = [replays.choice(host, at, float(actor.log_prob[host]), names) for host in range(0, TWINS * legal, TWINS)]
    recorded, host = evaluated.evaluation.policies[LEARNED].per_seed, evaluated.evaluation.host.params
    price, added = evaluated.learned.train.price, recorded.params[row] - host
    return Explanation(
        task=evaluated.evaluation.tasks[evaluated.evaluation.rows[row]].name,
        row=row,
        step=at,
        steps=steps,
        slots=_slots(situation, names),
        accuracy_pct=float(situation.tracker.accuracy[0]),
        value=float(own.done.values[at, 0]) * evaluated.scale,
        taken=choices[0],
        others=tuple(choices[1:]),
        recorded_score=float(score(np.array(recorded.test_accuracy_pct[row]), np.array(added), host, price)),
        exact=_same(own, replays, at),
    )


def _slots(situation: Situation, blueprints: Sequence[str]) -> tuple[str, ...]:
    """Describe what is in each slot of the first host."""
    slots, told = situation.slots, []
    columns: list[Tensor] = [slots.stage, slots.blueprint, slots.alpha, slots.contribution, slots.contribution_se]
    for stage, kind, alpha, gain, error in zip(*(column[0].tolist() for column in columns), strict=True):
        held = f"{blueprints[kind]}, alpha {alpha:.2f}, " if kind >= 0 else ""
        measured = f", contributes {gain:+.1f} ± {error:.1f} points" if math.isfinite(gain) else ""
        told.append(f"{held}{Stage(stage).name}{measured}")
    return tuple(told)


def _same(own: Replay, replays: Replay, step: int) -> bool:
    """Return whether all hosts showed the same bits up to the decision, and twins and the choice taken to the end."""
    alone, tried = (
        torch.stack([turn.situation.observation.features for turn in each.done.turns]) for each in (own, replays)
    )
    prefix = torch.equal(tried[: step + 1], alone[: step + 1, :1].expand(-1, tried.shape[1], -1))
    twins = (
        torch.equal(tried[:, ::TWINS], tried[:, 1::TWINS]) and (replays.test[::TWINS] == replays.test[1::TWINS]).all()
    )
    return bool(prefix and twins and torch.equal(tried[:, 0], alone[:, 0]) and replays.test[0] == own.test[0])


# --- in words, for a terminal ----------------------------------------------------------------------------------------


def page(explained: Explanation) -> str:
    """Say what the policy saw, how sure it was, what it expected, and what each choice came to."""
    taken, choices = explained.taken, (explained.taken, *explained.others)
    best = max(choices, key=lambda each: each.score)
    lines = [
        f"{explained.task}, host {explained.row}, step {explained.step + 1} of {explained.steps}: {taken.words}",
        "",
        "Seen",
        f"  accuracy {explained.accuracy_pct:.1f} % on the validation split",
        *(f"  slot {number}: {slot}" for number, slot in enumerate(explained.slots)),
        "",
        f"Value: {explained.value:.2f} expected, {taken.return_to_go:.2f} came (discounted rewards from here on)",
        "",
        "What every choice comes to, all else equal (score in points, on the test split; expected: by the critic)",
        *(f"  {line}" for line in _outcomes(choices, best)),
        "",
        _verdict(taken, best, len(choices)),
        _exactness(explained),
    ]
    return "\n".join(lines)


def _outcomes(choices: Sequence[TriedChoice], best: TriedChoice) -> list[str]:
    taken = choices[0]
    cells = [("", "choice", "probability", "score", "difference", "expected", "return")]
    for choice in choices:
        mark = ("*" if choice is best else "") + (">" if choice is taken else "")
        numbers = f"{choice.probability:.3f}", f"{choice.score:.1f}", f"{choice.score - taken.score:+.1f}"
        cells.append((mark, choice.words, *numbers, f"{choice.expected:.2f}", f"{choice.return_to_go:.2f}"))
    return ["  ".join(row) for row in aligned(cells, left=2)]


def _verdict(taken: TriedChoice, best: TriedChoice, count: int) -> str:
    if count == 1:
        return "Nothing else was legal."
    if best.score == taken.score:
        return f"Taken (>) was the best (*) of {count}."
    lost = best.score - taken.score
    return f"Best (*) of {count}: {best.words}, {lost:.1f} points more than what was done (>)."


def _exactness(explained: Explanation) -> str:
    exact = (
        "Every replay is the same to the bit up to the decision."
        if explained.exact
        else "The replays differ in the last bits before the decision, and training amplifies that: do not trust them."
    )
    if abs(explained.recorded_score - explained.taken.score) < 1e-3:
        return exact
    return (
        f"{exact} They are not the evaluation's own episode, which ended with {explained.recorded_score:.1f}: beside "
        "other hosts the last bits were others."
    )
