"""Faults in what belongs to what: artifacts of other runs, edited or missing records."""

from tests.faults import tampering as files
from tests.faults.fault import Faults, Patch, Tampering, critical, high

TRAINER, CHECKPOINT = "training/trainer.py", "training/checkpoint.py"

FAULTS: Faults = {
    "evaluation-of-another-run": critical(
        "evaluation.json is that of another run.", Tampering("evaluate", files.another("reports/evaluation.json"))
    ),
    "headroom-of-another-run": critical(
        "headroom.json is that of another run, exchanged after the evaluation.",
        Tampering("evaluate", files.another("reports/headroom.json")),
    ),
    "telemetry-of-another-run": critical(
        "The telemetry is that of another run.", Tampering("evaluate", files.another("telemetry"))
    ),
    "checkpoints-of-another-run": critical(
        "The checkpoints are those of another run, exchanged after the evaluation.",
        Tampering("evaluate", files.another("checkpoints")),
    ),
    "checkpoints-exchanged-before-evaluation": critical(
        "The checkpoints are those of another run, exchanged before the evaluation.",
        Tampering("train", files.another("checkpoints")),
    ),
    "policy-of-another-run": high(
        "The published policy is that of another run.", Tampering("evaluate", files.another("models/policy"))
    ),
    "best-and-latest-swapped": high(
        "The best and the latest checkpoint have each other's names.", Tampering("train", files.swap_checkpoints)
    ),
    "data-changed-after-training": critical(
        "Labels of the prepared data were changed after the evaluation.", Tampering("evaluate", files.change_labels)
    ),
    "params-changed-after-training": critical(
        "params.yaml says another discount than the one that was trained with.", Tampering("train", files.change_params)
    ),
    "update-row-missing": high("An update is missing from the telemetry.", Tampering("train", files.drop_update)),
    "steps-missing": high(
        "Some environment steps are missing from the telemetry.", Tampering("train", files.drop_steps)
    ),
    "steps-twice": high(
        "The steps of an iteration are in the telemetry twice.", Tampering("train", files.double_steps)
    ),
    "returns-edited": critical(
        "The returns of episodes were raised in the telemetry.", Tampering("train", files.raise_returns)
    ),
    "validation-edited": critical(
        "The validation scores that chose the best checkpoint were changed in the telemetry.",
        Tampering("train", files.change_validation),
    ),
    "headline-edited": critical(
        "metrics.json says more than evaluation.json.", Tampering("evaluate", files.raise_metrics)
    ),
    "grown-weights-replaced": high(
        "The exported network has other weights than those that were scored.", Tampering("evaluate", files.change_grown)
    ),
    "checkpoint-weights-edited": critical(
        "Weights of the best checkpoint were changed, and its checksums with them.",
        Tampering("evaluate", files.change_best_weights),
    ),
    "worst-is-best": critical(
        "The best checkpoint is the one with the worst validation.",
        Patch(TRAINER, "score > self.counters", "score < self.counters"),
    ),
    "last-is-best": high(
        "The last checkpoint is published as the best.",
        Patch("pipeline/stages.py", "= counters.best_iteration or counters.iteration", "= counters.iteration"),
    ),
    "validation-is-sampled": high(
        "The best checkpoint is chosen by episodes of the sampled policy.",
        Patch("training/growth_task.py", "normalizers, greedy=True)", "normalizers, greedy=False)"),
    ),
    "chain-without-state": high(
        "The hash chain of the training state leaves out the tensors.",
        Patch(CHECKPOINT, "        hasher.update(tensor.numpy().tobytes())\n", ""),
    ),
    "values-of-another-host": high(
        "The telemetry notes each host's value estimate at its neighbour.",
        Patch("training/episodes.py", 'value": transition.decision.value', 'value": transition.decision.value.roll(1)'),
    ),
}
