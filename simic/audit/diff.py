"""`simic audit diff`: changes of findings from one audited run to another."""

from pathlib import Path
from typing import Literal, get_args

from simic.audit.findings import Result, Status, Verdict
from simic.errors import SimicError
from simic.telemetry.rows import SEVERITIES

Change = Literal["new", "worse", "same", "better", "fixed", "not evaluated any more"]
PLACES = ("findings.json", "reports/findings.json")


def read_verdict(place: Path) -> Verdict:
    """Read a findings.json, given by its path or a run's folder or reports; SimicError where there is none."""
    file = next((place / name for name in PLACES if (place / name).is_file()), place)
    if not file.is_file():
        raise SimicError(f"{place}: neither a findings.json nor a folder with one; run simic audit there first")
    try:
        return Verdict.from_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SimicError(
            f"{file}: not findings of this version of simic: {str(error).splitlines()[0]}; run simic audit again"
        ) from None


def changes(before: Verdict, after: Verdict) -> dict[Change, list[tuple[Result | None, Result | None]]]:
    """Return every check with a finding before or after, by change, the worst first."""
    old, new = ({result.check: result for result in verdict.results} for verdict in (before, after))
    pairs: dict[Change, list[tuple[Result | None, Result | None]]] = {change: [] for change in get_args(Change)}
    names = dict.fromkeys(result.check for verdict in (after, before) for result in verdict.findings)
    for name in names:
        pair = old.get(name), new.get(name)
        pairs[_change(*pair)].append(pair)
    return pairs


def _change(old: Result | None, new: Result | None) -> Change:
    """Return the change of a check with a finding in either run; a check that is gone was not evaluated."""
    if new is None or new.status is Status.NOT_EVALUATED:
        return "not evaluated any more"
    if new.status is Status.PASS:
        return "fixed"
    if old is None or old.status is not Status.FINDING:
        return "new"
    step = SEVERITIES.index(new.severity) - SEVERITIES.index(old.severity)
    return "worse" if step > 0 else "better" if step < 0 else "same"


def page(before: Verdict, after: Verdict) -> str:
    """Return counts, then a line for each check, for a terminal."""
    by_change = changes(before, after)
    counts = ", ".join(f"{len(pairs)} {change}" for change, pairs in by_change.items())
    names = " -> ".join(f"{each.run} ({'' if each.certified else 'not '}certified)" for each in (before, after))
    lines = [_line(change, old, new) for change, pairs in by_change.items() for old, new in pairs]
    return "\n".join([f"{names}: {counts}", *lines])


def _line(change: Change, old: Result | None, new: Result | None) -> str:
    one = new if new is not None and new.status is Status.FINDING else old
    assert one is not None  # one of the two is a finding
    severity = one.severity
    if change in ("worse", "better") and old is not None:
        severity = f"{old.severity} -> {one.severity}"
    measured = "" if new is None else f": {new.measured}"
    return f"{change:<7} {severity:<8} {one.check} {one.title}{measured}"
