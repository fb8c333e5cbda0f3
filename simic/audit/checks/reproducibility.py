"""The run as a record: hashes, resumes, origin, one row per step, evaluation that follows from its tables."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simic.audit import limits
from simic.audit.checks.base import (
    MOST_EVIDENCE,
    OURS,
    Check,
    Outcome,
    Reading,
    check,
    failed,
    judged,
    length_of,
    passed,
    undecided,
)
from simic.audit.findings import Evidence
from simic.audit.provenance import Provenance
from simic.audit.record import RunRecord
from simic.audit.resume_certificate import COMMAND, ENOUGH_KILLS, ResumeSubject
from simic.evaluation import counterfactual, endpoints
from simic.evaluation.result import DecisionGrade, Standings
from simic.telemetry.rows import SEVERITIES

SHOWN = 12  # characters of a digest


def _provenance(run: RunRecord) -> Provenance:
    assert run.provenance is not None  # stated in needs
    return run.provenance


@check
class Integrity(Check):
    """Check X6: every file has the hash that its stage recorded."""

    id = "X6"
    title = "Artifacts do not match their hashes"
    severity = "critical"
    layer = "bind"
    counted = "stage with a seal"
    question = "Have code, params, data, checkpoints, telemetry and results still the hashes that each stage recorded?"
    needs = ("provenance",)
    threshold = "a hash that differs from the seal of the stage that made or read it, or a seal that is missing"
    source = "Huang et al. 2022, recommendation on reproducibility"
    fix = "Restore the artifacts with dvc checkout, or run the stage again."
    passes_when = "all recorded hashes match"

    def examine(self, run: RunRecord) -> Outcome:
        provenance = _provenance(run)
        wrong = list(provenance.damaged)
        evaluation = run.evaluation
        if evaluation and provenance.data_sha256 and evaluation.data_sha256 != provenance.data_sha256:
            wrong.append("evaluation.json: data_sha256 is not the training run's")
        if wrong:
            return failed(f"{len(wrong)} mismatches", None, tuple({"artifact": name} for name in wrong[:MOST_EVIDENCE]))
        if not provenance.sealed:
            return undecided("no stage left a seal").of(0)
        return passed(f"{', '.join(provenance.sealed)}: every hash holds").of(len(provenance.sealed))


@check
class Resumed(Check):
    """Check X9: no resume found files lost, damaged or edited while training was interrupted."""

    id = "X9"
    title = "Something was found when training was resumed"
    severity = "high"
    question = "At every resume, was everything as it had been left, and the machine the same?"
    needs = ("provenance",)
    threshold = "a finding of a resume that is more than information, as grave as that"
    source = OURS
    fix = "Read what was found; train anew with --fresh where it matters."
    passes_when = "no resume found anything"

    def examine(self, run: RunRecord) -> Outcome:
        origin = _provenance(run).origin
        told = [finding for finding in origin.findings if finding.at_least("low")]
        if not told:
            return passed(f"{origin.resumes or 0} resumes")
        evidence = tuple({"check": each.check, "found": each.message} for each in told[:MOST_EVIDENCE])
        gravest = max(told, key=lambda each: SEVERITIES.index(each.severity))
        return failed(f"{len(told)} findings", gravest.severity, evidence)


@check
class ExactResume(Check):
    """Check X1: trainings that were killed by SIGKILL and resumed equal one that was not."""

    id = "X1"
    title = "A training that is killed and resumed comes to another end"
    severity = "critical"
    layer = "resume"
    post_hoc = True
    question = "Do killed and resumed trainings of this code come to the very bytes of one that was not killed?"
    needs = ("certificate", "provenance")
    counted = "kill"
    threshold = (
        "a byte of checkpoints, models, telemetry or seal that differs, a training that does not come to its end, or "
        "an iteration trained again beyond the one that a kill cut short"
    )
    source = "ours: bit for bit is what a resume promises"
    fix = "Do not resume runs of this code, or not on this machine; simic diff names where they part."
    passes_when = f"nothing differs after at least {ENOUGH_KILLS} kills"

    def examine(self, run: RunRecord) -> Outcome:
        assert run.certificate is not None  # stated in needs
        tried = run.certificate.resume
        if tried is None:
            return undecided(f"not tried with this code: {COMMAND}").of(0)
        if isinstance(tried, str):
            return undecided(f"{tried}: {COMMAND}").of(0)
        other = tried.subject.differences(ResumeSubject.of(_provenance(run)))
        if other:
            return undecided(f"tried with other {', '.join(other)}: {COMMAND}").of(0)
        if not tried.sound:
            evidence = tuple({"differs": name} for name in (*tried.failures, *tried.differing)[:MOST_EVIDENCE])
            return failed(tried.result, None, evidence).of(tried.killed)
        if tried.killed < ENOUGH_KILLS:
            return undecided(f"{tried.killed} kills, {ENOUGH_KILLS} are needed: {COMMAND}").of(tried.killed)
        return passed(tried.result).of(tried.killed)


@check
class Recomputed(Check):
    """Check X8: standings and grades of the evaluation follow from its tables."""

    id = "X8"
    title = "The evaluation does not follow from its tables"
    severity = "critical"
    layer = "recompute"
    question = "Do headroom.json and evaluation.json belong together, and do the numbers follow from the tables?"
    needs = ("headroom", "evaluation")
    counted = "number"
    TOLERANCE = 1e-6  # relative, and absolute in points: sums in another order, ends of intervals found by a search
    threshold = (
        "headroom.json of other data, params, tasks or results than evaluation.json; or a standing "
        f"or grade off by more than {TOLERANCE:g}"
    )
    source = "Agarwal et al. 2021 (rliable): claims rest on the scores of all runs"
    fix = "Run simic headroom and simic evaluate again."
    passes_when = "every standing and grade is what the tables give"

    def examine(self, run: RunRecord) -> Outcome:
        headroom, evaluation = run.headroom, run.evaluation
        assert headroom is not None and evaluation is not None  # stated in needs
        rules = {name: result.per_seed for name, result in evaluation.policies.items() if name in headroom.policies}
        pairs = {
            "data_sha256": (headroom.data_sha256, evaluation.data_sha256),
            "settings_sha256": (headroom.settings_sha256, endpoints.settings(run.params)),
            "tasks": (headroom.tasks, evaluation.tasks),
            "rows": (headroom.rows, evaluation.rows),
            "host": (headroom.host, evaluation.host),
            "policies": (headroom.policies, rules),
        }
        wrong = [f"headroom.json: {name}" for name, (first, second) in pairs.items() if first != second]
        if wrong:
            return failed(f"{len(wrong)} parts belong to another run", None, _named(wrong))
        played = {name: result.per_seed for name, result in evaluation.policies.items()} | evaluation.static_final
        grades = {
            question: counterfactual.graded(grade.decisions, evaluation.rows, grade.inexact)
            for question, grade in evaluation.counterfactuals.items()
        }
        derived = _numbers({**endpoints.standings(headroom, played), **grades})
        claimed = _numbers({**evaluation.standings, **evaluation.counterfactuals})
        names = sorted(derived.keys() | claimed.keys())
        wrong = [name for name in names if not self._agree(derived.get(name), claimed.get(name))]
        return judged(bool(wrong), f"{len(wrong)} of {len(derived)} numbers differ", _named(wrong)).of(len(derived))

    def _agree(self, first: object, second: object) -> bool:
        if isinstance(first, float) and isinstance(second, float):
            return math.isclose(first, second, rel_tol=self.TOLERANCE, abs_tol=self.TOLERANCE)
        return first == second


def _numbers(results: Mapping[str, Standings | DecisionGrade]) -> dict[str, object]:
    """Return every value by its path: ``held_out.policies.learned.score.low``."""
    leaves: dict[str, object] = {}

    def walk(place: str, value: object) -> None:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        if inside is None:
            leaves[place] = value
        for name, each in inside or ():
            walk(f"{place}.{name}", each)

    for group, result in results.items():
        walk(group, result.model_dump(mode="json"))
    return leaves


def _named(wrong: Sequence[str]) -> tuple[Evidence, ...]:
    return tuple({"number": name} for name in wrong[:MOST_EVIDENCE])


@check
class OriginRecorded(Check):
    """Check X2: revision, versions and hashes are recorded, so that the run can be rebuilt."""

    id = "X2"
    title = "The run's origin is not fully recorded"
    severity = "medium"
    question = "Are code revision, versions and hashes recorded, and was the code committed and the same all along?"
    needs = ("provenance",)
    threshold = "revision unknown, with uncommitted changes or another after a resume; versions or a hash missing"
    source = "PyTorch reproducibility notes; Huang et al. 2022"
    fix = "Commit the code before training."
    passes_when = "everything is recorded and the working tree was clean"

    def examine(self, run: RunRecord) -> Outcome:
        provenance = _provenance(run)
        origin = provenance.origin
        fields = ("params_sha256", "data_sha256")
        gaps = [name for name in fields if getattr(provenance, name) is None]
        gaps += ["code_revision"] if origin.code_revision is None else []
        gaps += ["versions"] if not provenance.versions else []
        gaps += ["uncommitted changes"] if origin.code_dirty else []
        gaps += [f"code changed in {origin.code_changes} resumes"] if origin.code_changes else []
        none = Reading(limits.GAPS_OF_ORIGIN, len(gaps)).statistic
        if gaps:
            return failed(
                "not in order: " + ", ".join(gaps), None, tuple({"not in order": gap} for gap in gaps)
            ).showing(none)
        return passed(f"revision {(origin.code_revision or '')[:SHOWN]}, clean").showing(none)


@check
class Axes(Check):
    """Check X3: every iteration and step is recorded exactly once, in order."""

    id = "X3"
    title = "Telemetry has gaps or duplicates"
    severity = "high"
    layer = "recompute"
    question = "Is every iteration and every step recorded exactly once?"
    needs = ("updates.iteration", "updates.env_steps", "steps.iteration", "steps.step")
    post_hoc = True
    threshold = "an iteration or step that is missing, doubled or out of order; environment steps that fall"
    source = "Stable-Baselines3#1256, rsl_rl#221, mlflow#4248"
    fix = "Drop the log's files after the checkpoint when resuming."
    passes_when = "no gap and no duplicate"

    def examine(self, run: RunRecord) -> Outcome:
        iterations = run.updates.column("iteration")
        problems = []
        wrong = iterations != np.arange(len(iterations))
        if wrong.any():
            problems.append({"axis": "update iterations", "first_wrong": int(np.argmax(wrong))})
        pairs = np.stack((run.steps.column("iteration"), run.steps.column("step")), axis=1)
        lengths = [length_of(run, iteration) for iteration in iterations.tolist()]
        numbers = [np.arange(length) + 1 for length in lengths]
        expected = np.stack((np.repeat(iterations, lengths), np.concatenate(numbers)), axis=1)
        if not np.array_equal(pairs, expected):
            same = min(len(pairs), len(expected))
            differs = np.flatnonzero((pairs[:same] != expected[:same]).any(axis=1))
            problems.append({"axis": "steps", "first_wrong": int(differs[0]) if differs.size else same})
        falls = np.diff(run.updates.column("env_steps")) < 0
        if falls.any():
            problems.append({"axis": "environment steps", "first_wrong": int(np.argmax(falls))})
        return judged(bool(problems), f"{len(iterations)} updates, {len(pairs)} steps", tuple(problems))
