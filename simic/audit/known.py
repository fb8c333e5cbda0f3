"""What the audit is known to find: faults that were planted in simic on purpose, and what the audit made of each.

The result comes with the package: ``python -m simic.selftest --ship`` writes it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from simic import seals
from simic.audit.findings import Layer
from simic.errors import SimicError
from simic.evaluation.result import Frozen
from simic.telemetry.rows import SEVERITIES, Severity

FILE = Path(__file__).with_name("self_test.json")
# The code that runs, records and audits a run, and the faults themselves.
CODE = (
    *("agent", "audit", "data", "durable.py", "envs", "errors.py", "evaluation", "growth", "memory.py", "params.py"),
    *("pipeline", "program.py", "registry.py", "rng.py"),
    *("safe_read.py", "seals.py", "selftest", "telemetry", "training", "transfer.py", "validation_messages.py"),
)
Family = Literal["maths", "plumbing", "data", "evaluation", "provenance", "resume"]
FAMILIES: dict[Family, str] = {
    "maths": "the agent’s formulas: advantages, losses, optimizer",
    "plumbing": "between the parts: environment, hosts, masks, rewards",
    "data": "what hosts are trained, validated and scored on",
    "evaluation": "who is evaluated, on what, and the sums of the scores",
    "provenance": "files of another run, edited or missing records",
    "resume": "going on after an interruption",
}
# Found at least as grave as it is; found, but taken too lightly; a stage ended with a message; a stage ended with a
# traceback; nobody noticed.
Fate = Literal["caught", "lower", "refused", "crashed", "missed"]


class PlantedFault(Frozen):
    """One fault. ``by`` has the checks that found it, gravest first, ``layer`` is the first that found it as grave as
    it is; a stage that ended because of it, and its message, are of a fault that was refused or crashed.
    """

    id: str
    family: Family
    title: str
    severity: Severity
    result: Fate
    changed: bool  # whether any file was another than without it
    layer: Layer | None
    by: dict[str, Severity]
    stage: str
    message: str


class SelfTest(Frozen):
    """All planted faults, what runs without a fault were found to have, and sha256 of the code by its place."""

    code: dict[str, str]
    clean: tuple[dict[str, Severity], ...]
    faults: tuple[PlantedFault, ...]

    def to_json(self) -> str:
        """A line for each fault, so that two results can be compared line by line."""
        rows = ",\n".join(fault.model_dump_json() for fault in self.faults)
        head = self.model_dump_json(exclude={"faults"}).removesuffix("}")
        return f'{head},"faults":[\n{rows}\n]}}\n'

    @property
    def changed_code(self) -> tuple[str, ...]:
        """Places whose code is not what was tested."""
        now = code()
        return tuple(place for place in sorted(now.keys() | self.code) if now.get(place) != self.code.get(place))

    @property
    def alarms(self) -> dict[str, Severity]:
        """What was found in runs without a fault, the gravest of each check, gravest first."""
        every = [each for run in self.clean for each in run.items()]
        mild_first = dict(sorted(every, key=lambda each: SEVERITIES.index(each[1])))  # of one check the gravest stays
        return dict(sorted(mild_first.items(), key=lambda each: (-SEVERITIES.index(each[1]), each[0])))


class Sums(Frozen):
    """Of some faults: how many the audit found, by the first layer that did, and what became of the others."""

    faults: int
    layers: dict[Layer, int]
    ended: dict[Fate, int]


def sums(self_test: SelfTest) -> dict[str, Sums]:
    """By family, and of all."""
    by_family = {name: [fault for fault in self_test.faults if fault.family == name] for name in FAMILIES}
    return {name: sum_of(faults) for name, faults in (by_family | {"all": list(self_test.faults)}).items()}


def sum_of(faults: Sequence[PlantedFault]) -> Sums:
    """Every fault counts once: where it was caught, or how it ended otherwise."""
    return Sums(
        faults=len(faults),
        layers={layer: sum(fault.layer == layer for fault in faults) for layer in get_args(Layer)},
        ended={word: sum(fault.result == word for fault in faults) for word in get_args(Fate)},
    )


def first_layer(severity: str, by: Mapping[str, str], layers: Mapping[str, Layer]) -> Layer | None:
    """In the order of proof, the first with a check that found a fault at least as grave as it is."""
    grave = {layers[check] for check, taken in by.items() if SEVERITIES.index(taken) >= SEVERITIES.index(severity)}
    return next((layer for layer in get_args(Layer) if layer in grave), None)


def code() -> dict[str, str]:
    """sha256 of the code as it is now."""
    return seals.code_hashes(CODE)


@cache
def shipped() -> SelfTest:
    """The one that comes with the package; SimicError where it is damaged."""
    try:
        return SelfTest.model_validate_json(FILE.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise SimicError(f"{FILE}: not a result of the self-test: {reason}; install simic again") from None


# --- for a reader ----------------------------------------------------------------------------------------------------

HEADINGS: dict[Fate, str] = {
    "lower": "found but taken too lightly",
    "refused": "stopped the run",
    "crashed": "crashed the run",
    "missed": "missed",
}


def headings(found: SelfTest) -> dict[Fate, str]:
    """Of the ways to end besides being caught, those that occurred; what is missed always."""
    ended = sums(found)["all"].ended
    return {word: heading for word, heading in HEADINGS.items() if ended[word] or word == "missed"}


def sentences(found: SelfTest) -> tuple[str, str, str]:
    """What was found, on which code, and how it was measured."""
    total = sums(found)["all"]
    others = [f"{total.ended[word]} {_said(word, total.ended[word])}" for word in headings(found)]
    first = (
        f"Of {total.faults} faults planted in simic on purpose, one at a time, the audit found {total.ended['caught']}"
    )
    return f"{first}; {'; '.join(others)}.", _measured_on(found.changed_code), _setting(found)


def _said(word: Fate, number: int) -> str:
    return f"{'was' if number == 1 else 'were'} missed" if word == "missed" else HEADINGS[word]


def _measured_on(changed: Sequence[str]) -> str:
    if not changed:
        return "Measured on the code that made this report."
    return f"Measured on other code than made this report; changed since: {', '.join(changed)}."


def _setting(found: SelfTest) -> str:
    alarms = ", ".join(f"{check} ({severity})" for check, severity in found.alarms.items()) or "nothing"
    return (
        "Every fault went through the whole pipeline in a small run, without the canary. It is found when a check "
        "takes it at least as gravely as it is, and finds nothing as grave in runs without a fault. In "
        f"{len(found.clean)} of those the audit found {alarms}."
    )


def fate(fault: PlantedFault) -> str:
    """What became of it, in words: ``caught by K1 critical, C3 critical``."""
    by = ", ".join(f"{check} {severity}" for check, severity in fault.by.items())
    ended = f"in {fault.stage}: {fault.message}" if fault.stage else ""
    said = " ".join(word for word in (fault.result, "by" if by else "", by, ended) if word)
    return said if fault.changed else f"{said} (it changed no file)"
