"""What the environment did with the decisions: legality, episode ends, rollbacks, normalisation."""

import numpy as np

from simic.audit import limits
from simic.audit.checks.base import Check, Outcome, Reading, check, judged, weighed
from simic.audit.checks.shared import MOST_EVIDENCE, NOISE, OURS, episodes, where, where_steps
from simic.audit.findings import Evidence, number, percent
from simic.audit.record import RunRecord
from simic.growth.life.vocabulary import Op


def _ops(run: RunRecord, bad: np.ndarray) -> tuple[Evidence, ...]:
    names = np.array([op.name for op in Op])
    return where_steps(run, bad, "op", names[run.steps.column("op")])


@check
class Legality(Check):
    """M1: masks make every sampled action legal, so only a gate may keep an op from taking effect."""

    id = "M1"
    title = "An illegal action was sampled or executed"
    severity = "critical"
    layer = "recompute"
    question = "Did every sampled op take effect unless a gate refused it?"
    needs = ("steps.op", "steps.effective_op", "steps.gate", "steps.gate_passed", "steps.valid")
    threshold = "a valid step whose effective op is not the sampled one (WAIT where a gate refused)"
    source = "Huang and Ontanon 2020 (invalid action masking); sb3-contrib tests"
    fix = "Build masks from the lifecycle's own table, and replay with exactly the masks used when acting."
    passes_when = "sampled and effective op differ only where a gate refused"

    def examine(self, run: RunRecord) -> Outcome:
        op, effective, gate, passed_gate, valid = (
            run.steps.column(name) for name in ("op", "effective_op", "gate", "gate_passed", "valid")
        )
        refused = (gate >= 0) & ~passed_gate
        bad = valid & (np.where(refused, int(Op.WAIT), op) != effective)
        return judged(bad, f"{int(bad.sum())} of {int(valid.sum())} decisions", _ops(run, bad))


@check
class EpisodeEnds(Check):
    """M2: a row is experience until its host is rolled back, and never after."""

    id = "M2"
    title = "Validity of rows does not follow the rollbacks"
    severity = "high"
    question = "Is every row valid up to a rollback and none after it?"
    needs = ("steps.valid", "steps.panicked", "steps.step")
    threshold = "a valid row after its host's rollback, or an invalid row without one before it"
    source = "cleanrl#198, skrl#224 (rows of ended episodes leak into advantages)"
    fix = "Mask the rows after a rollback, and only those, out of the rollout."
    passes_when = "validity ends exactly with a rollback"

    def examine(self, run: RunRecord) -> Outcome:
        valid, panicked = run.steps.column("valid"), run.steps.column("panicked")
        expected = np.ones_like(valid)
        for rows in episodes(run):
            expected[rows[1:]] = ~np.logical_or.accumulate(panicked[rows[:-1]])
        bad = valid != expected
        return weighed([Reading(limits.WRONG_ROWS, bad.sum(), None, _ops(run, bad))])


@check
class Rollbacks(Check):
    """S2: frequent rollbacks mean that hosts are trained too hard, and cost samples."""

    id = "S2"
    title = "Hosts are rolled back too often"
    severity = "high"
    question = "Are rollbacks rare?"
    counted = "episode of a host"
    needs = ("steps.panicked", "steps.valid", "episodes.panicked")
    EPISODES, STEPS = limits.ROLLED_BACK, limits.DISCARDED_STEPS
    threshold = (
        f"> {percent(EPISODES)} of episodes rolled back, less {NOISE:g} standard errors of so few; or > "
        f"{percent(STEPS)} of steps discarded"
    )
    source = "paiml/entrenar#127 (3 rollbacks); shares " + OURS
    fix = "Lower train.host_optimizer.learning_rate or max_grad_norm; see the rollback events for causes."
    passes_when = f"at most {percent(EPISODES)} of episodes are rolled back and {percent(STEPS)} of steps discarded"

    def examine(self, run: RunRecord) -> Outcome:
        panicked = run.episodes.column("panicked")
        # A count of rare events has its own square root as standard error.
        rate = max(0.0, panicked.sum() - NOISE * np.sqrt(panicked.sum())) / panicked.size
        lost = (~run.steps.column("valid")).mean()
        counts = zip(run.episodes.column("iteration"), panicked.sum(axis=1), strict=True)
        evidence = tuple({"iteration": int(i), "rollbacks": int(n)} for i, n in counts if n)
        shown = evidence[:MOST_EVIDENCE]
        readings = [Reading(self.EPISODES, rate, None, shown), Reading(self.STEPS, lost, None, shown)]
        return weighed(readings).of(panicked.size)


