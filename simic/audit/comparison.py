"""What a recomputation came to: one number for everything of a kind that was compared."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """``what`` was compared ``where``: the largest deviation found and the largest that rounding explains."""

    what: str
    where: str
    deviation: float
    allowed: float

    @property
    def ok(self) -> bool:
        """NaN is never ok."""
        return self.deviation <= self.allowed
