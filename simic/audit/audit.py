"""All checks on one run, and the verdict in five lines; importing this module registers every family."""

from simic.audit.checks import (  # noqa: F401 - each registers its family
    base,
    claims,
    floors,
    gym,
    recomputed,
    reproducibility,
    steps,
    updates,
)
from simic.audit.findings import PROOF, Status, Verdict
from simic.audit.record import RunRecord
from simic.evaluation import endpoints
from simic.evaluation.gym import GymEvaluation
from simic.evaluation.gym import said as said_of_gym
from simic.evaluation.result import LEARNED, Evaluation


def checks(live: bool = False, of_gym: bool | None = None) -> tuple[base.Check, ...]:
    """Return all registered checks, or those that can be decided while training runs; of one kind of run, if told."""
    other = None if of_gym is None else "growth" if of_gym else "gym"
    return tuple(check for check in base.registered() if (check.live or not live) and check.subject != other)


def examine(run: RunRecord, name: str) -> Verdict:
    """Return the results of all checks on a run, and the summary of its report."""
    asked = checks(of_gym=run.params.prepare.is_gym)
    verdict = Verdict(run=name, results=tuple(check.run(run) for check in asked))
    return verdict.model_copy(update={"summary": summarize(run, verdict)})


def summarize(run: RunRecord, verdict: Verdict) -> tuple[str, ...]:
    """Return the five lines: result, comparison, proof, findings, cost with evidence."""
    reached = _reached(run.evaluation) if run.gym is None else _reached_in(run.gym)
    if verdict.refuted:
        reason = f"since the record does not hold ({', '.join(verdict.refuted)})"
        reached = f"Score: withheld, {reason}.", "Comparison: withheld."
    seeds = run.evaluation or run.gym
    return *reached, _proven(verdict), _findings(verdict), f"{_cost(run)} {_evidence(seeds)}"


def _reached(evaluation: Evaluation | None) -> tuple[str, str]:
    if evaluation is None or LEARNED not in evaluation.policies:
        return "Score: the trained policy was not evaluated.", "Comparison: none."
    score, gap = endpoints.said(evaluation)
    policy = evaluation.policies[LEARNED]
    accuracy = policy.test_accuracy_pct
    return f"{score}.", (
        f"Gap: {gap}. Accuracy: {accuracy.estimate:.2f} [{accuracy.low:.2f}, {accuracy.high:.2f}] points on the test "
        f"splits of all {evaluation.eval_seeds} evaluated hosts, with {policy.params:,.0f} parameters, "
        f"{policy.growth_ratio:.2f} times as many as the bare host."
    )


def _reached_in(evaluation: GymEvaluation) -> tuple[str, str]:
    score, compared = said_of_gym(evaluation)
    return f"{score.capitalize()}.", f"Return of the trained policy: {compared}."


def _proven(verdict: Verdict) -> str:
    proof = [result.status for result in verdict.results if result.layer in PROOF]
    held, unknown = proof.count(Status.PASS), proof.count(Status.NOT_EVALUATED)
    said = f"Record: {held} of {len(proof)} checks of it hold"
    if unknown:
        said += f", {unknown} could not be evaluated"
    if verdict.unseen:
        said += f"; not evaluated, though a finding would be critical: {', '.join(verdict.unseen)}"
    return f"{said}; the record does not hold in {', '.join(verdict.refuted)}." if verdict.refuted else f"{said}."


def _findings(verdict: Verdict) -> str:
    grave = [f"{number} {severity}" for severity, number in verdict.counts().items() if number]
    passed, unknown = verdict.with_status(Status.PASS), verdict.with_status(Status.NOT_EVALUATED)
    return (
        f"Findings: {', '.join(grave) if grave else 'none'}. {len(passed)} checks passed, {len(unknown)} could not be "
        f"evaluated; {len(verdict.unseen)} of these would be critical."
    )


def _cost(run: RunRecord) -> str:
    """State the cost of training the controller."""
    trainings = run.evaluation.controller_trainings if run.evaluation else None
    hosts = f"{trainings:,} host trainings in " if trainings is not None else ""
    taken = f", {int(run.updates.column('env_steps')[-1]):,} environment steps" if len(run.updates) else ""
    return f"Cost: the controller was trained by {hosts}{len(run.updates)} iterations{taken}."


def _evidence(evaluation: Evaluation | GymEvaluation | None) -> str:
    if evaluation is None:
        return "Evidence: no evaluation, so nothing can be claimed."
    return (
        f"Evidence: {evaluation.eval_seeds} paired evaluation seeds of one training run, so claims concern this "
        "checkpoint, not training with other rng seeds."
    )
