"""Derive limits of the audit's symptoms that no publication has: the worst values of runs without a fault, times 1.5,
but no stricter than judged.

    python -m benchmarks.calibration FOLDER [--seeds 10] [--processes 2]

Makes the runs that are missing in FOLDER: two settings, each a few minutes of one core with something to win, each
with so many seeds. ``text`` (a transformer on $SIMIC_DATA_DIR/tinyshakespeare.txt) and ``large`` (28 x 28 pixels, of
$SIMIC_DATA_DIR/mnist). All stages run, watched
by the live audit; what the audit finds in one of them is a false alarm.

Then prints how each number is distributed over all runs in FOLDER, and the limit that follows, which a person writes
into ``simic/audit/limits.py`` where there are 30 runs or more. A run whose record is refuted, or that other code
trained, is refused. ``--seeds 0`` makes no run.
"""

import json
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import page
from simic import params, seals
from simic.audit import limits
from simic.audit.findings import Status, Verdict
from simic.audit.live import LiveAudit
from simic.errors import SimicError, exit_with_message
from simic.pipeline import stages
from simic.pipeline.paths import Workspace

RESULT = page.RESULTS / "calibration.json"
PERCENTILE = 99.0  # of the side that is worse

SETTINGS = ("text", "large")  # files of benchmarks/calibration_runs

# --- runs without a fault ---


def load(workspace: Workspace, name: str, rng_seed: int) -> params.Params:
    """Return the params of a run, whose params.yaml is that of its setting."""
    workspace.root.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("calibration_runs") / f"{name}.yaml", workspace.params)
    return params.load(workspace.params, [f"rng_seed={rng_seed}"], whole=False)


def attempt(name: str, rng_seed: int, folder: Path) -> str:
    """Make a run, unless it is there; return one line about it."""
    workspace = Workspace(folder)
    if not (workspace.reports / "findings.json").exists():
        try:
            tree = load(workspace, name, rng_seed)
            for stage, do in stages.STAGES.items():
                if stage == "train":
                    stages.train(tree, workspace, (LiveAudit(),))
                else:
                    do(tree, workspace)
        except SimicError as error:
            return f"{folder.name}: {error}"
    findings = [f"{result.severity} {result.check}" for result in read(folder).with_status(Status.FINDING)]
    return f"{folder.name}: {', '.join(findings) or 'nothing found'}"


# --- what they showed ---


def read(folder: Path) -> Verdict:
    """Return what the audit said of a run; SimicError where its record does not hold."""
    verdict = Verdict.from_json((Workspace(folder).reports / "findings.json").read_bytes())
    if verdict.refuted:
        raise SimicError(f"{folder}: no clean run: {', '.join(verdict.refuted)} refute its record")
    return verdict


def clean(folders: list[Path]) -> dict[str, Verdict]:
    """Return verdicts by name of the folder; SimicError where one is no clean run or of other code than the first."""
    sealed = [seals.read(folder, "train") for folder in folders]
    for folder, seal in zip(folders, sealed, strict=True):
        if seal is None or sealed[0] is None or seal.code != sealed[0].code:
            raise SimicError(f"{folder}: trained by other code than {folders[0]}, or without a seal")
    return {folder.name: read(folder) for folder in folders}


def summary(verdicts: dict[str, Verdict]) -> dict[str, Any]:
    """Return of each number of ours how many runs measured it, its median, 99th percentile and extreme of the worse
    side and the limit that follows, and what the present limits find in each run.
    """
    statistics = [
        statistic for verdict in verdicts.values() for result in verdict.results for statistic in result.statistics
    ]
    percentiles = dict[str, dict[str, float]]()
    missing = list[str]()
    for limit in (limit for limit in limits.every() if limit.ours):
        values = [
            statistic.value for statistic in statistics if statistic.name == limit.name and statistic.value is not None
        ]
        if not values:
            missing.append(limit.name)
            continue
        worst = float(max(values) if limit.above else min(values))
        percentiles[limit.name] = {
            "runs": len(values),
            "median": float(np.median(values)),
            "p99": float(np.percentile(values, PERCENTILE if limit.above else 100.0 - PERCENTILE)),
            "worst": worst,
            "limit": limit.calibrated(worst),
            "now": float(limit),
        }
    alarms = {
        name: {r.check: r.severity for r in verdict.with_status(Status.FINDING) if r.layer == "symptom"}
        for name, verdict in verdicts.items()
    }
    return {"runs": len(verdicts), "statistics": percentiles, "not_measured": missing, "findings": alarms}


def main() -> None:
    parser = page.parser(__doc__, RESULT)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".simic/calibration"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    runs_due = [
        (name, seed, options.folder / f"{name}-{seed}") for seed in range(1, options.seeds + 1) for name in SETTINGS
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawn, max_tasks_per_child=1) as pool:  # a process of its own for each
        for line in pool.map(attempt, *zip(*runs_due, strict=True)):
            print(line, flush=True)
    runs = sorted(path.parents[1] for path in options.folder.glob("*/reports/findings.json"))
    report = summary(clean(runs))
    page.write_result(options.out, report)
    if report["runs"] < limits.ENOUGH_RUNS:
        print(f"{report['runs']} clean runs: limits are of {limits.ENOUGH_RUNS} or more")
    rows = [(name, *(f"{value:.3g}" for value in columns.values())) for name, columns in report["statistics"].items()]
    print(*page.table(("number", "runs", "median", "99 %", "worst", "worst × 1.5", "limit now"), rows), sep="\n")
    print(f"not measured: {', '.join(report['not_measured']) or 'none'}")
    print(json.dumps({name: alarms for name, alarms in report["findings"].items() if alarms}, indent=1))


if __name__ == "__main__":
    with exit_with_message("calibration"):
        main()
