"""What the audit is known to find: a statement about faults that were planted in simic on purpose (tests/faults).

It comes with the package and says of which commit it is: ``python -m tests.faults --ship`` writes it.
"""

from functools import cache
from pathlib import Path

from pydantic import ValidationError

from simic.errors import SimicError
from simic.evaluation.result import Frozen

FILE = Path(__file__).with_name("known_faults.json")


class KnownFaults(Frozen):
    """Counts of faults by what became of them: caught as gravely as they are, taken too lightly, ended a stage with a
    message or a traceback; titles of those that were missed. ``clean`` runs without a fault were their measure.
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
        """Return it in words."""
        ended = {"found but taken too lightly": self.lower, "stopped the run": self.refused, "crashed it": self.crashed}
        others = [f"{number} {said}" for said, number in ended.items() if number] + [f"{len(self.missed)} missed"]
        return (
            f"At commit {self.commit}, of {self.faults} faults planted in simic on purpose, one at a time, the audit "
            f"of a small run found {self.caught}; {'; '.join(others)}. Measured against {self.clean} clean runs; "
            "it says nothing of code that changed since."
        )


@cache
def shipped() -> KnownFaults:
    """Return the statement that comes with the package; SimicError where it is damaged."""
    try:
        return KnownFaults.model_validate_json(FILE.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise SimicError(f"{FILE}: not a statement about planted faults: {reason}; install simic again") from None
