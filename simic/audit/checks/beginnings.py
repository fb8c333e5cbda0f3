"""How the policy begins, and by which optimiser it learns."""

import numpy as np

from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, undecided, weighed
from simic.audit.findings import Evidence, number
from simic.audit.record import RunRecord


@check
class FirstEntropy(Check):
    """M4: a policy whose last layers begin small tries everything at first; a head that begins with a lean is left out,
    since K1 derives its logits.
    """

    id = "M4"
    title = "The policy begins with preferences"
    severity = "low"
    question = "Before any step, is every choice almost equally likely?"
    needs = ("updates.first_entropy", "updates.iteration")
    counted = "untrained policy"
    LEAST = limits.FIRST_ENTROPY
    threshold = (
        f"mean normalised entropy of the first minibatch of the run, of heads that begin without a lean, < {LEAST:g}"
    )
    source = "Schulman, Nuts and Bolts; Andrychowicz et al. 2020; Huang et al. 2022 (gain 0.01 of the last layer)"
    fix = "Scale the last layer of every head down (simic/agent/policy.py)."
    passes_when = "the untrained policy is close to uniform"

    def examine(self, run: RunRecord) -> Outcome:
        first = run.updates.column("first_entropy")[run.updates.column("iteration") == 0]
        if not first.size or np.isnan(first[0]):
            return undecided("the first update of the run is not here").of(0)
        return weighed([Reading(self.LEAST, first[0])]).of(1)


@check
class Optimizer(Check):
    """M5: what the optimiser did is what the params say, and is written down."""

    id = "M5"
    title = "The optimiser is not that of the params"
    severity = "high"
    question = "Are Adam's epsilon and the learning rate of every update those of the params?"
    needs = ("updates.adam_eps", "updates.learning_rate", "params")
    MOST = limits.OPTIMIZER_OFF
    threshold = f"either off by more than {number(MOST)} of itself; a linear learning rate is recomputed by C5"
    source = "Huang et al. 2022 (epsilon 1e-5, annealing); CleanRL: a departure has to be on record"
    fix = "Hand the optimiser ppo.adam_eps and ppo.learning_rate, and nothing else."
    passes_when = "every update used what the params say"

    def examine(self, run: RunRecord) -> Outcome:
        ppo = run.params.train.ppo
        given = {"adam_eps": ppo.adam_eps}
        if ppo.learning_rate_schedule == "constant":
            given["learning_rate"] = ppo.learning_rate
        off = {name: float(np.abs(run.updates.column(name) / value - 1).max()) for name, value in given.items()}
        evidence: list[Evidence] = [
            {"what": name, "params": given[name], "largest_difference": value}
            for name, value in off.items()
            if not value <= self.MOST
        ]
        return weighed([Reading(self.MOST, max(off.values()), None, tuple(evidence))])
