"""What was played again in fresh processes has the same bytes."""

from functools import partial

from simic.audit.checks.base import Outcome, check, failed, passed, undecided
from simic.audit.findings import Part
from simic.audit.record import RunRecord


def _replay(part: Part, run: RunRecord) -> Outcome:
    """Judge the replay of one part."""
    # Only bytes that differ are a finding: a replay that was off or prevented has shown nothing.
    results = run.replays() if run.replays is not None else ()
    replay = next((replay for replay in results if replay.part == part), None)
    if replay is None:
        return undecided("audit.replay is off")
    if replay.outcome == "not possible":
        return undecided(replay.detail)
    if replay.outcome == "equal":
        return passed(replay.detail)
    return failed(replay.detail, None, [{"differs": name} for name in replay.differences])


CHECKS: dict[str, tuple[Part, str, str]] = {
    "Z1": (
        "training",
        "An iteration of training does not come out the same again",
        "Does a fresh process that takes up the state before an iteration play and learn the same bytes?",
    ),
    "Z2": (
        "evaluation",
        "Episodes of the evaluation do not come out the same again",
        "Do the published weights decide and score the same in a fresh process, byte for byte?",
    ),
}
for check_id, (part, title, question) in CHECKS.items():
    check(
        id=check_id,
        layer="replay",
        title=title,
        question=question,
        severity="critical",
        needs=("params",),
        post_hoc=True,
        threshold="any byte of states, steps, episodes and update, or of actions and scores",
        source="ours: equal machines, code and inputs give equal bytes",
        fix=(
            "Do not use the run. Run simic audit again: where other values differ then, this machine errs; where the "
            "same ones do, train again, and elsewhere if it stays."
        ),
    )(partial(_replay, part))
