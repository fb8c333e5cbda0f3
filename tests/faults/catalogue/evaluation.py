"""Faults in who is evaluated, on what, and in what is made of the scores."""

from tests.faults.fault import Faults, Patch, fault

ENDPOINTS, STATISTICS, POLICIES = (
    "evaluation/endpoints.py",
    "evaluation/intervals.py",
    "evaluation/policies.py",
)
STAGES, LEARNED = "pipeline/stages.py", "training/learned.py"

FAULTS: Faults = {
    "common-chosen-on-test": fault(
        "The common schedule is chosen by the test scores of the held-out tasks.",
        "evaluation/test_headroom.py",
        Patch(
            "evaluation/headroom.py",
            "int(search_scores.mean(",
            "int(tables.test_accuracy_pct.mean(",
        ),
    ),
    "oracle-chosen-on-test": fault(
        "The oracle per task is chosen by the scores that it is reported with.",
        "evaluation/test_headroom.py::test_the_oracle_and_the_random_search_choose_by_validation_and_are_judged_by_test",
        Patch(ENDPOINTS, "best_choices(mean_by_task(choosing", "best_choices(mean_by_task(test"),
    ),
    "search-judged-by-test": fault(
        "Random search picks the best of its trainings by test score.",
        "evaluation/test_headroom.py::test_the_oracle_and_the_random_search_choose_by_validation_and_are_judged_by_test",
        Patch(ENDPOINTS, "random_search(val, test)", "random_search(test, test)"),
    ),
    "policies-not-paired": fault(
        "Every policy is evaluated on hosts of its own.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[evaluation]",
        Patch(
            "evaluation/scoring.py",
            "tasks, ids.repeat(parts), steps",
            "tasks, env.env_ids, steps",
        ),
    ),
    "scored-on-validation": fault(
        "What is reported as test accuracy was measured on the validation split.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[evaluation]",
        Patch(
            "evaluation/scoring.py",
            "committed(env, setup.held_out.test)",
            "committed(env, setup.held_out.val)",
        ),
    ),
    "live-network-scored": fault(
        "The test score is that of the live network, with seeds that were not kept.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[evaluation]",
        Patch(
            "envs/growth_env.py",
            'evaluate(self.slots, test.of("test"), off[None])',
            "evaluate(self.slots, test, 0 * off[None])",
        ),
    ),
    "interval-too-narrow": fault(
        "Standard errors are divided by n instead of its root.",
        "evaluation/test_intervals.py",
        Patch(STATISTICS, "/ np.sqrt(vector.size))", "/ vector.size)"),
    ),
    "p-value-one-sided": fault(
        "The p-value counts one side and is called two-sided.",
        "evaluation/test_intervals.py",
        Patch(
            STATISTICS,
            "np.abs(total - 2.0 * flipped) >= abs(total)",
            "total - 2.0 * flipped >= abs(total)",
        ),
    ),
    "groups-mixed": fault(
        "Tasks of unknown kinds count among those of known kinds.",
        "evaluation/test_headroom.py::test_a_group_has_its_own_tasks_alone",
        Patch(
            ENDPOINTS,
            (
                "return rows_by_task(\n"
                "        {r: task for r, task in enumerate(headroom.rows) if headroom.tasks[task].group == group}\n"
                "    )"
            ),
            "return rows_by_task({r: task for r, task in enumerate(headroom.rows)})",
        ),
    ),
    "price-not-charged": fault(
        "Scores are compared without the price of the parameters that were added.",
        "evaluation/test_headroom.py::test_a_score_is_the_accuracy_less_the_price_of_added_parameters",
        Patch(
            ENDPOINTS,
            "(accuracy, (params - host) / host, 1, headroom",
            "(accuracy, 0 * params, 1, headroom",
        ),
    ),
    "policy-untrained": fault(
        "The policy that is evaluated and exported has the weights it began with.",
        "training/test_learned.py",
        Patch(LEARNED, "        policy.load_state_dict(weights)\n", ""),
    ),
    "scales-not-loaded": fault(
        "The evaluated policy sees observations that are not normalised.",
        "training/test_learned.py",
        Patch(LEARNED, "        normalizers.load_state_dict(scales)\n", ""),
    ),
    "latest-called-best": fault(
        "The latest checkpoint is evaluated under the name of the best.",
        "reference/test_finished_runs.py::test_what_is_made_of_a_run_is_what_the_audit_recomputes",
        Patch(
            STAGES,
            "unchanged(workspace, workspace.checkpoints), params.evaluate.checkpoint\n",
            'unchanged(workspace, workspace.checkpoints), "latest"\n',
        ),
    ),
    "greedy-is-sampled": fault(
        "The policy called greedy is sampled, and the other way round.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[evaluation]",
        Patch(POLICIES, "greedy=name != SAMPLED", "greedy=name == SAMPLED"),
    ),
    "final-network-trained-less": fault(
        "The grown network that is trained from the start gets a quarter of the epochs.",
        "evaluation/test_static_baselines.py::test_the_final_network_is_trained_for_the_episodes_epochs_and_for_what_its_flops_pay",
        Patch(
            "evaluation/static_baselines.py",
            "full_like(affordable, epochs)",
            "full_like(affordable, epochs // 4)",
        ),
    ),
    "rule-with-three-times-the-threshold": fault(
        "The tuned rule keeps a seed only at three times the contribution that it was tuned to.",
        "evaluation/test_rules.py",
        Patch(
            "evaluation/rules.py",
            "threshold=tuned.threshold,",
            "threshold=tuned.threshold and 3 * tuned.threshold,",
        ),
    ),
    "other-lengths-scored-on-validation": fault(
        "At the other lengths of episodes the test score is that of the validation split.",
        "evaluation/test_elsewhere.py",
        Patch(
            "evaluation/evaluate.py",
            "per_seed=of_policies,\n",
            'per_seed={n: s.model_copy(update={"test_accuracy_pct": s.val_accuracy_pct}) for n, s in '
            "of_policies.items()},\n",
        ),
    ),
    "sentence-two-points-above": fault(
        "The first sentence of the report says two points more than evaluation.json.",
        "audit/test_report.py",
        Patch(
            "audit/audit.py",
            'return f"{value.estimate:{form}} [',
            'return f"{value.estimate + 2:{form}} [',
        ),
    ),
    "another-network-exported": fault(
        "The network that is exported as the best is the first host's.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[grown_network]",
        Patch(
            "evaluation/export_best.py",
            "slots, row, committed=",
            "slots, (row + 1) % env.num_envs, committed=",
        ),
    ),
}
