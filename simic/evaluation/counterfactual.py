"""Decisions of the learned policy graded by what the alternatives came to: the same hosts, the same random numbers, one
decision another, the rest of the episode again the policy's.

One replay also has what the new decision does to rounding, which training amplifies; over many decisions that averages
out. What is best among alternatives is chosen by validation and scored by test, so that no choice flatters itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from simic.agent.normalization import RewardNormalizer
from simic.envs.rewards.transition import score
from simic.evaluation.departing import FIRST_SEED, VERDICT, Departing
from simic.evaluation.result import DecisionGrade, GradedDecision, TriedChoice
from simic.evaluation.scoring import EvaluationSetup, Performance
from simic.evaluation.side_by_side import Turn
from simic.evaluation.statistics import CONFIDENCE, Interval, Values, mean_interval
from simic.growth.life.vocabulary import Op
from simic.training.checkpoint import Checkpoint
from simic.training.learned import LearnedActor

FEWEST_PAIRS = 4  # of a rank correlation: its interval divides by n - 3
SCALES = "normalizers/reward."  # of the rewards that the critic was taught with, in a checkpoint
RANK_VARIANCE = 1.06  # of Spearman's coefficient after Fisher's z, times n - 3 (Fieller, Hartley, Pearson 1957)


def departures(actor: LearnedActor, openings: int) -> dict[str, Departing]:
    """The policy once more for every alternative: so many first seeds that it holds for the next likeliest, and the
    first seed that it judges kept instead of pruned, or pruned instead of kept. Nothing where ``openings`` is 0.
    """
    if not openings:
        return {}
    first = {f"{FIRST_SEED.name}, {rank}": Departing(actor, FIRST_SEED, rank) for rank in range(1, openings + 1)}
    return {**first, VERDICT.name: Departing(actor, VERDICT, 1)}


@dataclass(frozen=True)
class Replay:
    """What one actor did on all hosts and what came of it: scores ``[H]`` in points, and of every step ``[T, H]`` the
    discounted return still to come, and what the critic expected it to be one step later.
    """

    done: Performance
    test: Values
    val: Values
    to_go: Tensor
    expected: Tensor

    @classmethod
    def of(cls, setup: EvaluationSetup, done: Performance, scale: float) -> "Replay":
        """Scored as the evaluation scores; ``scale`` is what one unit of the critic is in units of reward."""
        train, host = setup.env.train, setup.env.host.params
        added = np.array(done.score.params) - host
        test, val = (
            score(np.array(accuracy), added, host, train.price)
            for accuracy in (done.score.test_accuracy_pct, done.score.val_accuracy_pct)
        )
        gamma = train.ppo.gamma
        return cls(done, test, val, returns_to_go(done.turns, gamma), expectations(done, gamma, scale))

    def choice(self, host: int, step: int, log_prob: float, blueprints: Sequence[str]) -> TriedChoice:
        """What was decided in a step for one host, and what came of it."""
        action = self.done.turns[step].action
        op = Op(int(action.op[host]))
        return TriedChoice(
            op=op.name,
            slot=None if op is Op.WAIT else int(action.slot[host]),
            blueprint=blueprints[int(action.blueprint[host])] if op is Op.GERMINATE else None,
            probability=round(float(np.exp(log_prob)), 6),
            score=round(float(self.test[host]), 4),
            val_score=round(float(self.val[host]), 4),
            return_to_go=round(float(self.to_go[step, host]), 6),
            expected=round(float(self.expected[step, host]), 6),
        )


def returns_to_go(turns: Sequence[Turn], gamma: float) -> Tensor:
    """Σ γ^k r of each step and those after it ``[T, H]`` float64, in the reward's own unit."""
    found = [turns[-1].reward]
    for turn in reversed(turns[:-1]):
        found.append(turn.reward + gamma * found[-1])
    return torch.stack(found[::-1])


def expectations(done: Performance, gamma: float, scale: float) -> Tensor:
    """r + γ V(s') of each step ``[T, H]`` float64, in the reward's own unit; nothing is expected after an end."""
    assert done.values is not None  # who is graded has a critic
    alive = torch.stack([turn.situation.alive for turn in done.turns])
    following = torch.where(alive, scale * done.values.double(), 0.0).roll(-1, dims=0)
    following[-1] = 0.0
    return torch.stack([turn.reward for turn in done.turns]) + gamma * following


def reward_scale(checkpoint: Checkpoint, gamma: float) -> float:
    """What one unit of a checkpoint's critic is in units of reward."""
    state = {name.removeprefix(SCALES): x for name, x in checkpoint.tensors.items() if name.startswith(SCALES)}
    if not state:
        return 1.0
    normalizer = RewardNormalizer(len(state["running"]), gamma)
    normalizer.load_state_dict(state)
    return float(normalizer.sigma)


