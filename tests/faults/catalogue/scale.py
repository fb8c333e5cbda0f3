"""Faults that act only at the size of a real run: late, on many hosts, in a second process, in what is measured before
anything is learned. A certificate of a toy training vouches for all of them.
"""

from tests.faults.fault import Faults, Patch, fault

ITERATION, GRID, HEADROOM = (
    "training/iteration.py",
    "evaluation/schedules.py",
    "evaluation/headroom.py",
)

FAULTS: Faults = {
    "from-the-fourth-iteration-on": fault(
        "From the fourth iteration on advantages fade as if λ were smaller.",
        "reference/test_small_runs.py::test_a_late_iteration_is_what_the_reference_computes",
        Patch(
            ITERATION,
            "settings.gamma, settings.gae_lambda",
            "settings.gamma, settings.gae_lambda - 0.2 * (state.counters.iteration > 2)",
        ),
    ),
    "with-eight-hosts-or-more": fault(
        "With eight hosts or more the update sees rewards that are too large.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ITERATION,
            "(rollout, rewards, settings",
            "(rollout, rewards * (1.1 if rewards.shape[1] > 7 else 1.0), settings",
        ),
    ),
    "after-three-hundred-rows": fault(
        "The scales of observations forget how far means lie apart once there are 300 rows.",
        "agent/test_normalization.py",
        Patch(
            "agent/normalization.py",
            "self.m2 + batch.m2 + delta.square() * self.count * share",
            "self.m2 + batch.m2 + delta.square() * self.count * share * (self.count < 300)",
        ),
    ),
    "last-host-draws-as-its-neighbour": fault(
        "The last host draws its actions with the numbers of the one before.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            "agent/rollout.py",
            "iteration, env.env_ids",
            "iteration, env.env_ids - (env.env_ids == 7).long()",
        ),
    ),
    "second-process-begins-with-others-weights": fault(
        "Hosts of the second process begin with the weights of the first process's.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            "growth/batch/population.py",
            "iteration, self.env_ids, device",
            "iteration, self.env_ids % 4, device",
        ),
    ),
    "schedules-trained-at-a-third-of-the-rate": fault(
        "Hosts of the search for schedules learn at a third of the rate.",
        "evaluation/test_headroom.py",
        Patch(
            GRID,
            'update={"episode_steps": lengths[-1]}',
            'update={"episode_steps": lengths[-1], "host_optimizer": params.train.host_optimizer.model_copy('
            'update={"learning_rate": params.train.host_optimizer.learning_rate / 3})}',
        ),
    ),
    "rows-of-the-search-shifted-by-a-host": fault(
        "What schedules reached on a host is noted at the next one.",
        "evaluation/test_headroom.py",
        Patch(
            HEADROOM,
            "rounded(tables.val_accuracy_pct[:count])",
            "rounded(tables.val_accuracy_pct[:count][::-1])",
        ),
        Patch(
            HEADROOM,
            "rounded(tables.test_accuracy_pct[:count])",
            "rounded(tables.test_accuracy_pct[:count][::-1])",
        ),
    ),
    "held-out-test-is-its-training-split": fault(
        "The test split of held-out tasks has the samples of their training split.",
        "data/test_leaks.py",
        Patch(
            "data/suites/suite_bank.py",
            '["test"], earlier)',
            '["test"], earlier)\n        drawn["test"] = tuple(part[: samples["test"]] for part in drawn["train"])',
        ),
    ),
}
