"""Whether the policy still explores: entropy of every head, and which ops it chooses."""

import numpy as np

from simic.audit.checks.base import Check, Outcome, check, found, judged, passed, undecided
from simic.audit.checks.shared import ENOUGH_ROWS, OURS, Values
from simic.audit.findings import Evidence, percent
from simic.audit.record import RunRecord
from simic.growth.life.vocabulary import Op

WINDOW = 5  # updates
LATE = 0.25  # of the run, at its end


def _heads(run: RunRecord) -> dict[str, Values]:
    """Normalised entropy by head, NaN in updates where too few rows had a choice."""
    samples = run.updates.below("samples_by_head")
    return {
        name: np.where(samples[name] >= ENOUGH_ROWS, values, np.nan)
        for name, values in run.updates.below("entropy_by_head").items()
        if name in samples
    }


# The divergence is NaN where an update cloned; entropy then follows what was shown, and is no sign of exploration.
OF_PPO = ("updates.entropy_by_head.op", "updates.samples_by_head.op", "updates.approx_kl")


@check
class Entropy(Check):
    """E1: each head starts near uniform, falls, flattens above zero."""

    id = "E1"
    title = "Entropy of a head collapses, oscillates or stays at its maximum"
    severity = "high"
    question = "Does the entropy of every head fall steadily without reaching zero too soon?"
    needs = OF_PPO
    minimum = WINDOW
    EARLY, COLLAPSED = 0.5, 0.05
    SWING = 0.3
    UNIFORM = 0.95
    threshold = (
        f"< {COLLAPSED:g} in the first {percent(EARLY)} of the run: high; oscillates by > {SWING:g} around its running "
        f"mean: medium; > {UNIFORM:g} in all of the last {percent(LATE)}: medium for the op, low for other heads"
    )
    source = "Andy Jones 2021 (near 0 collapsed, oscillation = learning rate too high); numbers " + OURS
    fix = "Collapsed: raise ppo.entropy_coef. Oscillating: lower ppo.learning_rate. Uniform: train longer."
    passes_when = (
        f"no head is below {COLLAPSED:g} in the first {percent(EARLY)} of the run, oscillates by more than {SWING:g}, "
        "or is uniform at the end"
    )

    def examine(self, run: RunRecord) -> Outcome:
        heads = {name: values for name, values in _heads(run).items() if np.isfinite(values).any()}
        if not heads:
            return undecided(f"no head had a choice in {ENOUGH_ROWS} rows of any update")
        progress = run.updates.column("iteration") / max(1, run.params.train.iterations)
        early, late = progress < self.EARLY, progress >= 1 - LATE
        collapsed = {n: float(np.nanmin(v[early])) for n, v in heads.items() if (v[early] < self.COLLAPSED).any()}
        if collapsed:
            return found("down to " + _said(collapsed), "high", _evidence(collapsed))
        swings = {name: swing for name, values in heads.items() if (swing := _swing(values)) > self.SWING}
        if swings:
            return found("oscillates by " + _said(swings), "medium", _evidence(swings))
        uniform = {
            n: float(np.nanmin(v[late])) for n, v in heads.items() if late.any() and (v[late] > self.UNIFORM).all()
        }
        if uniform:
            return found("uniform: " + _said(uniform), "medium" if "op" in uniform else "low", _evidence(uniform))
        last = {name: float(values[np.isfinite(values)][-1]) for name, values in heads.items()}
        return passed("last measured: " + _said(last))


def _said(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def _evidence(values: dict[str, float]) -> tuple[Evidence, ...]:
    return tuple({"head": name, "value": value} for name, value in sorted(values.items()))


def _swing(values: Values) -> float:
    """Peak to peak around the running mean, where all are measured; 0 for fewer updates than two windows."""
    if len(values) < 2 * WINDOW or not np.isfinite(values).all():
        return 0.0
    residual = values[WINDOW // 2 : -(WINDOW // 2)] - np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")
    return float(np.ptp(residual))


@check
class EntropyDrop(Check):
    """E2: an entropy that halves within a few updates is going down too fast."""

    id = "E2"
    title = "Entropy falls too fast"
    severity = "high"
    question = "Does exploration shrink gradually?"
    needs = OF_PPO
    minimum = WINDOW + 1
    LOST = 0.5
    threshold = f"a head loses more than {percent(LOST)} of its entropy within {WINDOW} updates"
    source = "Schulman, Nuts and Bolts (going down too fast); number " + OURS
    fix = "Raise ppo.entropy_coef or lower ppo.learning_rate."
    passes_when = f"no head loses more than {percent(LOST)} of its entropy within {WINDOW} updates"

    def examine(self, run: RunRecord) -> Outcome:
        drops: dict[str, float] = {}
        for name, values in _heads(run).items():
            before, after = values[:-WINDOW], values[WINDOW:]
            with np.errstate(invalid="ignore", divide="ignore"):
                lost = np.where(before > 0, (before - after) / before, np.nan)
            if np.isfinite(lost).any():
                drops[name] = float(np.nanmax(lost))
        if not drops:
            return undecided(f"no head had a choice in {ENOUGH_ROWS} rows of updates {WINDOW} apart")
        name = max(drops, key=lambda head: drops[head])
        measured = f"largest loss in {WINDOW} updates: {name} {100 * drops[name]:.0f} %"
        bad = {head: drop for head, drop in drops.items() if drop > self.LOST}
        return judged(bool(bad), measured, _evidence(bad))


@check
class OpShares(Check):
    """E4: a policy that only waits, or never finishes what it starts, has stopped exploring growth."""

    id = "E4"
    title = "The policy uses only one op"
    severity = "medium"
    question = "Does the policy use more than one op?"
    needs = ("steps.op", "steps.valid")
    post_hoc = True
    SHARE = 0.98
    threshold = (
        f"one op makes up > {percent(SHARE)} of the decisions in the last {percent(LATE)} of the recorded iterations"
    )
    source = OURS
    fix = "Compare with never growing (F1): if waiting is not better, raise ppo.entropy_coef."
    passes_when = f"no op exceeds {percent(SHARE)}"

    def examine(self, run: RunRecord) -> Outcome:
        iterations = run.steps.column("iteration")
        late = iterations >= np.quantile(np.unique(iterations), 1 - LATE)
        ops = run.steps.column("op")[late][run.steps.column("valid")[late]]
        shares = np.bincount(ops, minlength=len(Op)) / max(1, ops.size)
        measured = ", ".join(f"{op.name} {100 * shares[op]:.1f} %" for op in Op)
        evidence = tuple({"op": op.name, "share": float(shares[op])} for op in Op)
        return judged(shares.max() > self.SHARE, measured, evidence)
