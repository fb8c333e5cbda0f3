"""The statement of which planted faults (tests/faults) the audit found, at a named commit.

It comes with the package; ``python -m tests.faults --ship`` writes it.
"""

from functools import cache
from pathlib import Path

from simic.evaluation.result import Frozen

FILE = Path(__file__).with_name("known_faults.json")


class KnownFaults(Frozen):
    """Count faults by outcome: caught, found at too low a severity, ended a stage with a message or a traceback; titles
    of the missed ones. Findings count beyond those of the ``clean`` runs.
    """

    commit: str
    clean: int
    faults: int
    caught: int
    lower: int
    refused: int
    crashed: int
    missed: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Return the statement in words."""
        ended = {"found but taken too lightly": self.lower, "stopped the run": self.refused, "crashed it": self.crashed}
        others = [f"{number} {said}" for said, number in ended.items() if number] + [f"{len(self.missed)} missed"]
        return (
            f"At commit {self.commit}, of {self.faults} faults planted in simic on purpose, one at a time, the audit "
            f"of a small run found {self.caught}; {'; '.join(others)}. Measured against {self.clean} clean runs; "
            "it says nothing of code that changed since."
        )


@cache
def shipped() -> KnownFaults:
    """Return the statement that comes with the package."""
    return KnownFaults.model_validate_json(FILE.read_bytes())
