"""What other decisions would have come to, as the evaluation's replays found it."""

from collections.abc import Iterator
from dataclasses import dataclass

from simic.evaluation.result import DecisionGrade, Evaluation, GradedDecision

MOST_DECISIONS = 3  # shown of those that won most, and of those that lost most


@dataclass(frozen=True)
class Contrast:
    """One decision beside the best alternative that was tried; ``gain`` is points over that."""

    row: int
    task: str
    step: int  # from 1
    taken: str
    other: str
    gain: float


def contrasts(evaluation: Evaluation) -> list[Contrast]:
    """Of all replayed decisions those that won most, then those that lost most."""
    found = sorted(_all(evaluation), key=lambda each: (-each.gain, each.row, each.step))
    won, lost = ([each for each in found if sign * each.gain > 0] for sign in (1, -1))
    return won[:MOST_DECISIONS] + lost[-MOST_DECISIONS:]


def _all(evaluation: Evaluation) -> Iterator[Contrast]:
    for grade in evaluation.counterfactuals.values():
        for decision in grade.decisions:
            yield _contrast(evaluation, decision)


def _contrast(evaluation: Evaluation, decision: GradedDecision) -> Contrast:
    best = max(decision.others, key=lambda other: other.score)
    return Contrast(
        row=decision.row,
        task=evaluation.tasks[evaluation.rows[decision.row]].name,
        step=decision.step + 1,
        taken=decision.taken.words,
        other=best.words,
        gain=decision.taken.score - best.score,
    )


def grades(evaluation: Evaluation) -> list[tuple[str, DecisionGrade]]:
    """By question, of those that came up."""
    return [(question, grade) for question, grade in evaluation.counterfactuals.items() if grade.decisions]
