"""What an independent reference says of the code and the results of a run, what its canary won, and what became of
trainings that were killed: reports/certificate.json.
"""

import json
from typing import Literal

from simic.audit.resume_certificate import ResumeCertificate
from simic.evaluation.result import Frozen

FORMAT = 4
Part = Literal["learner", "world", "episodes", "evaluation", "grown network"]


class Line(Frozen):
    """All comparisons of one kind: how many, and the one that is furthest from what is allowed."""

    what: str
    where: str
    deviation: float | None  # null: not a number
    allowed: float
    count: int
    ok: bool


class Certified(Frozen):
    """One part; without lines it says why there is none."""

    part: Part
    lines: tuple[Line, ...]
    reason: str = ""

    @property
    def differences(self) -> tuple[Line, ...]:
        """What lies outside of what rounding allows."""
        return tuple(line for line in self.lines if not line.ok)


class Canary(Frozen):
    """A controller trained on a planted task; where it could not be, it says why."""

    won_pct: float | None = None  # points of the hosts it grew above chance, on the validation split
    first: float = 0.0  # share of hosts in which it germinated the planted seed first
    kept: float = 0.0  # share of hosts that kept it
    reason: str = ""


class Certificate(Frozen):
    """All parts."""

    format: Literal[4] = FORMAT
    parts: tuple[Certified, ...] = ()
    canary: Canary | None = None  # null: none was trained
    resume: ResumeCertificate | str | None = None  # text: why it cannot be read

    def to_json(self) -> str:
        """Canonical JSON."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    def page(self) -> str:
        """A line for each part, and one for each kind that differs."""
        lines: list[str] = []
        for part in self.parts:
            compared = f"{sum(line.count for line in part.lines)} comparisons, {len(part.differences)} differ"
            lines.append(f"{part.part:<14} {f'not certified: {part.reason}' if part.reason else compared}")
            lines += [f"  {x.what}: {x.deviation}, allowed {x.allowed:g} ({x.where})" for x in part.differences]
        return "\n".join(lines)

    def part(self, name: Part) -> Certified | None:
        """The part of that name; None where it was not tried."""
        return next((part for part in self.parts if part.part == name), None)
