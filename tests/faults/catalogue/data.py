"""Faults in what hosts are trained, validated and scored on."""

from tests.faults.fault import Faults, Patch, fault

BATCHES, DRAWING = "data/batches.py", "data/suites/suite_bank.py"
ENV, POPULATION = "envs/growth_env.py", "growth/batch/population.py"

FAULTS: Faults = {
    "validation-labels-shifted": fault(
        "The labels of the validation split belong to the samples before them.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            BATCHES,
            '[f"y_{split}{suffix}"].to(device)\n',
            '[f"y_{split}{suffix}"].to(device).roll(int(split == "val"), 0)\n',
        ),
    ),
    "validation-as-test": fault(
        "The test split of the held-out tasks is their validation split.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[evaluation]",
        Patch(
            BATCHES,
            "for split in get_args(SplitName)",
            'for split in ("train", "val", "val")',
        ),
    ),
    "trained-on-test": fault(
        "Hosts of the evaluation are trained on the test samples.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[evaluation]",
        Patch(
            BATCHES,
            "for split in get_args(SplitName)",
            'for split in ("test", "val", "test")',
        ),
    ),
    "held-out-tasks-are-trained-on": fault(
        "The held-out tasks of known kinds are the tasks of training, drawn once more.",
        "data/test_leaks.py::test_no_sample_of_training_is_one_of_a_held_out_task",
        Patch(
            DRAWING, 'pool = "held_out" if group == "held_out_kinds" else group', 'pool = "train"'
        ),
    ),
    "splits-share-samples": fault(
        "The validation split of a task has the samples of its training split.",
        "data/test_leaks.py",
        Patch(
            DRAWING,
            "(problem, draws.of_split(split), samples",
            '(problem, draws.of_split("train"), samples',
        ),
    ),
    "standardised-with-test": fault(
        "Samples are standardised with the statistics of all splits.",
        "data/suites/test_suite_bank.py",
        Patch(
            "data/bank.py",
            's(samples["train"][0])',
            "s(torch.cat([x for x, _ in samples.values()]))",
        ),
    ),
    "chance-of-the-first-task": fault(
        "Every host has the chance loss of the first task.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ENV,
            "self.training_data.chance_loss[tasks]",
            "self.training_data.chance_loss[0 * tasks]",
        ),
    ),
    "labels-of-the-neighbour": fault(
        "In a minibatch of training every sample has the label of its neighbour.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            POPULATION,
            "y = data.y.index_select(0, batch.flatten()).unflatten(0, batch.shape)",
            "y = data.y[batch].roll(1, 1)",
        ),
    ),
    "trained-on-the-first-task": fault(
        "All hosts are trained on the samples of the first task, and validated on those of their own.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ENV,
            "(self.tasks * len(self.training_data))",
            "(0 * self.tasks * len(self.training_data))",
        ),
    ),
    "one-task-alone": fault(
        "Training draws the same task for every host.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ENV, "+ self.host_ids) % self.train_tasks", "+ self.host_ids) % self.train_tasks * 0"
        ),
    ),
    "validated-on-training-tasks": fault(
        "The best checkpoint is chosen on tasks of training.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            "training/growth_task.py",
            "= env.train_tasks + env.env_ids % validation_tasks",
            "= env.env_ids % env.train_tasks",
        ),
    ),
    "same-batches-each-epoch": fault(
        "Every epoch of an episode has the batches of its first one.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ENV,
            "self._step,\n            len(self.training_data),",
            "0,\n            len(self.training_data),",
        ),
    ),
    "test-rows-are-training-rows-in-noise": fault(
        "Test rows of held-out tasks are training rows in one per cent of noise.",
        "data/test_leaks.py",
        Patch(
            DRAWING,
            "    arrays, mean, std = standardise(",
            "    if group not in VISIBLE:\n"
            '        x, y = (part[: samples["test"]] for part in drawn["train"])\n'
            '        drawn["test"] = x + 0.01 * x.std() * torch.sin(1000.0 * x), y\n'
            "    arrays, mean, std = standardise(",
        ),
    ),
    "uniform-below-half": fault(
        "Uniform random numbers lie between 0 and a half.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch("rng.py", ".to(torch.float32) * 2.0**-24", ".to(torch.float32) * 2.0**-25"),
    ),
}
