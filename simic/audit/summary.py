"""The report's summary: training, live findings, and the verdict in five lines; it is part of findings.json."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from simic.audit.findings import (
    PROOF,
    Committed,
    Layer,
    LayerCount,
    Message,
    Result,
    Status,
    Summary,
    TrainingSummary,
    ValidationScore,
    Verdict,
)
from simic.audit.record import RunRecord, Table
from simic.evaluation import endpoints
from simic.evaluation.result import LEARNED, Evaluation, PolicyComparison
from simic.evaluation.statistics import Interval
from simic.growth.life.vocabulary import Action
from simic.params import PolicyName

COMPARES: dict[Layer, str] = {
    "bind": "files with the hashes that each stage recorded",
    "recompute": "recorded numbers with those computed again from the tables",
    "certify": "iterations, episodes, evaluation, headroom and exported network with an independent float64 reference",
    "resume": "killed and resumed trainings of this code with one that was not killed",
    "symptom": "measurements with the limits of sound training; these are signs, not proof",
}
HEALTH = ("approx_kl", "explained_variance", "clip_fraction", "grad_norm")
LABELS = {
    "learned": "learned (greedy)",
    "static": "static (never grows)",
    "learned_sampled": "learned (sampled)",
    "random_legal": "random",
    "blind": "learned, blind",
    "tuned_rule": "tuned rule",
    "patient": "patient rule",
}


def summarize(run: RunRecord, verdict: Verdict) -> Summary:
    """Summarise a run and the results of its checks."""
    training = train_summary(run)
    return Summary(
        lines=_lines(run, verdict, training),
        layers=tuple(_count(verdict.results, layer) for layer in get_args(Layer)),
        training=training,
        messages=_messages(run.told),
        gains=tuple(case.gain for case in run.evaluation.cases) if run.evaluation else (),
    )


def label(policy: str) -> str:
    """Return a policy's name for a reader."""
    return LABELS.get(policy, policy)


def against(comparison: PolicyComparison) -> str:
    """Return a comparison in words."""
    d = comparison.difference_pct
    meaning = "better" if d.low > 0 else "worse" if d.high < 0 else "no difference shown"
    return f"{d.estimate:+.2f} points [{d.low:+.2f}, {d.high:+.2f}] against {label(comparison.second)}, {meaning}"


def _count(results: Sequence[Result], layer: Layer) -> LayerCount:
    statuses = [result.status for result in results if result.layer == layer]
    ended = {status: statuses.count(status) for status in Status}
    return LayerCount(
        layer=layer,
        compares=COMPARES[layer],
        held=ended[Status.PASS],
        differ=ended[Status.FINDING],
        not_evaluated=ended[Status.NOT_EVALUATED],
    )


def _messages(told: Table) -> tuple[Message, ...]:
    if not len(told):
        return ()
    columns = (told.column(name).tolist() for name in ("iteration", "severity", "check", "message"))
    return tuple(
        Message(iterations=iteration + 1, severity=severity, check=check, message=message)
        for iteration, severity, check, message in zip(*columns, strict=True)
    )


# --- training --------------------------------------------------------------------------------------------------------


def train_summary(run: RunRecord) -> TrainingSummary:
    """Summarise training."""
    updates = run.updates
    heads = updates.below("entropy_by_head")
    order = {name: index for index, name in enumerate(Action._fields)}
    rewards = reward_components(run)[1]
    return TrainingSummary(
        iterations=len(updates),
        env_steps=int(updates.column("env_steps")[-1]) if len(updates) and "env_steps" in updates else None,
        committed=_committed(run.episodes),
        validations=_validations(updates),
        health={name: _last(updates.column(name)) for name in HEALTH if name in updates},
        entropy={name: _last(heads[name]) for name in sorted(heads, key=lambda h: (order.get(h, len(order)), h))},
        rewards={name: float(values[-1]) for name, values in rewards.items()},
    )


def _committed(episodes: Table) -> Committed | None:
    if not len(episodes):
        return None
    mean = np.nanmean(episodes.column("committed_accuracy"), axis=1)
    return Committed(first=float(mean[0]), last=float(mean[-1]), best=float(mean.max()))


def _validations(updates: Table) -> tuple[ValidationScore, ...]:
    if not len(updates) or "validation_accuracy" not in updates:
        return ()
    chosen = updates.column("best_iteration")[-1]
    return tuple(
        ValidationScore(iterations=int(iteration) + 1, score=float(score), chosen=bool(iteration + 1 == chosen))
        for iteration, score in zip(updates.column("iteration"), updates.column("validation_accuracy"), strict=True)
        if np.isfinite(score)
    )


