"""The model card of an audited policy: its evaluation with intervals, or that it is withheld, and the verdict."""

from simic.audit.findings import Verdict, percent
from simic.audit.record import RunRecord
from simic.evaluation.page import GROUPS, interval
from simic.evaluation.result import Evaluation
from simic.evaluation.statistics import CONFIDENCE
from simic.training.card import growth_card, gym_card
from simic.training.learned import Learned

FILE = "model_card.md"


def model_card(run: RunRecord, verdict: Verdict) -> str:
    """Return the card of the best checkpoint, the policy in models/."""
    best = (run.checkpoints or {}).get("best")
    if run.meta is None or best is None:
        return "# No model card\n\nData or the best checkpoint are missing or damaged: see report.md.\n"
    if run.params.prepare.is_gym:
        return gym_card(Learned.of(best), best.manifest, run.meta, f"{_of_gym(run, verdict)}\n\n{_verdict(verdict)}")
    evaluation = run.evaluation
    if verdict.refuted:
        results = f"Withheld: the record does not hold ({', '.join(verdict.refuted)})."
    elif evaluation is None or evaluation.checkpoint_iteration != best.manifest.iteration:
        results = "This policy was not evaluated."
    else:
        results = _scores(evaluation)
    return growth_card(Learned.of(best), best.manifest, run.meta, f"{results}\n\n{_verdict(verdict)}")


def _of_gym(run: RunRecord, verdict: Verdict) -> str:
    """Return a table of everyone's returns, or why there is none."""
    if verdict.refuted:
        return f"Withheld: the record does not hold ({', '.join(verdict.refuted)})."
    if run.gym is None:
        return "This policy was not evaluated."
    rows = [f"| {name} | {interval(each.mean_return).lstrip('+')} |" for name, each in run.gym.policies.items()]
    head = f"Mean return of {run.gym.eval_seeds} fresh episodes, {percent(CONFIDENCE)} interval.\n"
    return "\n".join([head, "| policy | return |", "|---|--:|", *rows])


def _scores(evaluation: Evaluation) -> str:
    """Return a table of every policy's scores on held-out tasks."""
    parts = ["Test accuracy in points, less the price of parameters where there is one; 95 % intervals over tasks."]
    for group, standings in evaluation.standings.items():
        rows = [
            f"| {name} | {interval(one.score).lstrip('+')} | {interval(one.over_common)} | {one.params:,.0f} |"
            for name, one in standings.policies.items()
        ]
        head = ["| policy | score | over the best common schedule | parameters |", "|---|--:|--:|--:|"]
        parts.append("\n".join([f"{standings.tasks} {GROUPS[group]}:", "", *head, *rows]))
    return "\n\n".join(parts)


def _verdict(verdict: Verdict) -> str:
    counts = ", ".join(f"{count} {severity}" for severity, count in verdict.counts().items() if count) or "none"
    record = "does not hold" if verdict.refuted else "holds"
    return f"Audit: the record {record}. Findings: {counts}."
