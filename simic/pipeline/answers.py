"""What `simic doctor` says: one line per question."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What was asked, whether it is well, and what was seen."""

    question: str
    well: bool
    seen: str


def sound(name: str, seen: str) -> Answer:
    """Of something that is stored."""
    return Answer(name, True, f"sound: {seen}")


def damaged(name: str, what: str, then: str) -> Answer:
    """With what the next start makes of it, and what to do."""
    return Answer(name, False, f"damaged: {what}; {then}")
