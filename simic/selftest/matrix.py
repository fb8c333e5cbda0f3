"""The result of a self-test: one line for each fault, sums by family, and the same as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from simic.audit import audit, known
from simic.audit.findings import Layer
from simic.audit.known import Fate, PlantedFault, SelfTest, Sums
from simic.errors import SimicError
from simic.selftest.catalogue import BY_ID
from simic.selftest.fault import FAMILIES
from simic.selftest.judgement import Severities
from simic.selftest.runner import Tried

MESSAGE_LENGTH = 90  # of a refusal, in a line


def result(code: Mapping[str, str], clean: Mapping[int, Severities], tried: Sequence[Tried]) -> SelfTest:
    """Faults in the order of their ids; ``code`` is what they were planted in."""
    content = {
        "code": dict(code),
        "clean": [dict(found) for _, found in sorted(clean.items())],
        "faults": [_planted(each).model_dump() for each in _ordered(tried)],
    }
    return SelfTest.model_validate(content)


def shippable(found: SelfTest) -> SelfTest:
    """The same; SimicError unless it is of every fault and of the code as it is now."""
    left = BY_ID.keys() - {fault.id for fault in found.faults}
    if left:
        raise SimicError(f"--ship: {len(left)} faults were not tried; the report needs all, so leave out --only")
    if found.changed_code:
        raise SimicError(
            f"--ship: {', '.join(found.changed_code)} changed while the faults were tried; run it again and change "
            "nothing meanwhile"
        )
    return found


def to_json(code: Mapping[str, str], clean: Mapping[int, Severities], tried: Sequence[Tried]) -> str:
    """All of it; faults in the order of their ids, so that two results can be compared line by line."""
    found = result(code, clean, tried)
    content = {
        "code": found.code,
        "clean": {str(seed): dict(severities) for seed, severities in sorted(clean.items())},
        "summary": {name: _counts(each) for name, each in _sums(found, tried).items()},
        "faults": [_row(each) for each in _ordered(tried)],
    }
    return json.dumps(content, indent=1) + "\n"


def _ordered(tried: Sequence[Tried]) -> list[Tried]:
    return sorted(tried, key=lambda each: (FAMILIES.index(each.fault.family), each.fault.id))


def _planted(one: Tried) -> PlantedFault:
    fault, judged = one.fault, one.judgement
    layers: dict[str, Layer] = {check.id: check.layer for check in audit.checks()}
    return PlantedFault.model_validate(
        {
            "id": fault.id,
            "family": fault.family,
            "title": fault.title,
            "severity": fault.severity,
            "result": judged.word,
            "changed": one.changed,
            "layer": known.first_layer(fault.severity, judged.by, layers),
            "by": judged.by,
            "stage": judged.stage,
            "message": _last_line(judged.message),
        }
    )


def _row(one: Tried) -> dict[str, Any]:
    return _planted(one).model_dump() | {"own": one.fault.own, "seconds": one.seconds}


def _sums(found: SelfTest, tried: Sequence[Tried]) -> dict[str, Sums]:
    """By family, in all, and of those that were planted without a list."""
    own = {one.fault.id for one in tried if one.fault.own}
    return known.sums(found) | {"own": known.sum_of([fault for fault in found.faults if fault.id in own])}


def _counts(sums: Sums) -> dict[str, Any]:
    return {"faults": sums.faults, **sums.ended, "layers": sums.layers}


def line(one: Tried) -> str:
    """A fault × what found it × how grave it was taken."""
    judged = one.judgement
    by = ", ".join(f"{check} {severity}" for check, severity in judged.by.items())
    by = by or f"{judged.stage} {_last_line(judged.message)[:MESSAGE_LENGTH]}".strip()
    by = by if one.changed else f"{by} (no file is changed)".strip()
    return f"{one.fault.id:42} {one.fault.severity:9} {judged.word:8} {by:40} {one.seconds:5.0f} s"


def table(code: Mapping[str, str], clean: Mapping[int, Severities], tried: Sequence[Tried]) -> str:
    """The whole matrix as text: false alarms first, and last the table of the report."""
    found = result(code, clean, tried)
    alarms = ", ".join(f"{check} {severity}" for check, severity in found.alarms.items()) or "none"
    columns: tuple[Layer | Fate, ...] = (*get_args(Layer), *get_args(Fate)[1:])  # what is caught is so in a layer
    head = f"{'family':11} faults " + " ".join(f"{name:>9}" for name in columns)
    rows = [
        f"{name:11} {each.faults:6} " + " ".join(f"{(each.layers | each.ended)[column]:9}" for column in columns)
        for name, each in _sums(found, tried).items()
    ]
    lines = [f"no fault, {len(clean)} runs: {alarms}", *(line(one) for one in tried), "", head, *rows]
    return "\n".join(each.rstrip() for each in lines)


def _last_line(message: str) -> str:
    """Of a traceback what went wrong; a refusal has but one line."""
    return message.strip().rpartition("\n")[2]
