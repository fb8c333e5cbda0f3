"""One or more planted defects for every check: the severity it must be found at, and how it is planted."""

from dataclasses import replace

import numpy as np

from simic.audit.findings import ReplayResult
from simic.growth.life.vocabulary import Op
from simic.telemetry.rows import FindingRow


def put(rows, value):
    """Write a value at some rows."""

    def change(values):
        values[rows] = value

    return change


def everywhere(value):
    return put(slice(None), value)


def update(name, rows, value):
    return lambda p: p.column("updates", name, put(rows, value))


def two(first, second):
    return lambda p: second(first(p))


def scored(p, name, like, accuracies, **changes):
    """Evaluate a policy ``like`` another, under a name, with other test scores."""
    old = p.run.evaluation
    seeds = old.policies[like].per_seed.model_copy(update={"test_accuracy_pct": accuracies})
    policy = old.policies[like].model_copy(update={"per_seed": seeds})
    changes |= {"policies": {**old.policies, name: policy}}
    return p.attribute(evaluation=old.model_copy(update=changes))


def gaining(p, opponent, gain, rows):
    """Let the learned policy gain ``gain(task)`` points over its opponent on every host, whose tasks are ``rows``."""
    accuracies = p.run.evaluation.policies[opponent].per_seed.test_accuracy_pct
    gained = tuple(value + gain(task) for value, task in zip(accuracies, rows, strict=True))
    return scored(p, "learned", "learned", gained, rows=rows)


def versus(opponent, low, high):
    """Let the learned policy gain ``low`` and ``high`` over its opponent on every other task."""
    return lambda p: gaining(
        p, opponent, lambda task: high if task % 2 else low, p.run.evaluation.rows
    )


def said(change):
    """Edit the plain tree of evaluation.json."""

    def damage(p):
        tree = p.run.evaluation.model_dump()
        change(tree)
        return p.attribute(evaluation=type(p.run.evaluation).model_validate(tree))

    return damage


def measured(**changes):
    """Other values in headroom.json."""
    return lambda p: p.attribute(headroom=p.run.headroom.model_copy(update=changes))


def better(tree):
    """Claim a point more for the learned policy than its rows give."""
    tree["standings"]["held_out"]["policies"]["learned"]["score"]["estimate"] += 1.0


def flattered(p):
    """Edit a test score of one schedule on one host after the evaluation."""
    first, *hosts = p.run.headroom.test_pct
    return measured(test_pct=((first[0] + 5.0, *first[1:]), *hosts))(p)


def provenance(**changes):
    return lambda p: p.attribute(provenance=replace(p.run.provenance, **changes))


def told(severity):
    """Record a finding of a resume."""
    finding = FindingRow(
        iteration=3, check="damaged_checkpoint", severity=severity, message="checkpoint 4: damaged"
    )
    return lambda p: provenance(origin=replace(p.run.provenance.origin, findings=(finding,)))(p)


def replayed(part):
    """Let the replay of a part differ."""
    differing = ReplayResult(
        part=part,
        outcome="differs",
        detail="iteration 3: 1 value differs",
        differences=("state after",),
    )
    return lambda p: p.attribute(
        replays=lambda: (differing, *(other for other in p.run.replays() if other.part != part))
    )


def alternating(low, high):
    return lambda values: np.where(np.arange(len(values)) % 2 == 0, low, high)


def ransom(p):
    """Lower the accuracy since germination of seeds that contribute."""
    return p.column(
        "steps",
        "live_accuracy",
        lambda values: values - 20.0 * (p.run.steps.column("step") > 3)[:, None],
    )


def falling(values):
    return values[::-1].copy()


# The policy at a length that headroom did not measure.
ELSEWHERE = {"epochs": 9, "per_seed": {}, "standings": {}}

