"""Faults in who is evaluated, on what, and in what is made of the scores."""

from tests.faults.fault import Faults, Patch, Tampering, critical, high, medium
from tests.faults.tampering import raise_one_estimate, raise_scores

ENDPOINTS, STATISTICS, POLICIES = "evaluation/endpoints.py", "evaluation/statistics.py", "evaluation/policies.py"
STAGES, LEARNED = "pipeline/stages.py", "training/learned.py"

FAULTS: Faults = {
    "common-chosen-on-test": critical(
        "The common schedule is chosen by the test scores of the held-out tasks.",
        Patch("evaluation/headroom.py", "int(reached.mean(", "int(tables.test_accuracy_pct.mean("),
    ),
    "oracle-chosen-on-test": critical(
        "The oracle per task is chosen by the scores that it is reported with.",
        Patch(ENDPOINTS, "best_choices(mean_by_task(choosing", "best_choices(mean_by_task(test"),
    ),
    "search-judged-by-test": high(
        "Random search picks the best of its trainings by test score.",
        Patch(ENDPOINTS, "random_search(val, test)", "random_search(test, test)"),
    ),
    "policies-not-paired": critical(
        "Every policy is evaluated on hosts of its own.",
        Patch("evaluation/scoring.py", "repeat(parts), ids.repeat(parts), steps", "repeat(parts), env.env_ids, steps"),
    ),
    "scored-on-validation": critical(
        "What is reported as test accuracy was measured on the validation split.",
        Patch("evaluation/scoring.py", "committed(env, setup.held_out.test)", "committed(env, setup.held_out.val)"),
    ),
    "live-network-scored": critical(
        "The test score is that of the live network, with seeds that were not kept.",
        Patch(
            "envs/growth_env.py", "evaluate(self.slots, data, off[None])", "evaluate(self.slots, data, 0 * off[None])"
        ),
    ),
    "interval-too-narrow": high(
        "Standard errors are divided by n instead of its root.",
        Patch(STATISTICS, "/ np.sqrt(vector.size))", "/ vector.size)"),
    ),
    "p-value-one-sided": medium(
        "The p-value counts one side and is called two-sided.",
        Patch(STATISTICS, "np.abs(signs @ difference) >= observed", "signs @ difference >= observed"),
    ),
    "groups-mixed": high(
        "Tasks of unknown kinds count among those of known kinds.",
        Patch(ENDPOINTS, "(headroom.rows) if headroom.tasks[task].group == group})", "(headroom.rows)})"),
    ),
    "price-not-charged": high(
        "Scores are compared without the price of the parameters that were added.",
        Patch(ENDPOINTS, "(accuracy, (params - host) / host, 1, headroom", "(accuracy, 0 * params, 1, headroom"),
    ),
    "policy-untrained": critical(
        "The policy that is evaluated and exported has the weights it began with.",
        Patch(LEARNED, "        policy.load_state_dict(weights)\n", ""),
    ),
    "scales-not-loaded": critical(
        "The evaluated policy sees observations that are not normalised.",
        Patch(LEARNED, "        normalizers.load_state_dict(scales)\n", ""),
    ),
    "latest-called-best": high(
        "The latest checkpoint is evaluated under the name of the best.",
        Patch(
            STAGES,
            "params.evaluate.checkpoint)\n    unchanged(workspace, workspace.checkpoints)  # they may",
            '"latest")\n    unchanged(workspace, workspace.checkpoints)  # they may',
        ),
    ),
    "greedy-is-sampled": high(
        "The policy called greedy is sampled, and the other way round.",
        Patch(POLICIES, "greedy=name != SAMPLED", "greedy=name == SAMPLED"),
    ),
    "final-network-trained-less": high(
        "The grown network that is trained from the start gets a quarter of the epochs.",
        Patch("evaluation/static_baselines.py", "full_like(affordable, epochs)", "full_like(affordable, epochs // 4)"),
    ),
    "another-network-exported": high(
        "The network that is exported as the best is the first host's.",
        Patch("evaluation/export_best.py", "slots, row, committed=", "slots, (row + 1) % env.num_envs, committed="),
    ),
    "estimate-edited": critical(
        "The mean of the learned policy was raised in evaluation.json.", Tampering("evaluate", raise_one_estimate)
    ),
    "scores-edited-throughout": critical(
        "The learned policy's scores were raised, and all that follows from them was computed again.",
        Tampering("evaluate", raise_scores),
    ),
}