def same_until(first: Sequence[Turn], second: Sequence[Turn], step: Tensor) -> Tensor:
    """Bool ``[H]``: whether two episodes showed a host the same bits up to a step ``[H]`` of its own."""
    pairs = zip(first, second, strict=True)
    differs = [
        (a.situation.observation.features != b.situation.observation.features).any(dim=1) & (a.situation.step <= step)
        for a, b in pairs
    ]
    return ~torch.stack(differs).any(dim=0)


def grade(
    setup: EvaluationSetup, learned: Performance, tried: Mapping[str, tuple[Departing, Performance]], scale: float
) -> dict[str, DecisionGrade]:
    """By question: every decision that was departed from, and how policy and critic did; ``scale`` as of ``Replay``."""
    own, questions = Replay.of(setup, learned, scale), [actor.question.name for actor, _ in tried.values()]
    replays = [(actor, Replay.of(setup, done, scale)) for actor, done in tried.values()]
    return {
        question: _graded(setup, own, [each for each in replays if each[0].question.name == question])
        for question in dict.fromkeys(questions)
    }


def _graded(setup: EvaluationSetup, own: Replay, replays: list[tuple[Departing, Replay]]) -> DecisionGrade:
    names = [item.name for item in setup.env.blueprints]
    exact = [same_until(own.done.turns, each.done.turns, actor.asked_at) & actor.departed for actor, each in replays]
    inexact = sum(int((actor.departed & ~same).sum()) for (actor, _), same in zip(replays, exact, strict=True))
    decisions: list[GradedDecision] = []
    for host in range(len(setup.tasks)):
        kept = [each for each, same in zip(replays, exact, strict=True) if same[host]]
        if not kept:
            continue
        actor = kept[0][0]
        step = int(actor.asked_at[host])
        decisions.append(
            GradedDecision(
                row=host,
                step=step,
                taken=own.choice(host, step, float(actor.own_log_prob[host]), names),
                others=tuple(each.choice(host, step, float(at.log_prob[host]), names) for at, each in kept),
            )
        )
    return graded(decisions, setup.tasks.tolist(), inexact)


def graded(decisions: Sequence[GradedDecision], tasks: Sequence[int], inexact: int) -> DecisionGrade:
    """All figures follow from the decisions; ``tasks`` are those of the rows, and intervals are over tasks."""
    rows = [tasks[each.row] for each in decisions]
    advantage = [each.taken.score - float(np.mean([other.score for other in each.others])) for each in decisions]
    regret = [max((each.taken, *each.others), key=_by_validation).score - each.taken.score for each in decisions]
    best = [each.taken.score >= max(other.score for other in each.others) for each in decisions]
    return DecisionGrade(
        decisions=tuple(decisions),
        inexact=inexact,
        best=float(np.mean(best)) if best else None,
        chance=float(np.mean([1 / (1 + len(each.others)) for each in decisions])) if best else None,
        advantage=_over_tasks(advantage, rows),
        regret=_over_tasks(regret, rows),
        critic=critic([pair for each in decisions for pair in _expected_and_true(each)]),
    )


def _by_validation(choice: TriedChoice) -> float:
    return choice.val_score


def _over_tasks(values: list[float], rows: list[int]) -> Interval | None:
    """Of the means of each task; of one task alone, over its hosts. None below two."""
    of_task: dict[int, list[float]] = {}
    for task, value in zip(rows, values, strict=True):
        of_task.setdefault(task, []).append(value)
    means = values if len(of_task) == 1 else [float(np.mean(each)) for each in of_task.values()]
    return mean_interval(means) if len(means) > 1 else None


def _expected_and_true(decision: GradedDecision) -> list[tuple[float, float]]:
    """Of each alternative against what was done: the critic's difference, and that of the returns, its advantage."""
    taken = decision.taken
    return [(each.expected - taken.expected, each.return_to_go - taken.return_to_go) for each in decision.others]


def critic(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """Spearman's rank correlation of expected and true; None of too few pairs, or where one of both never changes."""
    found: NDArray[np.float64] = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    if len(found) < FEWEST_PAIRS or (np.ptp(found, axis=0) == 0.0).any():
        return None
    rank = float(np.corrcoef(stats.rankdata(found, axis=0).T)[0, 1])  # of equals the mean rank
    if abs(rank) == 1.0:
        return Interval(rank, rank, rank)  # Fisher's z has no end there
    half = float(stats.norm.ppf(0.5 + CONFIDENCE / 2)) * np.sqrt(RANK_VARIANCE / (len(found) - 3))
    low, high = np.tanh(np.arctanh(rank) + np.array([-half, half]))
    return Interval(rank, float(low), float(high))
