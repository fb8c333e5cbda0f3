"""The result of a self-test: one line for each fault, sums by family, and the same as JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from simic.selftest.fault import FAMILIES
from simic.selftest.judgement import Severities, Word, gravest
from simic.selftest.runner import Tried

WORDS: tuple[Word, ...] = get_args(Word)
MESSAGE_LENGTH = 90  # of a refusal, in a line


def to_json(clean: Mapping[int, Severities], tried: Sequence[Tried]) -> str:
    """All of it; faults in the order of their ids, so that two results can be compared line by line."""
    rows = sorted(tried, key=lambda each: (FAMILIES.index(each.fault.family), each.fault.id))
    content = {
        "clean": {str(seed): dict(found) for seed, found in sorted(clean.items())},
        "summary": summary(tried),
        "faults": [_row(each) for each in rows],
    }
    return json.dumps(content, indent=1) + "\n"


def _row(one: Tried) -> dict[str, Any]:
    fault, judged = one.fault, one.judgement
    return {
        "id": fault.id,
        "family": fault.family,
        "title": fault.title,
        "severity": fault.severity,
        "own": fault.own,
        "result": judged.word,
        "changed": one.changed,
        "by": judged.by,
        "stage": judged.stage,
        "message": _last_line(judged.message),
        "seconds": one.seconds,
    }


def summary(tried: Sequence[Tried]) -> dict[str, dict[str, int]]:
    """How many of each result, by family and in all; of those, how many were planted without a list."""
    groups = {family: [one for one in tried if one.fault.family == family] for family in FAMILIES}
    groups |= {"all": list(tried), "own": [one for one in tried if one.fault.own]}
    counted = {name: Counter(one.judgement.word for one in group) for name, group in groups.items()}
    return {
        name: {"faults": len(groups[name])} | {word: found[word] for word in WORDS} for name, found in counted.items()
    }


def line(one: Tried) -> str:
    """A fault × what found it × how grave it was taken."""
    judged = one.judgement
    by = ", ".join(f"{check} {severity}" for check, severity in judged.by.items())
    by = by or f"{judged.stage} {_last_line(judged.message)[:MESSAGE_LENGTH]}".strip()
    by = by if one.changed else f"{by} (no file is changed)".strip()
    return f"{one.fault.id:42} {one.fault.severity:9} {judged.word:8} {by:40} {one.seconds:5.0f} s"


def table(clean: Mapping[int, Severities], tried: Sequence[Tried]) -> str:
    """The whole matrix as text: false alarms first."""
    alarms = ", ".join(f"{check} {severity}" for check, severity in gravest(clean.values()).items()) or "none"
    sums = [
        f"{name:11} {counts['faults']:3} faults: " + ", ".join(f"{counts[word]} {word}" for word in WORDS)
        for name, counts in summary(tried).items()
    ]
    return "\n".join([f"no fault, {len(clean)} runs: {alarms}", *(line(one) for one in tried), "", *sums])


def _last_line(message: str) -> str:
    """Of a traceback what went wrong; a refusal has but one line."""
    return message.strip().rpartition("\n")[2]
