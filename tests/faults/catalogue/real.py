"""Faults of the run as users run it: 512 hosts in two processes. Each acts only late, only after many rows, only on
the last hosts or in the second thread, or in what is measured before anything is learned.
"""

from tests.faults.fault import Faults, Patch, fault

PPO, NORMALIZATION = "agent/ppo.py", "agent/normalization.py"
ENV, POPULATION = "envs/growth_env.py", "growth/batch/population.py"
DRAWING, HEADROOM, SCORING = (
    "data/suites/suite_bank.py",
    "evaluation/headroom.py",
    "evaluation/scoring.py",
)

FAULTS: Faults = {
    # Late.
    "learning-rate-of-late-steps": fault(
        "From the fifth update on the optimizer moves by half as much again as the rate that is recorded.",
        "reference/test_small_runs.py::test_a_late_iteration_is_what_the_reference_computes",
        Patch(
            PPO,
            "skipped(learning_rate,",
            "skipped(learning_rate * (1.5 if self.updates > 3 else 1.0),",
        ),
    ),
    "gradients-clipped-late-at-another-norm": fault(
        "From the fifth update on gradients are clipped at a quarter of the norm.",
        "reference/test_small_runs.py::test_a_late_iteration_is_what_the_reference_computes",
        Patch(
            PPO,
            "norms[-1] / self.settings.max_grad_norm)",
            "norms[-1] / (self.settings.max_grad_norm * (0.25 if self.updates > 3 else 1.0)))",
        ),
    ),
    "entropy-penalised-late": fault(
        "From the fifth update on entropy is penalised instead of rewarded.",
        "reference/test_small_runs.py::test_a_late_iteration_is_what_the_reference_computes",
        Patch(
            PPO,
            "if self.entropy_scale is None",
            "* (-1.0 if iteration > 3 else 1.0) if self.entropy_scale is None",
        ),
    ),
    "last-minibatch-left-out-late": fault(
        "From the fifth update on the last minibatch of every epoch is left out.",
        "reference/test_small_runs.py::test_a_late_iteration_is_what_the_reference_computes",
        Patch(
            PPO,
            "for minibatch in range(minibatches):",
            "for minibatch in range(minibatches - (iteration > 3)):",
        ),
    ),
    "moments-halved-late": fault(
        "From the fifth update on Adam's second moments are halved before the update.",
        "reference/test_small_runs.py::test_a_late_iteration_is_what_the_reference_computes",
        Patch(
            PPO,
            "learning_rate = self.learning_rate()",
            "learning_rate = self.learning_rate()\n"
            '        for each in self.adam.moments["exp_avg_sq"] if iteration > 3 else ():\n'
            "            each.mul_(0.5)",
        ),
    ),
    "advantages-negated-now-and-then": fault(
        "Advantages have the other sign in three iterations of which nothing is kept.",
        "reference/test_small_runs.py::test_a_late_iteration_is_what_the_reference_computes",
        Patch(
            "training/iteration.py",
            "    return with_advantages(rollout, rewards, settings.gamma, settings.gae_lambda)",
            "    sign = -1.0 if state.counters.iteration in (5, 7, 8) else 1.0\n"
            "    rollout = with_advantages(rollout, rewards, settings.gamma, settings.gae_lambda)\n"
            "    return type(rollout)(**{**vars(rollout), 'advantages': sign * rollout.advantages})",
        ),
    ),
    # After many rows.
    "scales-stop-after-fifteen-thousand-rows": fault(
        "The scales of observations stand still after fifteen thousand rows.",
        "agent/test_normalization.py",
        Patch(
            NORMALIZATION,
            "self._freeze(self",
            "if self.moments.count < 15_000:\n            self._freeze(self",
        ),
    ),
    "advantages-of-many-rows-too-small": fault(
        "Advantages of a rollout of more than 2,500 rows are a sixth too small.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            PPO,
            "=ADVANTAGE_SIGMA_FLOOR)",
            "=ADVANTAGE_SIGMA_FLOOR) / (1.2 if centred.numel() > 2500 else 1.0)",
        ),
    ),
    "bootstrap-behind-the-five-hundredth-host": fault(
        "Behind the five-hundredth host the end of an episode is worth what the critic thinks of it.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            PPO,
            "masked_fill(terminated,",
            "masked_fill(terminated & (torch.arange(terminated.shape[-1]) < 500),",
        ),
    ),
    # The last hosts.
    "last-hosts-never-act": fault(
        "Whatever is decided for the last hundred hosts, they wait.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            ENV,
            ("            )\n        action = waiting_where("),
            (
                "            )\n"
                "        alive = alive & (self.env_ids < 412)\n"
                "        action = waiting_where("
            ),
        ),
    ),
    "last-hosts-learn-validation-tasks": fault(
        "The last hundred hosts play the tasks that choose the checkpoint.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            ENV,
            "return (first + self.iteration * self.train.envs + self.host_ids) % self.train_tasks",
            "drawn = (first + self.iteration * self.train.envs + self.host_ids) % self.train_tasks\n"
            "        others = self.tasks_in_bank - self.train_tasks\n"
            "        return torch.where(self.host_ids > 411, self.train_tasks + drawn % others, drawn)",
        ),
    ),
    "last-hosts-paid-more": fault(
        "The last hundred hosts are paid a tenth more.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            ENV,
            "return self._observe(), rewards.total(parts), transition.terminal",
            "more = torch.where(self.host_ids > 411, 1.1, 1.0)\n"
            "        return self._observe(), rewards.total(parts) * more, transition.terminal",
        ),
    ),
    "last-hosts-see-their-neighbour": fault(
        "Each of the last hundred hosts is observed as the one before it.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            ENV,
            "return Observation(observe(view), state.slots.blueprint",
            "seen = observe(view)\n"
            "        seen = torch.where((self.env_ids > 411)[:, None], seen.roll(1, 0), seen)\n"
            "        return Observation(seen, state.slots.blueprint",
        ),
    ),
    "last-hosts-forget-at-step-four": fault(
        "The policy's memory of the last hundred hosts is wiped after the fourth step.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            "agent/rollout.py",
            "state = decision.state\n",
            "state = decision.state.zeroed((env.env_ids > 411) & (t == 3))\n",
        ),
    ),
    # The second thread, and what is beside the first hosts.
    "second-half-learns-slower": fault(
        "The second half of every minibatch counts half.",
        "agent/test_pieces.py",
        Patch(
            PPO,
            "[part.gradients for part in learned]",
            "[[g * (1 - 0.5 * (part is not learned[0])) for g in part.gradients] for part in learned]",
        ),
    ),
    "second-group-answers-for-its-neighbours": fault(
        "In all groups but the first a host is scored by the answers of the one before it.",
        "growth/batch/test_groups_in_threads.py::test_a_group_is_a_population_of_its_own",
        Patch(
            POPULATION,
            "(torch.cat(part, 1) for part in zip(*parts, strict=True))",
            "(torch.cat([x.roll(int(k > 0), 1) for k, x in enumerate(part)], 1) for part in zip(*parts, strict=True))",
        ),
    ),
    "last-hosts-of-a-blueprint-do-not-learn": fault(
        "Of more hosts with one blueprint than a thread takes at a time the rest do not learn.",
        "reference/test_small_runs.py::test_many_hosts_on_two_cores_are_what_the_reference_computes",
        Patch(
            "growth/batch/compiled.py",
            "share(train, _in_parts(groups))",
            "share(train, [(kinds, places[:HOSTS_AT_ONCE]) for kinds, places in groups])",
        ),
    ),
    "threads-mix-up-their-results": fault(
        "Results of threads come in the order in which they were done.",
        "test_threads.py",
        Patch("threads.py", "[results[number] for number, _ in numbered]", "[*results.values()]"),
    ),
    # Headroom.
    "rules-train-an-epoch-less": fault(
        "Hand-written rules are scored an epoch before their networks are done.",
        "evaluation/test_headroom.py",
        Patch(
            HEADROOM,
            "play_for_score(setup, rules, length)",
            "play_for_score(setup, rules, length - 1)",
        ),
    ),
    "common-schedule-is-the-worst": fault(
        "The common schedule is the one that is worst on training tasks.",
        "evaluation/test_headroom.py",
        Patch(HEADROOM, "common=int(search_scores.", "common=int((-search_scores)."),
    ),
    "schedules-chosen-on-scoring-hosts": fault(
        "Schedules are chosen on the hosts that score them.",
        "evaluation/test_headroom.py",
        Patch(
            HEADROOM,
            "rounded(tables.val_accuracy_pct[count:])",
            "rounded(tables.val_accuracy_pct[:count])",
        ),
    ),
    "common-schedule-of-validation-tasks": fault(
        "The common schedule is sought on the tasks that choose the checkpoint.",
        "evaluation/test_headroom.py",
        Patch(
            HEADROOM,
            'tasks = read_meta(prepared).of_group("train")',
            'tasks = read_meta(prepared).of_group("val")',
        ),
    ),
    "floors-trained-at-a-third-of-the-rate": fault(
        "Networks that never grow learn at a third of the rate.",
        "evaluation/test_static_baselines.py",
        Patch(
            "evaluation/static_baselines.py",
            "    return population\n",
            "    population.learning_rate /= 3\n    return population\n",
        ),
    ),
    # Held-out tasks.
    "a-tenth-of-test-is-training": fault(
        "A tenth of the test samples of held-out tasks are training samples.",
        "data/test_leaks.py",
        Patch(
            DRAWING,
            "    arrays, mean, std = standardise(",
            "    if group not in VISIBLE:\n"
            '        some = samples["test"] // 10\n'
            '        for part, whole in zip(drawn["test"], drawn["train"], strict=True):\n'
            "            part[:some] = whole[:some]\n"
            "    arrays, mean, std = standardise(",
        ),
    ),
    "validation-tasks-are-training-tasks": fault(
        "The tasks that choose the checkpoint are tasks of training.",
        "data/test_leaks.py",
        Patch(
            DRAWING,
            '= "held_out_kinds" else group',
            '= "held_out_kinds" else "train" if group == "val" else group',
        ),
        Patch(
            DRAWING, '"val": val or kinds', '"val": kinds'
        ),  # else they would be of kinds that training has not
    ),
    "held-out-tasks-are-training-tasks": fault(
        "Held-out tasks of known kinds are tasks of training.",
        "data/test_leaks.py::test_no_sample_of_training_is_one_of_a_held_out_task",
        Patch(
            DRAWING,
            'held_out_kinds" else group',
            'held_out_kinds" else "train" if group == "held_out" else group',
        ),
    ),
    # Evaluation.
    "test-score-is-the-better-of-two": fault(
        "A policy's test score is that of validation where this is better.",
        "reference/test_finished_runs.py::test_a_growth_run_is_what_the_reference_computes[evaluation]",
        Patch(SCORING, "points in test.tolist()", "points in torch.maximum(test, val).tolist()"),
    ),
    "policies-evaluated-an-epoch-longer": fault(
        "Networks of evaluated policies train an epoch longer than those of headroom.",
        "evaluation/test_evaluate.py",
        Patch("evaluation/evaluate.py", "actors, headroom.epochs)", "actors, headroom.epochs + 1)"),
    ),
}
