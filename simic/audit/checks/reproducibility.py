"""The run as a record: hashes, resumes, origin, one row per step, evaluation that follows from its tables."""

import math
from collections.abc import Iterator
from typing import Any

from simic.audit.checks.base import OURS, Outcome, check, failed, judged, passed, undecided
from simic.audit.findings import Evidence
from simic.audit.record import RunRecord
from simic.evaluation import endpoints
from simic.telemetry.rows import SEVERITIES

SHOWN = 12  # characters of a digest


@check(
    id="X6",
    title="Artifacts do not match their hashes",
    severity="critical",
    layer="bind",
    question="Have code, params, data, checkpoints, telemetry and results still the hashes that each stage recorded?",
    needs=("provenance",),
    threshold="a hash that differs from the seal of the stage that made or read it, or a seal that is missing",
    source="Huang et al. 2022, recommendation on reproducibility",
    fix="Restore the artifacts with dvc checkout, or run the stage again.",
)
def _integrity(run: RunRecord) -> Outcome:
    provenance, evaluation = run.provenance, run.evaluation
    assert provenance is not None  # stated in needs
    wrong = list(provenance.damaged)
    if evaluation and provenance.data_sha256 and evaluation.data_sha256 != provenance.data_sha256:
        wrong.append("evaluation.json: data_sha256 is not the training run's")
    if wrong:
        return failed(f"{len(wrong)} mismatches", None, [{"artifact": name} for name in wrong])
    if not provenance.sealed:
        return undecided("no stage left a seal")
    return passed(f"{', '.join(provenance.sealed)}: every hash holds")


@check(
    id="X9",
    title="Something was found when training was resumed",
    severity="high",
    question="At every resume, was everything as it had been left, and the machine the same?",
    needs=("provenance",),
    threshold="a finding of a resume that is more than information, as grave as that",
    source=OURS,
    fix="Read what was found; train anew with --fresh where it matters.",
)
def _resumed(run: RunRecord) -> Outcome:
    assert run.provenance is not None  # stated in needs
    origin = run.provenance.origin
    told = [finding for finding in origin.findings if finding.at_least("low")]
    if not told:
        return passed(f"{origin.resumes or 0} resumes")
    evidence: list[Evidence] = [{"check": each.check, "found": each.message} for each in told]
    gravest = max(told, key=lambda each: SEVERITIES.index(each.severity))
    return failed(f"{len(told)} findings", gravest.severity, evidence)


TOLERANCE = 1e-6  # relative, and absolute in points: sums in another order, ends of intervals found by a search


@check(
    id="X8",
    subject="growth",
    title="The evaluation does not follow from its tables",
    severity="critical",
    layer="recompute",
    question="Do headroom.json and evaluation.json belong together, and do the numbers follow from the tables?",
    needs=("headroom", "evaluation"),
    threshold=(
        "headroom.json of other data, params, tasks or results than evaluation.json; or a standing "
        f"off by more than {TOLERANCE:g}"
    ),
    source="Agarwal et al. 2021 (rliable): claims rest on the scores of all runs",
    fix="Run simic headroom and simic evaluate again.",
)
def _evaluation_follows(run: RunRecord) -> Outcome:
    headroom, evaluation = run.headroom, run.evaluation
    assert headroom is not None and evaluation is not None  # stated in needs
    rules = {name: result.per_seed for name, result in evaluation.policies.items() if name in headroom.policies}
    pairs = {
        "data_sha256": (headroom.data_sha256, evaluation.data_sha256),
        "tasks": (headroom.tasks, evaluation.tasks),
        "rows": (headroom.rows, evaluation.rows),
        "host": (headroom.host, evaluation.host),
        "policies": (headroom.policies, rules),
    }
    wrong = [{"number": name} for name, (first, second) in pairs.items() if first != second]
    if wrong:
        return failed(f"{len(wrong)} parts belong to another run", None, wrong)
    played = {name: result.per_seed for name, result in evaluation.policies.items()} | evaluation.static_final
    derived = endpoints.standings(headroom, played)
    first, second = (
        {name: each.model_dump() for name, each in part.items()} for part in (derived, evaluation.standings)
    )
    wrong = [{"number": place} for place in _apart(first, second)]
    return judged(wrong, f"{len(wrong)} numbers of {len(derived)} standings differ")


def _apart(first: Any, second: Any, place: str = "") -> Iterator[str]:
    """Yield the paths at which two trees differ: ``held_out.policies.learned.score.low``."""
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted(first.keys() | second.keys()):
            yield from _apart(first.get(name), second.get(name), f"{place}.{name}".lstrip("."))
    elif isinstance(first, list | tuple) and isinstance(second, list | tuple) and len(first) == len(second):
        for number, pair in enumerate(zip(first, second, strict=True)):
            yield from _apart(*pair, f"{place}.{number}")
    elif isinstance(first, float) and isinstance(second, float):
        if not math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield place
    elif first != second:
        yield place


@check(
    id="X2",
    title="The run's origin is not fully recorded",
    severity="medium",
    question="Are code revision, versions and hashes recorded, and was the code committed and the same all along?",
    needs=("provenance",),
    threshold="revision unknown, with uncommitted changes or another after a resume; versions or a hash missing",
    source="PyTorch reproducibility notes; Huang et al. 2022",
    fix="Commit the code before training.",
)
def _origin_recorded(run: RunRecord) -> Outcome:
    provenance = run.provenance
    assert provenance is not None  # stated in needs
    origin = provenance.origin
    present = {
        "params_sha256": provenance.params_sha256,
        "data_sha256": provenance.data_sha256,
        "code_revision": origin.code_revision,
        "versions": provenance.versions,
    }
    gaps = [name for name, value in present.items() if not value]
    gaps += ["uncommitted changes"] if origin.code_dirty else []
    gaps += [f"code changed in {origin.code_changes} resumes"] if origin.code_changes else []
    said = f"not in order: {', '.join(gaps)}" if gaps else f"revision {(origin.code_revision or '')[:SHOWN]}, clean"
    return judged([{"not in order": gap} for gap in gaps], said)
