"""Plant faults one by one, run the pipeline on each, and judge it by the findings that clean runs do not have."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from simic.params import Params
from simic.pipeline.paths import Workspace
from simic.telemetry.rows import SEVERITIES
from simic.telemetry.timing import TIMING_FILE
from tests.faults import play, setting
from tests.faults.fault import Fault, Patch, copied
from tests.faults.play import Ending

PATIENCE_SECONDS = 1800  # of one run: a fault may make it wait for ever
# By what a fault that changes something is told from one that does not.
COMPARED = ("params.yaml", "data", "checkpoints", "models", "telemetry", "reports/headroom.json")
COMPARED += ("reports/evaluation.json", "reports/metrics.json", "reports/grown")


Fate = Literal["caught", "lower", "refused", "crashed", "missed"]
Severities = Mapping[str, str]  # of the findings of a report, by id of the check


@dataclass(frozen=True)
class Judgement:
    """Hold the outcome; ``by`` has the new findings, gravest first; ``message`` is of a refusal or a crash."""

    word: Fate
    by: dict[str, str]
    stage: str = ""
    message: str = ""


def findings(path: Path) -> dict[str, str]:
    """Return the severity of every finding of a findings.json by check, the gravest of several."""
    results = json.loads(path.read_bytes())["results"]
    return gravest([{each["check"]: each["severity"]} for each in results if each["status"] == "finding"])


def gravest(reports: Iterable[Severities]) -> dict[str, str]:
    """Return the gravest severity of each check over all reports."""
    found: dict[str, str] = {}
    for report in reports:
        for check, severity in report.items():
            if _rank(severity) > _rank(found.get(check, "")):
                found[check] = severity
    return found


def judge(fault: Fault, ending: Ending, found: Severities, clean: Severities) -> Judgement:
    """Judge a fault; a finding counts where no clean run has one of the same check as grave."""
    if ending.how != "ended":
        return Judgement(ending.how, {}, ending.stage, ending.message)
    new = {check: severity for check, severity in found.items() if _rank(severity) > _rank(clean.get(check, ""))}
    by = dict(sorted(new.items(), key=lambda each: -_rank(each[1])))
    if not by:
        return Judgement("missed", {})
    worst = next(iter(by.values()))
    return Judgement("caught" if _rank(worst) >= _rank(fault.severity) else "lower", by)


def _rank(severity: str) -> int:
    """Rank a severity; 0 without a finding, "info" below "low"."""
    return 0 if not severity else 1 if severity == "info" else 2 + SEVERITIES.index(severity)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Tried:
    """Hold a fault with its judgement and wall seconds; ``changed``: whether it changed any file (a fault that changed
    none says nothing about the audit).
    """

    fault: Fault
    judgement: Judgement
    seconds: float
    changed: bool = True


class Laboratory:
    """Run the pipeline without and with faults, in a folder."""

    def __init__(
        self,
        folder: Path,
        seeds: Sequence[int] = setting.CLEAN_SEEDS,
        tree: Callable[[int], Params] = setting.tiny,
    ) -> None:
        self.folder, self.seeds, self.tree = folder, tuple(seeds), tree
        self.clean: dict[int, dict[str, str]] = {}

    def run_clean(self, seed: int) -> dict[str, str]:
        """Run without a fault, keep the run, and return its findings; RuntimeError where it does not end."""
        ending = self._played(self._clean(seed), "", (), seed)
        if ending.how != "ended":
            raise RuntimeError(f"the clean run with rng_seed {seed} {ending.how} in {ending.stage}: {ending.message}")
        self.clean[seed] = findings(self._clean(seed) / "workspace" / "reports" / "findings.json")
        return self.clean[seed]

    def try_out(self, fault: Fault) -> Tried:
        """Run with the fault, judge it, and delete the run."""
        started, place = time.monotonic(), self.folder / fault.id
        tampers = "" if fault.tampering is None else fault.id
        ending = self._played(place, tampers, fault.patches, self.seeds[-1])
        ending = replace(ending, message=ending.message.replace(f"{place}/", ""))
        report = place / "workspace" / "reports" / "findings.json"
        found = findings(report) if ending.how == "ended" else {}
        judged = judge(fault, ending, found, gravest(self.clean.values()))
        changed = ending.how != "ended" or self._changed(Workspace(place / "workspace"))
        shutil.rmtree(place)
        return Tried(fault, judged, round(time.monotonic() - started, 1), changed)

    def _changed(self, workspace: Workspace) -> bool:
        """Tell whether outputs or params differ from those of the clean run."""
        clean = Workspace(self._clean(self.seeds[-1]) / "workspace")
        return any(_contents(clean.root / name) != _contents(workspace.root / name) for name in COMPARED)

    def _clean(self, seed: int) -> Path:
        return self.folder / f"clean-{seed}"

    def _played(self, place: Path, fault: str, patches: Sequence[Patch], rng_seed: int) -> Ending:
        """Run in a scratch copy at ``place``, in a process of its own."""
        place.mkdir(parents=True)
        source, workspace = copied(place / "source", patches), Workspace(place / "workspace")
        workspace.reports.mkdir(parents=True)
        setting.write(workspace.params, self.tree(rng_seed))
        donor = self._clean(self.seeds[0]) / "workspace"
        command = [sys.executable, "-P", play.__file__, str(source), str(workspace.root), str(donor), fault]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, cwd=source, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        told = place / "ending.json"
        if not told.exists():
            return Ending("crashed", "", f"{done.stderr.strip()}\nended with status {done.returncode}")
        return Ending(**json.loads(told.read_text(encoding="utf-8")))


def _contents(path: Path) -> dict[str, bytes]:
    """Return every file's content by path, but for files that differ between equal runs."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    kept = [each for each in files if each.is_file() and each.name != TIMING_FILE]
    return {str(each.relative_to(path)): each.read_bytes() for each in kept}


def self_test(folder: Path, faults: Sequence[Fault], processes: int = 1) -> Iterator[tuple[Laboratory, Tried | None]]:
    """Yield once after the clean runs of each setting, with None; then every fault as it is done."""
    tiny, real = Laboratory(folder / "tiny"), Laboratory(folder / "real", setting.REAL_SEEDS, setting.real)
    with ThreadPoolExecutor(processes) as pool:
        for laboratory, planted in (
            (tiny, [f for f in faults if f.family != "real"]),
            (real, [f for f in faults if f.family == "real"]),
        ):
            if not planted:
                continue
            for done in as_completed([pool.submit(laboratory.run_clean, seed) for seed in laboratory.seeds]):
                done.result()
            yield laboratory, None
            for done in as_completed([pool.submit(laboratory.try_out, fault) for fault in planted]):
                yield laboratory, done.result()
