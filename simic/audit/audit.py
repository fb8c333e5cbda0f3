"""All checks on one run; importing this module registers every family."""

from simic.audit import scoreboard
from simic.audit.checks import (  # noqa: F401 - each registers its family
    base,
    certified,
    claims,
    data,
    floors,
    recomputed,
    reproducibility,
    steps,
    updates,
)
from simic.audit.findings import Verdict
from simic.audit.record import RunRecord
from simic.audit.summary import summarize


def checks(live: bool = False) -> tuple[base.Check, ...]:
    """Return all registered checks, or those that can be decided while training runs."""
    return tuple(check for check in base.registered() if check.live or not live)


def examine(run: RunRecord, name: str) -> Verdict:
    """Return the results of all checks on a run, and the summary of its report."""
    verdict = Verdict(run=name, results=tuple(check.run(run) for check in checks()), scoreboard=scoreboard.scores(run))
    return verdict.model_copy(update={"summary": summarize(run, verdict)})
