"""All checks on one run; importing this module registers every family."""

from simic.audit import scoreboard
from simic.audit.checks import (  # noqa: F401 - each registers its family
    base,
    certified,
    claims,
    data,
    floors,
    gym,
    recomputed,
    reproducibility,
    steps,
    updates,
)
from simic.audit.findings import Verdict
from simic.audit.record import RunRecord
from simic.audit.summary import summarize


def checks(live: bool = False, of_gym: bool | None = None) -> tuple[base.Check, ...]:
    """Return all registered checks, or those that can be decided while training runs; of one kind of run, if told."""
    other = None if of_gym is None else "growth" if of_gym else "gym"
    return tuple(check for check in base.registered() if (check.live or not live) and check.subject != other)


def examine(run: RunRecord, name: str) -> Verdict:
    """Return the results of all checks on a run, and the summary of its report."""
    asked = checks(of_gym=run.params.prepare.is_gym)
    verdict = Verdict(run=name, results=tuple(check.run(run) for check in asked), scoreboard=scoreboard.scores(run))
    return verdict.model_copy(update={"summary": summarize(run, verdict)})
