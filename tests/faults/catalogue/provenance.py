"""Faults in what belongs to what: artifacts of other runs, edited or missing records."""

from tests.faults import tampering as files
from tests.faults.fault import Patch, Tampering, planted

TRAINER, CHECKPOINT = "training/trainer.py", "training/checkpoint.py"

FAULTS = (
    planted(
        "provenance",
        "evaluation-of-another-run",
        "critical",
        "evaluation.json is that of another run.",
        Tampering("evaluate", files.another("reports/evaluation.json")),
    ),
    planted(
        "provenance",
        "headroom-of-another-run",
        "critical",
        "headroom.json is that of another run, exchanged after the evaluation.",
        Tampering("evaluate", files.another("reports/headroom.json")),
    ),
    planted(
        "provenance",
        "telemetry-of-another-run",
        "critical",
        "The telemetry is that of another run.",
        Tampering("evaluate", files.another("telemetry")),
    ),
    planted(
        "provenance",
        "checkpoints-of-another-run",
        "critical",
        "The checkpoints are those of another run, exchanged after the evaluation.",
        Tampering("evaluate", files.another("checkpoints")),
    ),
    planted(
        "provenance",
        "checkpoints-exchanged-before-evaluation",
        "critical",
        "The checkpoints are those of another run, exchanged before the evaluation.",
        Tampering("train", files.another("checkpoints")),
    ),
    planted(
        "provenance",
        "policy-of-another-run",
        "high",
        "The published policy is that of another run.",
        Tampering("evaluate", files.another("models/policy")),
    ),
    planted(
        "provenance",
        "best-and-latest-swapped",
        "high",
        "The best and the latest checkpoint have each other's names.",
        Tampering("train", files.swap_checkpoints),
    ),
    planted(
        "provenance",
        "data-changed-after-training",
        "critical",
        "Labels of the prepared data were changed after the evaluation.",
        Tampering("evaluate", files.change_labels),
    ),
    planted(
        "provenance",
        "params-changed-after-training",
        "critical",
        "params.yaml says another discount than the one that was trained with.",
        Tampering("train", files.change_params),
    ),
    planted(
        "provenance",
        "update-row-missing",
        "high",
        "An update is missing from the telemetry.",
        Tampering("train", files.drop_update),
    ),
    planted(
        "provenance",
        "steps-missing",
        "high",
        "Some environment steps are missing from the telemetry.",
        Tampering("train", files.drop_steps),
    ),
    planted(
        "provenance",
        "steps-twice",
        "high",
        "The steps of an iteration are in the telemetry twice.",
        Tampering("train", files.double_steps),
    ),
    planted(
        "provenance",
        "returns-edited",
        "critical",
        "The returns of episodes were raised in the telemetry.",
        Tampering("train", files.raise_returns),
    ),
    planted(
        "provenance",
        "validation-edited",
        "critical",
        "The validation scores that chose the best checkpoint were changed in the telemetry.",
        Tampering("train", files.change_validation),
    ),
    planted(
        "provenance",
        "headline-edited",
        "critical",
        "metrics.json says more than evaluation.json.",
        Tampering("evaluate", files.raise_metrics),
    ),
    planted(
        "provenance",
        "grown-weights-replaced",
        "high",
        "The exported network has other weights than those that were scored.",
        Tampering("evaluate", files.change_grown),
    ),
    planted(
        "provenance",
        "checkpoint-weights-edited",
        "critical",
        "Weights of the best checkpoint were changed, and its checksums with them.",
        Tampering("evaluate", files.change_weights("best")),
    ),
    planted(
        "provenance",
        "worst-is-best",
        "critical",
        "The best checkpoint is the one with the worst validation.",
        Patch(
            TRAINER,
            "self.validation_accuracy > self.counters.best_score:",
            "self.validation_accuracy < self.counters.best_score:",
        ),
    ),
    planted(
        "provenance",
        "last-is-best",
        "high",
        "The last checkpoint is published as the best.",
        Patch(
            "pipeline/stages.py", "best = counters.best_iteration or counters.iteration", "best = counters.iteration"
        ),
    ),
    planted(
        "provenance",
        "validation-is-sampled",
        "high",
        "The best checkpoint is chosen by episodes of the sampled policy.",
        Patch("training/validation.py", "normalizers, greedy=True)", "normalizers, greedy=False)"),
    ),
    planted(
        "provenance",
        "chain-without-state",
        "high",
        "The hash chain of the training state leaves out the tensors.",
        Patch(CHECKPOINT, "        hasher.update(tensor.numpy().tobytes())\n", ""),
    ),
    planted(
        "provenance",
        "values-of-another-host",
        "high",
        "The telemetry notes each host's value estimate at its neighbour.",
        Patch(
            "training/episodes.py", '"value": transition.decision.value,', '"value": transition.decision.value.roll(1),'
        ),
    ),
)
