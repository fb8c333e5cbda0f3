"""Write the model card of an audited policy: its evaluation with intervals, or that it is withheld, and the verdict."""

from simic.audit.findings import Verdict, percent
from simic.audit.record import RunRecord
from simic.errors import as_markdown
from simic.evaluation.gym_evaluation import GymEvaluation
from simic.evaluation.intervals import CONFIDENCE, Interval
from simic.evaluation.page import GROUPS, interval
from simic.evaluation.result import Evaluation
from simic.training.card import growth_card, gym_card
from simic.training.learned import Learned

FILE = "model_card.md"


def model_card(run: RunRecord, verdict: Verdict) -> str:
    """Write the card of the best checkpoint, the policy in models/."""
    # A card describes the policy in models/. Without its checkpoint nobody knows which one that is.
    best = (run.checkpoints or {}).get("best")
    if run.meta is None or best is None:
        return "# No model card\n\nData or the best checkpoint are missing or damaged: see report.md.\n"
    evaluation = run.evaluation or run.gym
    if verdict.unsound:
        results = f"Withheld: the record does not hold ({', '.join(verdict.unsound)})."
    # An evaluation of the latest checkpoint says nothing of the best one.
    elif evaluation is None or evaluation.checkpoint_iteration != best.manifest.iteration:
        results = "This policy was not evaluated."
    else:
        results = (
            _returns(evaluation) if isinstance(evaluation, GymEvaluation) else _scores(evaluation)
        )
    audited = "\n".join(
        f"- {name}: {as_markdown(sentence)}" for name, sentence in verdict.summary.lines.items()
    )
    card = gym_card if run.params.prepare.is_gym else growth_card
    return card(Learned.of(best), best.manifest, run.meta, f"{results}\n\nAudit:\n\n{audited}")


def _returns(evaluation: GymEvaluation) -> str:
    """Write a table of the returns of everyone that played."""
    rows = [
        f"| {as_markdown(name)} | {_plain(policy.mean_return)} |"
        for name, policy in evaluation.policies.items()
    ]
    head = (
        f"Mean return of {evaluation.eval_seeds} fresh episodes, {percent(CONFIDENCE)} interval.\n"
    )
    return "\n".join([head, "| policy | return |", "|---|--:|", *rows])


def _scores(evaluation: Evaluation) -> str:
    """Write a table of every policy's scores on held-out tasks."""
    parts = [
        "Test accuracy in points, less the price of parameters where there is one; 95 % intervals over tasks."
    ]
    # Each group has a table of its own: scores of different tasks must not be compared by eye.
    for group, standings in evaluation.standings.items():
        rows = [
            f"| {as_markdown(name)} | {_plain(policy.score)} | {interval(policy.over_common)} | {policy.params:,.0f} |"
            for name, policy in standings.policies.items()
        ]
        head = [
            "| policy | score | over the best common schedule | parameters |",
            "|---|--:|--:|--:|",
        ]
        parts.append("\n".join([f"{standings.tasks} {GROUPS[group]}:", "", *head, *rows]))
    return "\n\n".join(parts)


def _plain(value: Interval) -> str:
    return interval(value).lstrip("+")
