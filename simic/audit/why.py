"""Decisions beside their alternatives, from the evaluation's replays."""

from dataclasses import dataclass

from simic.evaluation.result import DecisionGrade, Evaluation, GradedDecision

MOST_DECISIONS = 3  # shown of those that won most, and of those that lost most


@dataclass(frozen=True)
class Contrast:
    """Hold one decision beside the best alternative that was tried; ``gain`` is points over that."""

    row: int
    task: str
    step: int  # from 1
    taken: str
    other: str
    gain: float


def contrasts(evaluation: Evaluation) -> list[Contrast]:
    """Return the replayed decisions that won most, then those that lost most."""
    decisions = [decision for grade in evaluation.counterfactuals.values() for decision in grade.decisions]
    every = sorted((_contrast(evaluation, each) for each in decisions), key=lambda x: (-x.gain, x.row, x.step))
    won, lost = ([each for each in every if sign * each.gain > 0] for sign in (1, -1))
    return won[:MOST_DECISIONS] + lost[-MOST_DECISIONS:]


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
    """Return the grades of questions that came up."""
    return [(question, grade) for question, grade in evaluation.counterfactuals.items() if grade.decisions]
