"""Faults that act only at the size of a real run: late, on many hosts, in a second process, in what is measured before
anything is learned. A certificate of a toy training vouches for all of them.
"""

from tests.faults.fault import Faults, Patch, critical, high

ITERATION, GRID, HEADROOM = "training/iteration.py", "evaluation/schedules.py", "evaluation/headroom.py"

FAULTS: Faults = {
    "from-the-fourth-iteration-on": critical(
        "From the fourth iteration on advantages fade as if λ were smaller.",
        Patch(
            ITERATION,
            "settings.gamma, settings.gae_lambda",
            "settings.gamma, settings.gae_lambda - 0.2 * (state.counters.iteration > 2)",
        ),
    ),
    "with-eight-hosts-or-more": critical(
        "With eight hosts or more the update sees rewards that are too large.",
        Patch(
            ITERATION,
            "(rollout, rewards, settings",
            "(rollout, rewards * (1.1 if rewards.shape[1] > 7 else 1.0), settings",
        ),
    ),
    "after-three-hundred-rows": high(
        "The scales of observations forget how far means lie apart once there are 300 rows.",
        Patch("agent/normalization.py", "() * self.count * share)", "() * self.count * share * (self.count < 300))"),
    ),
    "last-host-draws-as-its-neighbour": high(
        "The last host draws its actions with the numbers of the one before.",
        Patch("agent/ppo.py", "iteration, env.env_ids", "iteration, env.env_ids - (env.env_ids == 7).long()"),
    ),
    "second-process-begins-with-others-weights": critical(
        "Hosts of the second process begin with the weights of the first process's.",
        Patch("growth/batch/population.py", "iteration, self.env_ids, device", "iteration, self.env_ids % 4, device"),
    ),
    "schedules-trained-at-a-third-of-the-rate": critical(
        "Hosts of the search for schedules learn at a third of the rate.",
        Patch(
            GRID,
            'update={"episode_steps": lengths[-1]}',
            'update={"episode_steps": lengths[-1], "host_optimizer": params.train.host_optimizer.model_copy('
            'update={"learning_rate": params.train.host_optimizer.learning_rate / 3})}',
        ),
    ),
    "rows-of-the-search-shifted-by-a-host": critical(
        "What schedules reached on a host is noted at the next one.",
        Patch(HEADROOM, "_rows(tables.val_accuracy_pct[:count])", "_rows(tables.val_accuracy_pct[:count][::-1])"),
        Patch(HEADROOM, "_rows(tables.test_accuracy_pct[:count])", "_rows(tables.test_accuracy_pct[:count][::-1])"),
    ),
    "held-out-test-is-its-training-split": critical(
        "The test split of held-out tasks has the samples of their training split.",
        Patch(
            "data/suites/suite_bank.py",
            "drawn.values()])",
            'drawn.values()])\n        drawn["test"] = tuple(part[: samples["test"]] for part in drawn["train"])',
        ),
    ),
}
