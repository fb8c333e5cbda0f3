"""Health of the policy's features and memory."""

import numpy as np

from simic.agent.health import DORMANT_SHARE, SATURATED
from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, undecided, weighed
from simic.audit.checks.shared import OURS, PERSISTENT, where
from simic.audit.findings import percent
from simic.audit.record import RunRecord


@check
class Memory(Check):
    """H1: a memory that saturates or grows over an episode carries nothing."""

    id = "H1"
    title = "The recurrent state saturates or grows"
    severity = "high"
    question = "Does the hidden state stay in its working range over an episode?"
    needs = ("updates.hidden_growth", "updates.hidden_saturated")
    minimum = 3
    complete = False
    GROWTH, UNITS, SHARE = 10.0, 0.9, limits.BAD_MEMORY
    threshold = (
        f"grows > {GROWTH:g} x from the first to the last step, or > {percent(UNITS)} of units beyond ±{SATURATED:g}, "
        f"in > {percent(SHARE)} of updates"
    )
    source = OURS
    fix = "Lower ppo.learning_rate; check observations for unbounded features (N1)."
    passes_when = f"growth stays within {GROWTH:g} x and saturation within {percent(UNITS)} of units in most updates"

    def examine(self, run: RunRecord) -> Outcome:
        growth, saturated = run.updates.column("hidden_growth"), run.updates.column("hidden_saturated")
        # A fresh core starts from zero state, so its first output is small; NaN counts as bad.
        bad = ~(growth <= self.GROWTH) | ~(saturated <= self.UNITS)
        return weighed([Reading(self.SHARE, bad.mean(), None, where(run, "hidden_growth", bad))])


@check
class Cells(Check):
    """H4: a cell whose tanh is at its end passes no gradient, and one that grows has forgotten how to forget."""

    id = "H4"
    title = "The LSTM's cells saturate or grow"
    severity = "high"
    beyond_default = "the default memory is a GRU, which has no cells"
    question = "Do the cells stay in their working range to the end of an episode?"
    needs = ("updates.cell_norm", "updates.cell_saturated")
    minimum = 3
    counted = "update with an LSTM whose episodes reached the end of the rollout"
    SHARE, NORM = limits.SATURATED_CELLS, limits.CELL_NORM
    threshold = (
        f"median over updates of the share of cells with |tanh| beyond {SATURATED:g} > {percent(SHARE)}, or a root "
        f"mean square > {NORM:g}"
    )
    source = "monitor of an earlier system (root mean square 10); numbers " + OURS
    fix = "Lower ppo.learning_rate; check observations for unbounded features (N1); shorten episodes."
    passes_when = f"cells stay below {NORM:g}, and most of them are not saturated"

    def examine(self, run: RunRecord) -> Outcome:
        norm, saturated = run.updates.column("cell_norm"), run.updates.column("cell_saturated")
        evidence = where(run, "cell_norm", norm > self.NORM)
        return weighed([Reading(self.SHARE, np.median(saturated)), Reading(self.NORM, norm.max(), None, evidence)])


@check
class DormantUnits(Check):
    """H2: units that never fire are wasted capacity."""

    id = "H2"
    title = "Encoder units are dormant"
    severity = "medium"
    question = "Do most encoder units still respond?"
    needs = ("updates.dormant_units",)
    minimum = 3
    SHARE = limits.DORMANT
    threshold = (
        f"> {percent(SHARE)} of units at or below {percent(DORMANT_SHARE)} of the mean activation in the last update"
    )
    source = "Sokar et al. 2023 (arXiv 2302.12902); share " + OURS
    fix = "Lower ppo.learning_rate or ppo.epochs."
    passes_when = f"at most {percent(SHARE)} of the units are dormant"

    def examine(self, run: RunRecord) -> Outcome:
        return weighed([Reading(self.SHARE, run.updates.column("dormant_units")[-1])])


@check
class FeatureRank(Check):
    """H3: features that lose rank while their norm grows precede a collapse that clipping cannot prevent."""

    id = "H3"
    title = "Features lose rank"
    severity = "high"
    question = "Do the features that the heads read keep their rank?"
    needs = ("updates.feature_rank", "updates.hidden_norm")
    minimum = PERSISTENT
    KEPT, UPDATES = limits.RANK_KEPT, 3
    threshold = f"rank below {percent(KEPT)} of its maximum in the last {UPDATES} updates, and a hidden norm that grew"
    source = "Moalla et al. 2024 (arXiv 2405.00662); numbers " + OURS
    fix = "Lower ppo.learning_rate and ppo.epochs; use more environments per update."
    passes_when = f"the rank stays above {percent(KEPT)} of its maximum"

    def examine(self, run: RunRecord) -> Outcome:
        rank, norm = run.updates.column("feature_rank"), run.updates.column("hidden_norm")
        last = rank[-self.UPDATES :]
        if not np.isfinite(last).all():
            return undecided("the last updates measured no rank")
        kept = last.max() / np.nanmax(rank) if norm[-1] > norm[0] else 1.0
        return weighed([Reading(self.KEPT, kept)])
