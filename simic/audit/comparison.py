"""One thing that was derived a second time, and how far the two results lie apart."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """``what`` was compared, ``where`` it deviates most (iteration, step, host, slot), by how much, and how much is
    allowed.
    """

    what: str
    where: str
    deviation: float
    allowed: float

    @property
    def ok(self) -> bool:
        """NaN is never within bounds."""
        return self.deviation <= self.allowed