UNIT = 10.0  # how far from 1 returns that are not scaled may vary; ours


@check
class Normalisation(Check):
    """N1: unscaled observations or rewards make every other number here hard to read."""

    id = "N1"
    title = "Observations or rewards are not normalised"
    severity = "medium"
    question = "Are observations normalised, and rewards, unless they are of the order of 1 as they are?"
    needs = ("params", "updates.observation_clipped", "updates.return_std")
    OFF, SHARE = limits.SCALES_OFF, limits.CLIPPED_OBSERVATIONS
    threshold = (
        f"more than {OFF:g} of ppo.normalize_observations and ppo.normalize_rewards are off, the latter with returns "
        f"whose typical deviation is not within {1 / UNIT:g} and {UNIT:g}; or > {percent(SHARE)} of normalised "
        "observations lie on their clip in most updates"
    )
    source = "Schulman, Nuts and Bolts (clip((x - mu) / sigma, -10, 10)); Stable-Baselines3 tips; share " + OURS
    fix = "Switch both on, or give rewards a weight that makes returns vary by about one."
    passes_when = f"neither is missing, and at most {percent(SHARE)} of observations are clipped"

    def examine(self, run: RunRecord) -> Outcome:
        ppo = run.params.train.ppo
        spread = float(np.median(run.updates.column("return_std")))
        needed = {"normalize_observations": True, "normalize_rewards": not 1 / UNIT <= spread <= UNIT}
        off = [name for name, needs_it in needed.items() if needs_it and not getattr(ppo, name)]
        clipped = float(np.median(run.updates.column("observation_clipped")))
        named = tuple({"off": name} for name in off)
        return weighed([Reading(self.OFF, len(off), None, named), Reading(self.SHARE, clipped)])


@check
class ScalesOfActing(Check):
    """N2: what an update learns from is what the policy saw, by the scales of that moment."""

    id = "N2"
    title = "Stored observations were not normalised as when acting"
    severity = "high"
    question = "Do raw observations, normalised again with the scales of acting, equal those that were stored?"
    needs = ("updates.normalizer_deviation",)
    counted = "rollout"
    MOST = limits.DEVIATION_OF_SCALES
    threshold = f"any stored value off by more than {number(MOST)}"
    source = "finding S-C5 of docs/history/findings.md; tolerance: rounding of float32"
    fix = "Freeze the scales while a rollout runs; update them once, after it."
    passes_when = "every rollout's observations are those of one set of scales"

    def examine(self, run: RunRecord) -> Outcome:
        apart = run.updates.column("normalizer_deviation")
        evidence = where(run, "normalizer_deviation", ~(apart <= self.MOST))
        return weighed([Reading(self.MOST, apart.max(), None, evidence)])


@check
class FreshMemory(Check):
    """M3: an episode that begins with another one's memory is another task."""

    id = "M3"
    title = "Episodes begin with a memory"
    severity = "critical"
    question = "Is the recurrent state 0 where an episode starts?"
    needs = ("updates.start_state",)
    counted = "rollout"
    MOST = limits.MEMORY_AT_START
    threshold = f"any value of it above {MOST:g}"
    source = "Huang et al. 2022, details of LSTMs 2 to 4"
    fix = "Reset the state of the environments whose episode ended, before the next observation."
    passes_when = "every episode begins with zeros"

    def examine(self, run: RunRecord) -> Outcome:
        state = run.updates.column("start_state")
        return weighed([Reading(self.MOST, state.max(), None, where(run, "start_state", ~(state <= self.MOST)))])
