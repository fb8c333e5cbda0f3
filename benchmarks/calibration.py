"""Limits of the audit's symptoms that no publication has, from clean runs: the worst that they showed, times 1.5,
but no stricter than judged.

    python -m benchmarks.calibration RUN [RUN …] [--out benchmarks/results/calibration.json] [--write] [--more]

RUN is the folder of a finished run (with ``reports/findings.json``) of this code, of whatever settings the limits are
to hold for. A run whose record is refuted, or that was trained by other code than the first, is no clean run and is
refused. Printed is how each number is distributed over the runs, and the limit that follows; findings of a run by
limits as they are now are false alarms. ``--write`` puts the limits of 30 runs or more into
``simic/audit/limits.py``. With ``--more`` they count beside the runs of the result that is there, of which the worst
values are kept; median and percentile are of the new ones.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import page
from simic import durable, seals
from simic.audit import limits
from simic.audit.findings import Status, Verdict
from simic.audit.limits import Limit
from simic.errors import SimicError
from simic.pipeline.paths import Workspace

RESULT, LIMITS = Path("benchmarks/results/calibration.json"), Path("simic/audit/limits.py")
PERCENTILE = 99.0  # of the side that is worse


def read(folder: Path) -> Verdict:
    """What the audit said of a run; SimicError where it was not audited, or its record does not hold."""
    path = Workspace(folder).reports / "findings.json"
    try:
        verdict = Verdict.from_json(path.read_bytes())
    except OSError:
        raise SimicError(f"{path}: no such file; run simic audit there first") from None
    except ValueError:
        raise SimicError(f"{path}: not a report of this version; run simic audit there again") from None
    if verdict.refuted:
        raise SimicError(f"{folder}: no clean run: {', '.join(verdict.refuted)} refute its record")
    return verdict


def code_of(folder: Path) -> dict[str, str]:
    """What trained a run, by file."""
    path = seals.path_of(folder, "train")
    try:
        return seals.Seal.model_validate_json(path.read_bytes()).code
    except (OSError, ValueError):
        raise SimicError(f"{path}: no seal of a training") from None


def summary(verdicts: dict[str, Verdict], earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """Of runs by name: each number of ours over them with its limit, and what the present limits find in each; beside
    the runs of an ``earlier`` summary.
    """
    named = {limit.name: limit for limit in limits.every() if limit.ours}
    values: dict[str, list[float]] = {}
    for verdict in verdicts.values():
        for each in (statistic for result in verdict.results for statistic in result.statistics):
            if each.name in named and each.value is not None:
                values.setdefault(each.name, []).append(each.value)
    known = earlier["statistics"] if earlier else {}
    found = {
        name: distribution(named[name], values[name], known.get(name)) if name in values else known[name]
        for name in named
        if name in values or name in known
    }
    alarms = {
        name: {r.check: r.severity for r in verdict.with_status(Status.FINDING) if r.layer == "symptom"}
        for name, verdict in verdicts.items()
    }
    unmeasured = [name for name in named if name not in found]
    return {
        "runs": len(verdicts) + (earlier["runs"] if earlier else 0),
        "statistics": found,
        "not_measured": unmeasured,
        "findings": alarms,
    }


def distribution(limit: Limit, values: list[float], earlier: dict[str, float] | None = None) -> dict[str, float]:
    """Over runs: how many measured it, median, 99th percentile and extreme of the worse side, and what follows; how
    many and the extreme count ``earlier`` ones too.
    """
    whole = [*values, *([earlier["worst"]] if earlier else [])]
    worst = float(max(whole) if limit.above else min(whole))
    return {
        "runs": len(values) + int(earlier["runs"] if earlier else 0),
        "median": float(np.median(values)),
        "p99": float(np.percentile(values, PERCENTILE if limit.above else 100.0 - PERCENTILE)),
        "worst": worst,
        "limit": limit.calibrated(worst),
        "now": float(limit),
    }


def rewritten(source: str, found: dict[str, Any]) -> str:
    """The text of limits.py with the limits of a summary; SimicError of too few runs."""
    runs = found["runs"]
    if runs < limits.ENOUGH_RUNS:
        raise SimicError(f"{runs} clean runs: limits are written from {limits.ENOUGH_RUNS} or more")
    source = re.sub(r"^CLEAN_RUNS = \d+", f"CLEAN_RUNS = {runs}", source, flags=re.MULTILINE)
    for name, each in found["statistics"].items():
        line = rf'((?:ours|at_least)\("{re.escape(name)}", )[-+.\de]+'
        source, count = re.subn(line, rf"\g<1>{each['limit']:g}", source)
        if count != 1:
            raise SimicError(f"{LIMITS}: {name!r} has {count} limits of ours, must have 1")
    return source


def clean(folders: list[Path]) -> dict[str, Verdict]:
    """By name of the folder; SimicError where one is none, of other code, or named as another one."""
    verdicts: dict[str, Verdict] = {}
    for folder in folders:
        if code_of(folder) != code_of(folders[0]):
            raise SimicError(f"{folder}: trained by other code than {folders[0]}")
        if folder.name in verdicts:
            raise SimicError(f"{folder}: another run is named {folder.name}, too")
        verdicts[folder.name] = read(folder)
    return verdicts


def keep(found: dict[str, Any], out: Path, write: bool) -> None:
    """Prints a summary and keeps it, and its limits where asked to."""
    page.write_result(out, found)
    print(*page.calibration_table(found), sep="\n")
    print(f"not measured: {', '.join(found['not_measured']) or 'none'}")
    print(json.dumps({name: alarms for name, alarms in found["findings"].items() if alarms}, indent=1))
    if write:
        durable.replace_file(LIMITS, rewritten(LIMITS.read_text(encoding="utf-8"), found).encode())
        page.main()


def main() -> None:
    """Measure, print, keep; rewrite the limits where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--write", action="store_true", help=f"put the limits into {LIMITS}")
    parser.add_argument("--more", action="store_true", help="beside the runs of the result that is there")
    given = parser.parse_args()
    try:
        earlier = json.loads(given.out.read_bytes()) if given.more else None
        keep(summary(clean(given.folders), earlier), given.out, given.write)
    except SimicError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
