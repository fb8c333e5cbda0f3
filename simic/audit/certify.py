"""Makes the certificate: runs every part of the reference beside the code of the run."""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from simic.audit.certificate import Certificate, Certified, Line, Part
from simic.audit.certify_agent import certify_agent
from simic.audit.certify_grown import certify_grown
from simic.audit.certify_world import certify_world
from simic.audit.comparison import Comparison
from simic.audit.record import RunRecord
from simic.audit.reference.world.refusal import NoReference
from simic.audit.replay_world import replay_episode
from simic.params import Params

REPLAYED = 2  # episodes of training that are played again


def certify(params: Params, prepared: Path, grown: Path, run: RunRecord) -> Certificate:
    """Derives again what the code of this run does on its own params and data, some of its recorded episodes, and the
    accuracy of the network it exported.
    """
    with tempfile.TemporaryDirectory(prefix="simic-certify-") as scratch:
        parts = [_part("learner", lambda: certify_agent(params, prepared, Path(scratch)))]
    parts.append(_part("world", lambda: certify_world(params, prepared)))
    parts.append(_part("episodes", lambda: _episodes(params, prepared, run)))
    parts.append(_part("grown network", lambda: _grown(grown, prepared, run)))
    return Certificate(parts=tuple(parts))


def _episodes(params: Params, prepared: Path, run: RunRecord) -> Sequence[Comparison]:
    """One host of the first iteration that followed the policy or a guide, and one of the last."""
    iterations = run.steps.column("iteration")
    found: list[Comparison] = []
    for iteration in sorted({params.train.survey, int(iterations[-1])})[:REPLAYED]:
        rows = np.flatnonzero(iterations == iteration)
        place = iteration % run.steps.column("op").shape[1]
        steps = {name: values[rows][:, place] for name, values in run.steps.columns.items() if values.ndim > 1}
        found += replay_episode(params, prepared, steps, iteration, place)
    return found


def _grown(grown: Path, prepared: Path, run: RunRecord) -> Sequence[Comparison]:
    evaluation = run.evaluation
    if evaluation is None or not grown.exists():
        raise NoReference("nothing was evaluated")
    first = run.params.evaluate.policies[0]
    return certify_grown(grown, prepared, evaluation.policies[first].per_seed, evaluation.rows)


def _part(name: Part, compare: Callable[[], Sequence[Comparison]]) -> Certified:
    try:
        return Certified(part=name, lines=_lines(compare()))
    except NoReference as none:
        return Certified(part=name, lines=(), reason=str(none))


def _lines(found: Sequence[Comparison]) -> tuple[Line, ...]:
    kinds = dict.fromkeys(each.what for each in found)
    return tuple(_line([each for each in found if each.what == what]) for what in kinds)


def _line(alike: list[Comparison]) -> Line:
    worst = max(alike, key=_excess)
    finite = math.isfinite(worst.deviation)
    return Line(
        what=worst.what,
        where=worst.where,
        deviation=worst.deviation if finite else None,
        allowed=worst.allowed,
        count=len(alike),
        ok=all(each.ok for each in alike),
    )


def _excess(each: Comparison) -> float:
    """How far beyond what is allowed, as a ratio where anything is."""
    if math.isnan(each.deviation):
        return math.inf
    return each.deviation / each.allowed if each.allowed else math.inf if each.deviation else 0.0
