"""What other decisions would have come to, as the evaluation's replays found it."""

from collections.abc import Iterator
from dataclasses import dataclass

from simic.evaluation.result import DecisionGrade, Evaluation, GradedDecision, TriedChoice

MOST_DECISIONS = 3  # shown of those that won most, and of those that lost most


@dataclass(frozen=True)
class Choice:
    """One decision beside the best alternative that was tried; ``gain`` is points over that."""

    row: int
    task: str
    step: int  # from 1
    taken: str
    other: str
    gain: float


def choices(evaluation: Evaluation) -> list[Choice]:
    """Of all replayed decisions those that won most, then those that lost most."""
    found = sorted(_all(evaluation), key=lambda each: (-each.gain, each.row, each.step))
    won, lost = ([each for each in found if sign * each.gain > 0] for sign in (1, -1))
    return won[:MOST_DECISIONS] + lost[-MOST_DECISIONS:]


def _all(evaluation: Evaluation) -> Iterator[Choice]:
    for grade in evaluation.counterfactuals.values():
        for decision in grade.decisions:
            yield _choice(evaluation, decision)


def _choice(evaluation: Evaluation, decision: GradedDecision) -> Choice:
    best = max(decision.others, key=lambda other: other.score)
    return Choice(
        row=decision.row,
        task=evaluation.tasks[evaluation.rows[decision.row]].name,
        step=decision.step + 1,
        taken=words(decision.taken),
        other=words(best),
        gain=decision.taken.score - best.score,
    )


def words(choice: TriedChoice) -> str:
    """``GERMINATE low_rank slot 1``."""
    parts = (choice.op, choice.blueprint, None if choice.slot is None else f"slot {choice.slot}")
    return " ".join(part for part in parts if part)


def grades(evaluation: Evaluation) -> list[tuple[str, DecisionGrade]]:
    """By question, of those that came up."""
    return [(question, grade) for question, grade in evaluation.counterfactuals.items() if grade.decisions]