# id: list of (severity expected, planting)
DEFECTS = {
    "R1": [("critical", update("first_ratio_deviation", 7, 3e-3)),
           ("critical", update("first_ratio_deviation", 0, np.nan))],
    "R2": [("high", update("ratio_mean", 5, 11.0)), ("medium", update("ratio_max", 5, 25.0)),
           ("medium", update("ratio_min", 5, 0.01))],
    "R3": [("critical", update("update_kl", slice(5, 12), 0.2)), ("high", update("update_kl", slice(5, 12), 0.06)),
           ("medium", update("update_kl", slice(5, 12), 0.024)), ("medium", update("update_kl", slice(None), 0.0)),
           ("high", update("update_kl", 5, 0.4))],
    "E1": [("high", update("entropy_by_head.blueprint", slice(4, 8), 0.01)),
           ("medium", lambda p: p.column("updates", "entropy_by_head.op", alternating(0.35, 0.95))),
           ("medium", update("entropy_by_head.op", slice(None), 0.99)),
           ("low", update("entropy_by_head.style", slice(None), 0.99))],
    "V1": [("medium", update("explained_variance", slice(0, 12), -0.4)),
           ("medium", update("explained_variance", slice(12, None), 0.05))],
    "G2": [("high", update("grad_norm_by_part.head_tempo", slice(3, 14), 1e-4))],
    "H1": [("high", update("hidden_growth", slice(0, 15), 40.0)),
           ("high", update("hidden_saturated", slice(0, 15), 0.95)),
           ("high", update("hidden_growth", slice(0, 15), np.nan))],
    "P5": [("critical", lambda p: p.column("steps", "reward", put((17, 2), 3.0))),
           ("critical", lambda p: p.column("steps", "reward", put((17, 2), np.nan)))],
    "P3": [("high", lambda p: p.column("episodes", "committed_accuracy", falling))],
    "P6": [("high", ransom)],
    "M1": [("critical", lambda p: p.column("steps", "effective_op", put((9, 1), int(Op.WAIT))))],
    "M2": [("high", lambda p: p.column("steps", "panicked", put((8, 0), True))),
           ("high", lambda p: p.column("steps", "valid", put((8, 0), False)))],
    "F1": [("critical", versus("static", -3.0, -1.0)), ("low", versus("static", -1.0, 1.0)),
           ("critical", versus("static", 0.0, 0.0))],
    "F2": [("critical", versus("random_legal", -3.0, -1.0)), ("low", versus("random_legal", -1.0, 1.0))],
    "F3": [("medium", versus("patient", -3.0, -1.0)), ("low", versus("patient", -1.0, 1.0)),
           ("low", versus("patient", 0.0, 0.0))],
    "X6": [("critical", provenance(damaged=("checkpoints/best/state.safetensors: damaged",))),
           ("critical", provenance(data_sha256="0" * 64))],
    "X8": [("critical", said(better)), ("critical", flattered),
           ("critical", said(lambda tree: tree["standings"]["held_out"]["by_kind"]["kind-0"].update(learned=99.0))),
           ("critical", said(lambda tree: tree["policies"]["patient"]["per_seed"].update(pruned=(1,) * 20))),
           ("critical", said(lambda tree: tree["standings"].pop("held_out_kinds"))),
           ("critical", measured(data_sha256="0" * 64)),
           ("critical", said(lambda tree: tree["cases"][0].update(score=99.0))),
           ("critical", said(lambda tree: tree["others"].update({"9 epochs": ELSEWHERE}))),
           ("critical", said(lambda tree: tree["comparisons"][0].update(p_value=0.5))),
           ("critical", said(lambda tree: tree["policies"]["learned"].update(germinated=9.0))),
           ("critical", measured(common=2)), ("critical", measured(common_cost=5)),
           ("critical", measured(grid_cost=5))],
    "F4": [("medium", said(lambda tree: tree["standings"]["held_out"]["policies"]["learned"].update(
               over_common={"estimate": -2.0, "low": -3.0, "high": -1.0})))],
    "X7": [("critical", lambda p: p.attribute(metrics={**p.run.metrics, "telemetry/metrics.json": {"iterations": 3}})),
           ("critical", lambda p: p.attribute(metrics={})), ("critical", lambda p: p.attribute(evaluation=None))],
    "Z1": [("critical", replayed("training"))],
    "Z2": [("critical", replayed("evaluation"))],
    "X9": [(severity, told(severity)) for severity in ("low", "medium", "high")],
}  # fmt: skip