def reward_components(run: RunRecord) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return iterations from 1 on, and each component per episode in them, mean over hosts; without those always 0."""
    parts = run.steps.below("components")
    if not parts:
        return np.zeros(0), {}
    iterations, valid = run.steps.column("iteration"), run.steps.column("valid")
    axis = np.unique(iterations)
    paid = {
        name: np.array([np.where(valid, values, 0.0)[iterations == i].sum(axis=0).mean() for i in axis])
        for name, values in parts.items()
    }
    return axis + np.float64(1.0), {name: values for name, values in paid.items() if values.any()}


def _last(values: NDArray[np.float64]) -> float | None:
    """Return the last finite value."""
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if finite.size else None


# --- the verdict in five lines ---------------------------------------------------------------------------------------


def _lines(run: RunRecord, verdict: Verdict, training: TrainingSummary) -> tuple[str, ...]:
    """Return the five lines: result, comparison, proof, findings, cost with evidence."""
    reached = _reached(run.evaluation)
    if verdict.refuted:
        reason = f"since the record does not hold ({', '.join(verdict.refuted)})"
        reached = f"Score: withheld, {reason}.", "Comparison: withheld."
    cost = f"{_cost(run.evaluation, training)} {_evidence(run.evaluation)}"
    return *reached, _proven(verdict), _findings(verdict), cost


def _proven(verdict: Verdict) -> str:
    proof = [result.status for result in verdict.results if result.layer in PROOF]
    held, unknown = proof.count(Status.PASS), proof.count(Status.NOT_EVALUATED)
    said = f"{'Certified' if verdict.certified else 'Not certified'}: {held} of {len(proof)} checks of the record hold"
    if unknown:
        said += f", {unknown} could not be evaluated"
    if verdict.unseen:
        said += f"; not evaluated, though a finding would be critical: {', '.join(verdict.unseen)}"
    return f"{said}; the record does not hold in {', '.join(verdict.refuted)}." if verdict.refuted else f"{said}."


def _reached(evaluation: Evaluation | None) -> tuple[str, str]:
    if evaluation is None or LEARNED not in evaluation.policies:
        return "Score: the trained policy was not evaluated.", "Comparison: none."
    score, gap = endpoints.said(evaluation)
    policy = evaluation.policies[LEARNED]
    reached = (
        f"{_interval(policy.test_accuracy_pct)} points on the test splits of all {evaluation.eval_seeds} evaluated "
        f"hosts, with {policy.params:,.0f} parameters, "
        f"{policy.growth_ratio:.2f} times as many as the bare host"
    )
    return f"{score}.", f"Gap: {gap}. Accuracy: {reached}. {_compared(evaluation)}"


def _interval(value: Interval) -> str:
    return f"{value.estimate:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _compared(evaluation: Evaluation) -> str:
    """Compare with never growing, and with the strongest baseline."""
    others = [c for c in evaluation.comparisons if c.second not in get_args(PolicyName)]
    if not others:
        return "No baseline was evaluated."
    hardest = min(others, key=lambda comparison: comparison.difference_pct.estimate)
    static = evaluation.comparison(LEARNED, "static")
    said = [against(static)] if static else []
    if static is None or hardest.second != "static":
        said.append(f"strongest baseline: {against(hardest)}")
    return f"{'; '.join(said)}."


def _findings(verdict: Verdict) -> str:
    grave = [f"{number} {severity}" for severity, number in verdict.counts().items() if number]
    passed, unknown = verdict.with_status(Status.PASS), verdict.with_status(Status.NOT_EVALUATED)
    critical = sum(result.severity == "critical" for result in unknown)
    return (
        f"Findings: {', '.join(grave) if grave else 'none'}. {len(passed)} checks passed, {len(unknown)} could not be "
        f"evaluated; {critical} of these would be critical."
    )


def _cost(evaluation: Evaluation | None, training: TrainingSummary) -> str:
    """State the cost of training the controller."""
    trainings = evaluation.controller_trainings if evaluation else None
    hosts = f"{trainings:,} host trainings in " if trainings is not None else ""
    steps = f", {training.env_steps:,} environment steps" if training.env_steps is not None else ""
    return f"Cost: the controller was trained by {hosts}{training.iterations} iterations{steps}."


def _evidence(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "Evidence: no evaluation, so nothing can be claimed."
    return (
        f"Evidence: {evaluation.eval_seeds} paired evaluation seeds of one training run, so claims concern this "
        "checkpoint, not training with other rng seeds."
    )
