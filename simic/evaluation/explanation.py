"""One decision of the policy in words, for a terminal."""

from simic.evaluation.explain import Explanation
from simic.evaluation.result import TriedChoice

MOST_EVIDENCE = 6
LEAST_PROBABILITY = 0.005  # smaller ones round to nothing


def page(found: Explanation) -> str:
    """What it saw, how sure it was, what it expected, and what each choice came to."""
    best = max((found.taken, *found.others), key=lambda each: each.score)
    lines = [
        f"{found.task}, host {found.row}, step {found.step + 1} of {found.steps}: {found.taken.words}",
        "",
        "Seen",
        f"  accuracy {found.accuracy_pct:.1f} % on the validation split",
        *(f"  slot {number}: {slot}" for number, slot in enumerate(found.slots)),
        "",
        "What the decision hangs on (log-probability that it loses when this alone is hidden; negative: gains)",
        *(f"  {nats:+7.2f}  {what}" for what, nats in found.evidence[:MOST_EVIDENCE]),
        *([] if found.evidence else ["  nothing alone"]),
        "",
        "Probabilities of what is legal",
        *(f"  {head:<12} {_chances(chances)}" for head, chances in found.heads.items()),
        "",
        f"Value: {found.value:.2f} expected, {found.taken.return_to_go:.2f} came (discounted rewards from here on)",
        "",
        "What every choice comes to, all else equal (score in points, on the test split; expected: by the critic)",
        *_outcomes(found, best),
        "",
        _verdict(found, best),
        _exactness(found),
    ]
    return "\n".join(lines)


def _chances(chances: dict[str, float]) -> str:
    likely = sorted(chances.items(), key=lambda each: -each[1])
    shown = [f"{word} {chance:.2f}" for word, chance in likely if chance >= LEAST_PROBABILITY]
    rest = len(likely) - len(shown)
    return ", ".join([*shown, *([f"{rest} more below {LEAST_PROBABILITY}"] if rest else [])])


def _outcomes(found: Explanation, best: TriedChoice) -> list[str]:
    cells = [("", "choice", "probability", "score", "difference", "expected", "return")]
    for choice in (found.taken, *found.others):
        mark = ("*" if choice is best else "") + (">" if choice is found.taken else "")
        difference = choice.score - found.taken.score
        cells.append(
            (mark, choice.words, f"{choice.probability:.3f}", f"{choice.score:.1f}", f"{difference:+.1f}",
             f"{choice.expected:.2f}", f"{choice.return_to_go:.2f}")
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]  # fmt: skip


def _verdict(found: Explanation, best: TriedChoice) -> str:
    count = 1 + len(found.others)
    if count == 1:
        return "Nothing else was legal."
    if best.score == found.taken.score:
        return f"Taken (>) was the best (*) of {count}."
    lost = best.score - found.taken.score
    return f"Best (*) of {count}: {best.words}, {lost:.1f} points more than what was done (>)."


def _exactness(found: Explanation) -> str:
    exact = (
        "Every replay is the same to the bit up to the decision."
        if found.exact
        else "The replays differ in the last bits before the decision, and training amplifies that: do not trust them."
    )
    if abs(found.recorded_score - found.taken.score) < 1e-3:
        return exact
    return (
        f"{exact} They are not the evaluation's own episode, which ended with {found.recorded_score:.1f}: beside other "
        "hosts the last bits were others."
    )
