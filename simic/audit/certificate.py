"""What an independent reference says of a run, and what became of trainings that were killed:
reports/certificate.json.
"""

import json
from typing import Literal

from simic.audit.resume_certificate import ResumeCertificate
from simic.evaluation.result import Frozen

FORMAT = 5
Part = Literal["iterations", "episodes", "evaluation", "headroom", "grown network"]


class Line(Frozen):
    """All comparisons of one kind: how many, and the one that is furthest from what is allowed."""

    what: str
    where: str
    deviation: float | None  # null: not a number
    allowed: float | None  # null: it is judged by its quartile alone
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


class Certificate(Frozen):
    """All parts."""

    format: Literal[5] = FORMAT
    parts: tuple[Certified, ...] = ()
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
            lines += [f"  {x.what}: {x.deviation}, allowed {x.allowed or 0.0:g} ({x.where})" for x in part.differences]
        return "\n".join(lines)

    @property
    def sound(self) -> bool:
        """Return whether nothing differs."""
        return not any(part.differences for part in self.parts)

    def part(self, name: Part) -> Certified | None:
        """The part of that name; None where it was not tried."""
        return next((part for part in self.parts if part.part == name), None)
