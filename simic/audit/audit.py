"""Run all checks on one run and write the verdict in four lines; importing this module registers every family."""

from collections.abc import Sequence

from simic.audit.checks import base, comparisons, learning, record, replayed  # noqa: F401 - each registers its family
from simic.audit.derived import derived_evaluation, derived_gym
from simic.audit.findings import Layer, Status, Summary, Verdict
from simic.audit.record import RunRecord
from simic.evaluation.endpoints import RULES, TUNED
from simic.evaluation.gym_evaluation import RANDOM, GymEvaluation
from simic.evaluation.intervals import Interval
from simic.evaluation.page import GROUPS
from simic.evaluation.result import LEARNED, Evaluation

MOST_FILES = 5  # that the first line names


def checks(live: bool = False, is_gym: bool | None = None) -> tuple[base.Check, ...]:
    """List the registered checks.

    Args:
        live: only those that can be decided while training runs.
        is_gym: only those of runs on a Gymnasium environment, or of runs of growth; None: both.
    """
    # Both kinds of checks would do no harm, but those of the other task would be listed as not evaluated.
    excluded = None if is_gym is None else "growth" if is_gym else "gym"
    return tuple(
        check
        for check in base.registered()
        if (check.live or not live) and check.subject != excluded
    )


def examine(run: RunRecord, name: str) -> Verdict:
    """Run all checks on a run of that name, and write the four lines of its verdict."""
    # The replays are the last checks, since they may still be under way. The summary is written from a verdict without
    # one: its lines need the results sorted and counted.
    results = tuple(check.run(run) for check in checks(is_gym=run.params.prepare.is_gym))
    bare = Verdict(
        run=name, results=results, summary=Summary(what="", record="", replay="", learning="")
    )
    summary = Summary(
        what=_what(run, bare), record=_record(bare), replay=_replay(bare), learning=_learning(bare)
    )
    return bare.model_copy(update={"summary": summary})


def _what(run: RunRecord, verdict: Verdict) -> str:
    """Say which code was changed, then the result, from numbers that were derived again."""
    # A number that may be wrong is not shown at all: with a warning beside it, it would still be quoted.
    if unsound := verdict.unsound:
        result = f"The result is withheld, since the record does not hold or a replay differs ({', '.join(unsound)})."
    elif run.gym is not None:
        result = gym_sentence(derived_gym(run))
    elif run.evaluation is not None and run.headroom is not None:
        result = growth_sentence(derived_evaluation(run))
    else:
        result = "The policy was not evaluated."
    return f"{_changed_code(run)}{result}"


def _changed_code(run: RunRecord) -> str:
    """Say which files were changed beside their revision, between resumes, and since the run; nothing where none."""
    if run.provenance is None:
        return ""
    # Before the result, since changed code makes it one that no revision can reproduce.
    sentences: list[str] = []
    files = run.provenance.origin.changed_files
    # A user's own environment or task belongs to no revision of simic: it is named, but nothing was changed.
    if extensions := [file for file in files if file.startswith("extensions/")]:
        sentences.append(f"Own code takes part ({_files(extensions)}). ")
    if changed := [file for file in files if file not in extensions]:
        sentences.append(f"The code was changed ({_files(changed)}). ")
    if changes := run.provenance.origin.code_changes:
        sentences.append(
            f"The code changed in {changes} of {run.provenance.origin.resumes} resumes. "
        )
    if files := run.provenance.code_changed_since:
        sentences.append(f"The code has changed since the run ({_files(files)}). ")
    return "".join(sentences)


def _files(names: Sequence[str]) -> str:
    listed = ", ".join(names[:MOST_FILES])
    return f"{listed} and {len(names) - MOST_FILES} more" if len(names) > MOST_FILES else listed


def growth_sentence(evaluation: Evaluation) -> str:
    """Say what the learned policy scores, and how much more than the hand rule or the common schedule."""
    # The first group is that of the primary endpoint; others are read in the tables.
    group, standings = next(iter(evaluation.standings.items()))
    learned = standings.policies.get(LEARNED)
    if learned is None:
        return "The learned policy was not evaluated."
    # The hand rule comes first: it is what one would use without a controller. Where none was measured the schedule
    # stands in.
    gain = learned.over_common
    rival = "the best common schedule"
    if learned.over_rule is not None:
        gain = learned.over_rule
        rival = f"the {RULES.get(standings.rule or TUNED, 'hand rule')}"
    place = GROUPS[group] if group == "train" else f"{standings.tasks} {GROUPS[group]}"
    score = f"PPO scores {_interval(learned.score, '.1f')} points on {place}"
    return f"{score}, {_difference(gain, '.1f')} than {rival}."


def gym_sentence(evaluation: GymEvaluation) -> str:
    """Say what the learned policy returns, and how much more than random actions."""
    learned = evaluation.policies.get(LEARNED)
    if learned is None:
        return "The learned policy was not evaluated."
    sentence = f"PPO returns {_interval(learned.mean_return, '.4g')} in {evaluation.eval_seeds} fresh episodes"
    over_random = next(
        (pair.difference for pair in evaluation.comparisons if pair.second == RANDOM), None
    )
    if over_random is None:
        return f"{sentence}."
    return f"{sentence}, {_difference(over_random, '.4g')} than random actions."


def _interval(value: Interval, form: str) -> str:
    return f"{value.estimate:{form}} [{value.low:{form}}, {value.high:{form}}]"


def _difference(gain: Interval, form: str) -> str:
    """Write a difference as more or less."""
    # Negated ends change places, so that the lower one is still written first.
    if gain.estimate < 0:
        return f"{_interval(Interval(-gain.estimate, -gain.high, -gain.low), form)} less"
    return f"{_interval(gain, form)} more"


def _record(verdict: Verdict) -> str:
    """Say whether the record is sound; a check without its inputs proves nothing."""
    results = verdict.of_layer("record")
    # Found, then missing, then held: the sentence says the worst that is true.
    checks = {
        status: [result.check for result in results if result.status is status] for status in Status
    }
    if broken := checks[Status.FINDING]:
        return (
            f"The record is not sound: {len(broken)} of {len(results)} checks found differences "
            f"({', '.join(broken)})."
        )
    held = f"{len(checks[Status.PASS])} of {len(results)} checks hold"
    if missing := checks[Status.NOT_EVALUATED]:
        return f"The record is not proven: {held}; {', '.join(missing)} could not be evaluated."
    return f"The record is sound: {held}."


def _replay(verdict: Verdict) -> str:
    """Say what the replays came to."""
    words = {Status.PASS: "equal", Status.FINDING: "differs", Status.NOT_EVALUATED: "not possible"}
    parts = {"Z1": "Training", "Z2": "Evaluation"}
    return " ".join(
        f"{parts[result.check]}: {words[result.status]} ({result.measured})."
        for result in verdict.of_layer("replay")
    )


def _learning(verdict: Verdict) -> str:
    """List the findings about learning, worst first."""
    layer: Layer = "learning"
    findings = [finding for finding in verdict.findings if finding.layer == layer]
    if not findings:
        # The sentence counts what holds: a check that could not be evaluated has found nothing either.
        passed = [result for result in verdict.of_layer(layer) if result.status is Status.PASS]
        return (
            f"No finding: {len(passed)} of {len(verdict.of_layer(layer))} checks of learning hold."
        )
    listed = "; ".join(
        f"{finding.title} ({finding.check}, {finding.severity})" for finding in findings
    )
    count = f"{len(findings)} findings, worst first" if len(findings) > 1 else "1 finding"
    return f"{count}: {listed}."
