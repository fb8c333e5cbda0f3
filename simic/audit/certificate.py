"""reports/certificate.json: comparisons of a run with the float64 reference, and of killed trainings with one that was
not.
"""

import json
from typing import Literal

from simic.audit.resume_certificate import ResumeCertificate
from simic.certify.comparison import Comparison
from simic.evaluation.result import Frozen

Part = Literal["iterations", "episodes", "evaluation", "headroom", "grown network"]


class Certified(Frozen):
    """Hold the comparisons of one part, or the ``reason`` why there are none."""

    part: Part
    lines: tuple[Comparison, ...]
    reason: str = ""

    @property
    def differences(self) -> tuple[Comparison, ...]:
        """Return the comparisons out of bounds."""
        return tuple(line for line in self.lines if not line.ok)


class Certificate(Frozen):
    """Hold all parts."""

    format: Literal[5] = 5
    parts: tuple[Certified, ...] = ()
    resume: ResumeCertificate | str | None = None  # text: why it cannot be read

    def to_json(self) -> str:
        """Return canonical JSON."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    def page(self) -> str:
        """Return a line for each part, and one for each kind that differs."""
        lines: list[str] = []
        for part in self.parts:
            compared = f"{sum(line.count for line in part.lines)} comparisons, {len(part.differences)} differ"
            lines.append(f"{part.part:<14} {f'not certified: {part.reason}' if part.reason else compared}")
            lines += [f"  {x.what}: {x.deviation}, allowed {x.allowed or 0.0:g} ({x.where})" for x in part.differences]
        return "\n".join(lines)

    @property
    def sound(self) -> bool:
        """Tell whether nothing differs."""
        return not any(part.differences for part in self.parts)

    def part(self, name: Part) -> Certified | None:
        """Return the part of that name; None where it was not tried."""
        return next((part for part in self.parts if part.part == name), None)
