"""Exploration: entropy of every head."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simic.audit import limits
from simic.audit.checks.base import ENOUGH_ROWS, NOISE, OURS, Check, Outcome, Reading, Values, check, undecided, weighed
from simic.audit.findings import Evidence, percent
from simic.audit.limits import Limit
from simic.audit.record import RunRecord
from simic.telemetry.rows import Severity

WINDOW = 5  # updates
LATE = 0.25  # of the run, at its end


def _heads(run: RunRecord) -> dict[str, Values]:
    """Return normalised entropy by head, NaN in updates where too few rows had a choice; without unmeasured heads."""
    samples = run.updates.below("samples_by_head")
    heads = {
        name: np.where(samples[name] >= ENOUGH_ROWS, values, np.nan)
        for name, values in run.updates.below("entropy_by_head").items()
        if name in samples
    }
    return {name: values for name, values in heads.items() if np.isfinite(values).any()}


def _measured(heads: Mapping[str, Values]) -> int:
    return sum(int(np.isfinite(values).sum()) for values in heads.values())


def _worst(limit: Limit, severity: Severity, values: Mapping[str, float]) -> list[Reading]:
    """Return the worst head with all broken ones as evidence; an empty list without heads."""
    if not values:
        return []
    head = (max if limit.above else min)(values, key=lambda name: values[name])
    beyond = {name: value for name, value in sorted(values.items()) if limit.broken_by(value)}
    evidence: tuple[Evidence, ...] = tuple({"head": name, "value": value} for name, value in beyond.items())
    return [Reading(limit, values[head], severity, evidence)]


@check
class Entropy(Check):
    """Check E1: the entropy of each head starts near uniform, falls, and flattens above zero."""

    id = "E1"
    title = "Entropy of a head collapses, oscillates or stays at its maximum"
    severity = "high"
    question = "Does the entropy of every head fall steadily without reaching zero too soon?"
    needs = ("updates.entropy_by_head.op", "updates.samples_by_head.op")
    minimum = WINDOW
    counted = "update and head with enough choices"
    EARLY, COLLAPSED = 0.5, limits.LEAST_ENTROPY
    SWING, UNIFORM = limits.SWING_OF_ENTROPY, limits.FROM_UNIFORM
    threshold = (
        f"< {COLLAPSED:g} in the first {percent(EARLY)} of the updates: high; oscillates by > {SWING:g} around its "
        f"running mean: medium; nearer than {UNIFORM:g} to its maximum in all of the last {percent(LATE)}: medium for "
        "the op, low for other heads"
    )
    source = "Andy Jones 2021 (near 0 collapsed, oscillation = learning rate too high); numbers " + OURS
    fix = "Collapsed: raise ppo.entropy_coef. Oscillating: lower ppo.learning_rate. Uniform: train longer."
    passes_when = (
        f"no head is below {COLLAPSED:g} in the first {percent(EARLY)} of the run, oscillates by more than {SWING:g}, "
        "or is uniform at the end"
    )

    def examine(self, run: RunRecord) -> Outcome:
        heads, train = _heads(run), run.params.train
        if not heads:
            return undecided(f"no head had a choice in {ENOUGH_ROWS} rows of any update").of(0)
        progress = run.updates.column("iteration") / max(1, train.iterations)
        early, late = progress < self.EARLY, progress >= 1 - LATE
        least = {name: float(np.nanmin(v[early])) for name, v in heads.items() if np.isfinite(v[early]).any()}
        swing = {name: _swing(values) for name, values in heads.items()}
        away = {n: float((1 - v[late]).max()) for n, v in heads.items() if late.any() and np.isfinite(v[late]).all()}
        of_op = "op" in away and self.UNIFORM.broken_by(away["op"])
        readings = _worst(self.COLLAPSED, "high", least) + _worst(self.SWING, "medium", swing)
        return weighed(readings + _worst(self.UNIFORM, "medium" if of_op else "low", away)).of(_measured(heads))


def _won(run: RunRecord) -> NDArray[np.bool_]:
    """Return for each update after the first window whether returns exceed those of the first update beyond noise."""
    rows = np.searchsorted(run.episodes.column("iteration"), run.updates.column("iteration"))
    returns = run.episodes.column("return")[rows]
    mean, error = returns.mean(axis=1), returns.var(axis=1) / returns.shape[1]
    return mean[WINDOW:] - mean[0] > NOISE * np.sqrt(error[WINDOW:] + error[0])


def _swing(values: Values) -> float:
    """Return peak to peak around the running mean; 0 for fewer updates than two windows, or with gaps."""
    if len(values) < 2 * WINDOW or not np.isfinite(values).all():
        return 0.0
    residual = values[WINDOW // 2 : -(WINDOW // 2)] - np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")
    return float(np.ptp(residual))


@check
class EntropyDrop(Check):
    """Check E2: entropy does not halve within a few updates while returns have not risen."""

    id = "E2"
    title = "Entropy falls too fast"
    severity = "high"
    question = "Does exploration shrink gradually, unless it has found something?"
    needs = ("updates.entropy_by_head.op", "updates.samples_by_head.op", "episodes.return")
    minimum = WINDOW + 1
    counted = "pair of updates of PPO and head with enough choices"
    LOST, LITTLE = limits.LOSS_OF_ENTROPY, limits.LEAST_ENTROPY
    threshold = (
        f"a head loses more than {percent(LOST)} of an entropy above {LITTLE:g} within {WINDOW} updates, and "
        f"returns are then not above those of the first update by more than {NOISE:g} standard errors"
    )
    source = "Schulman, Nuts and Bolts (going down too fast); number " + OURS
    fix = "Raise ppo.entropy_coef or lower ppo.learning_rate."
    passes_when = f"no head loses more than {percent(LOST)} of its entropy within {WINDOW} updates"

    def examine(self, run: RunRecord) -> Outcome:
        drops: dict[str, float] = {}
        pairs, won = 0, _won(run)
        for name, values in _heads(run).items():
            before, after = values[:-WINDOW], values[WINDOW:]
            lost = np.where(before > self.LITTLE, 1 - after / np.maximum(before, 1e-12), np.nan)
            pairs += int(np.isfinite(lost).sum())
            if np.isfinite(lost).any():
                drops[name] = float(np.nanmax(np.where(won & (lost > 0), 0.0, lost)))
        if not drops:
            return undecided(f"no head had a choice in {ENOUGH_ROWS} rows of updates {WINDOW} apart").of(0)
        return weighed(_worst(self.LOST, "high", drops)).of(pairs)
