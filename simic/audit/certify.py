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
from simic.audit.replay_evaluation import Replayable, replay_evaluation
from simic.audit.replay_world import replay_episode
from simic.errors import SimicError
from simic.growth.export import refuse_damaged
from simic.params import Params


def certify(params: Params, prepared: Path, grown: Path, run: RunRecord) -> Certificate:
    """Derives again what the code of this run does on its own params and data, some of its recorded episodes, and the
    accuracy of the network it exported.
    """
    with tempfile.TemporaryDirectory(prefix="simic-certify-") as scratch:
        learner = part("learner", lambda: certify_agent(params, prepared, Path(scratch)))
    world = part("world", lambda: certify_world(params, prepared))
    recorded = episodes(params, prepared, run), evaluation(params, prepared, run), grown_network(grown, prepared, run)
    return Certificate(parts=(learner, world, *recorded))


def episodes(params: Params, prepared: Path, run: RunRecord) -> Certified:
    """Play one host of the first iteration and one of the last again."""

    def compare() -> Sequence[Comparison]:
        iterations = run.steps.column("iteration")
        found: list[Comparison] = []
        for iteration in sorted({int(iterations[0]), int(iterations[-1])} if len(iterations) else set[int]()):
            rows = np.flatnonzero(iterations == iteration)
            place = iteration % run.steps.column("op").shape[1]
            steps = {name: values[rows][:, place] for name, values in run.steps.columns.items() if values.ndim > 1}
            found += replay_episode(params, prepared, steps, iteration, place)
        return found

    return part("episodes", compare)


def evaluation(params: Params, prepared: Path, run: RunRecord) -> Certified:
    """A host of every evaluated episode of the trained policy."""

    def compare() -> Sequence[Comparison]:
        checkpoint = (run.checkpoints or {}).get(run.evaluation.checkpoint or "") if run.evaluation else None
        if run.evaluation is None or checkpoint is None:
            raise NoReference("no trained policy was evaluated")
        return replay_evaluation(Replayable(params, prepared, run.evaluation, checkpoint))

    return part("evaluation", compare)


def grown_network(grown: Path, prepared: Path, run: RunRecord) -> Certified:
    """The network that the first policy of the evaluation grew best."""

    def compare() -> Sequence[Comparison]:
        if run.evaluation is None or not grown.exists():
            raise NoReference("nothing was evaluated")
        try:
            refuse_damaged(grown)
        except SimicError as damage:
            raise NoReference(str(damage)) from None
        first = run.params.evaluate.policies[0]
        return certify_grown(grown, prepared, run.evaluation.policies[first].per_seed, run.evaluation.rows)

    return part("grown network", compare)


def part(name: Part, compare: Callable[[], Sequence[Comparison]]) -> Certified:
    """What was compared, or why there is no reference for it."""
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
