"""Faults in what belongs to what: artifacts of other runs, edited or missing records."""

from tests.faults.fault import Faults, Patch, fault

TRAINER, CHECKPOINT = "training/trainer.py", "training/checkpoint.py"

FAULTS: Faults = {
    "worst-is-best": fault(
        "The best checkpoint is the one with the worst validation.",
        "reference/test_finished_runs.py::test_what_is_made_of_a_run_is_what_the_audit_recomputes",
        Patch(TRAINER, "score > self.counters", "score < self.counters"),
    ),
    "last-is-best": fault(
        "The last checkpoint is published as the best.",
        "reference/test_finished_runs.py::test_what_is_made_of_a_run_is_what_the_audit_recomputes",
        Patch(
            "pipeline/stages.py",
            "= counters.best_iteration or counters.iteration",
            "= counters.iteration",
        ),
    ),
    "validation-is-sampled": fault(
        "The best checkpoint is chosen by episodes of the sampled policy.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch("training/growth_task.py", "normalizers, greedy=True)", "normalizers, greedy=False)"),
    ),
    "chain-without-state": fault(
        "The hash chain of the training state leaves out the tensors.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(CHECKPOINT, "        hasher.update(tensor.numpy().tobytes())\n", ""),
    ),
    "values-of-another-host": fault(
        "The telemetry notes each host's value estimate at its neighbour.",
        "training/test_episodes.py::test_the_columns_of_a_decision_are_the_hosts_own",
        Patch(
            "training/episodes.py",
            '"value": step.decision.value',
            '"value": step.decision.value.roll(1)',
        ),
    ),
}
