"""Faults between the parts: environment, lifecycle, hosts, masks, observations, rewards."""

from tests.faults.fault import Faults, Patch, fault

ROLLOUT = COLLECT = "agent/rollout.py"
ENV, POPULATION = "envs/growth_env.py", "growth/batch/population.py"
LIFECYCLE, GROUPS, ARENA = (
    "growth/life/lifecycle.py",
    "growth/batch/groups.py",
    "growth/batch/arena.py",
)
OBSERVATIONS, ATTRIBUTION = "envs/observations.py", "envs/attribution.py"

FAULTS: Faults = {
    "memory-outlives-episode": fault(
        "The policy's memory goes on from the last episode into the next one.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ROLLOUT,
            "return cls(observation, policy.initial_state(env.num_envs), starts)",
            'return cls(observation, getattr(env, "memory", policy.initial_state(env.num_envs)), starts)',
        ),
        Patch(
            COLLECT,
            "    return rollout, Position",
            "    env.memory = state\n    return rollout, Position",
        ),
    ),
    "memory-wiped-while-acting": fault(
        "The policy forgets everything after each step of acting, but not in the update.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            COLLECT,
            "state = decision.state\n",
            "state = decision.state.zeroed(torch.ones_like(valid))\n",
        ),
    ),
    "action-noise-shared": fault(
        "All hosts draw their actions with the same random numbers.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            COLLECT,
            "ACTION, iteration, env.env_ids",
            "ACTION, iteration, torch.zeros_like(env.env_ids)",
        ),
    ),
    "style-mask-ignored": fault(
        "The policy acts without the mask of the heads that are masked for every op alike.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            "agent/distributions.py",
            '== "nothing":\n        return mask',
            '== "nothing":\n        return None',
        ),
    ),
    "hosts-share-weights": fault(
        "All hosts of an iteration begin with the same weights.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            POPULATION,
            "HOST_INIT, iteration, self.env_ids",
            "HOST_INIT, iteration, torch.zeros_like(self.env_ids)",
        ),
    ),
    "blueprint-never-trains": fault(
        "The weights of one blueprint never move.",
        "growth/batch/test_population.py::test_a_population_is_many_plain_networks_under_torch_optim",
        Patch(
            GROUPS,
            "=state.frozen[hosts, slot]",
            "=state.frozen[hosts, slot] | (state.blueprint[hosts, slot] == 2)",
        ),
    ),
    "host-gradient-zeroed": fault(
        "Hosts get no gradient: only their seeds learn.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ARENA,
            "norms = [tensors.norms() for tensors in self.blocks]",
            "[grad.zero_() for grad in self.blocks[0].grads]\n"
            "        norms = [tensors.norms() for tensors in self.blocks]",
        ),
    ),
    "compiled-seeds-add-twice": fault(
        "Seeds add twice what they make to hosts for tables, where these train by compiled loops.",
        "growth/batch/test_compiled.py::test_an_epoch_and_its_evaluation_equal_the_plain_ones",
        Patch(
            "growth/compiled/hosts.py",
            "                    if not math.isnan(alphas[host, k]):\n",
            "                    if not math.isnan(alphas[host, k]):\n"
            "                        add_turned_product(seeds[k].features, seeds[k].out, activations.sum1)\n",
        ),
    ),
    "compiled-features-of-another-batch": fault(
        "The compiled loops compute the features of one minibatch in the next one.",
        "growth/batch/test_compiled.py::test_an_epoch_and_its_evaluation_equal_the_plain_ones",
        Patch(
            "growth/compiled/hosts.py",
            "_look(groups[k], rows[n], widths,",
            "_look(groups[k], rows[n - 1], widths,",
        ),
    ),
    "seed-gradient-leaks": fault(
        "Isolated seeds send their gradient into the host.",
        "growth/batch/test_population.py::test_a_training_seed_leaves_its_host_bit_equal",
        Patch(GROUPS, "np.flatnonzero(~np.isin(stage, list(isolated)))", "np.arange(len(stage))"),
    ),
    "host-moments-forgotten": fault(
        "Hosts lose the moments of their optimizer after each epoch.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ARENA,
            "(self.trained, *self.moments), strict=True):\n"
            "            for part, view in zip(parts, views, strict=True):\n"
            "                part.index_copy_",
            "(self.trained, *[[torch.zeros_like(part) for part in views] for views in self.moments]), strict=True):\n"
            "            for part, view in zip(parts, views, strict=True):\n"
            "                part.index_copy_",
        ),
    ),
    "host-optimizer-steps-twice": fault(
        "Hosts and seeds make two steps for each minibatch.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ARENA,
            "for call in self._calls:",
            "for call in self._calls * 2:",
        ),
    ),
    "seeds-decay-like-hosts": fault(
        "Seeds have the weight decay of hosts, though params.yaml gives them none.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            POPULATION,
            "else self.optimizer.seed_weight_decay",
            "else 100 * self.optimizer.weight_decay",
        ),
    ),
    "holding-gate-open": fault(
        "The gate before HOLDING lets every seed pass, whether its ramp has ended or not.",
        "growth/life/test_lifecycle.py",
        Patch("growth/life/lifecycle.py", "Stage.HOLDING: holding,", "Stage.HOLDING: always,"),
    ),
    "prune-does-nothing": fault(
        "PRUNE takes effect by its record alone: the seed stays.",
        "growth/life/test_lifecycle.py",
        Patch(
            LIFECYCLE,
            "slots = _remove(slots, selected & ~scheduled)",
            "scheduled = scheduled & False",
        ),
    ),
    "alpha-lags": fault(
        "A ramp is one step behind until it jumps to its end.",
        "growth/life/test_lifecycle.py",
        Patch(
            "growth/life/lifecycle.py", "t = step / slots", "t = (step - 1).clamp(min=0) / slots"
        ),
    ),
    "full-alpha-in-validation": fault(
        "Blending seeds are validated as if their ramp had ended.",
        "growth/batch/test_population.py::test_fused_evaluation_equals_separate_passes",
        Patch(
            POPULATION,
            "of(hosts), slots.alpha, data, flags[:",
            "of(hosts), slots.alpha.ceil(), data, flags[:",
        ),
    ),
    "contribution-of-another-slot": fault(
        "A seed's contribution is measured with another slot's seed left out.",
        "envs/test_attribution.py",
        Patch(ATTRIBUTION, "correct[left_out].float()\n", "correct[left_out].roll(1, 0).float()\n"),
    ),
    "committed-counts-all-seeds": fault(
        "Committed accuracy is that of the live network, unfossilized seeds included.",
        "envs/test_attribution.py",
        Patch(ATTRIBUTION, "committed = acting & ~fossilized", "committed = np.zeros_like(acting)"),
    ),
    "budget-forgets-candidate": fault(
        "The mask of the parameter budget leaves out the seed that is asked about.",
        "envs/test_fuzz.py",
        Patch(
            "envs/actions.py",
            "(elsewhere[:, :, None] + self.reserve",
            "(elsewhere[:, :, None] + 0 * self.reserve",
        ),
    ),
    "kept-seeds-weigh-nothing": fault(
        "Fossilized seeds are counted without their parameters.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            POPULATION,
            "(slots.stage, LIVE_STAGES)",
            "(slots.stage, LIVE_STAGES) * (slots.stage != 5)",
        ),
    ),
    "time-not-seen": fault(
        "The observation of the time is always 0.",
        "envs/test_observations.py",
        Patch(
            OBSERVATIONS,
            "full_like(v.state.trained.loss, v.step / v.episode_steps)",
            "full_like(v.state.trained.loss, 0.0)",
        ),
    ),
    "lags-shifted": fault(
        "What is shown as the newest validation result is the one before it.",
        "envs/test_observations.py",
        Patch(OBSERVATIONS, "at = -1 - lag", "at = -2 - lag"),
    ),
    "sees-another-host": fault(
        "Every host is decided by the observation of its neighbour.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            OBSERVATIONS,
            "(1), per_kind.flatten(1)), dim=1)",
            "(1), per_kind.flatten(1)), dim=1).roll(1, 0)",
        ),
    ),
    "reward-sign": fault(
        "The policy is paid for a falling score.",
        "reference/test_rewards.py",
        Patch(
            "envs/rewards.py",
            "return setting.weights.score.weight",
            "return -setting.weights.score.weight",
        ),
    ),
    "component-not-paid": fault(
        "One component of the reward is recorded but not paid.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            "envs/rewards.py",
            "reward, *terms = parts.values()",
            "reward, _, *terms = parts.values()",
        ),
    ),
    "terminal-potential": fault(
        "The potential of a terminal state is not 0, so shaping pays for seeds that were never kept.",
        "reference/test_rewards.py",
        Patch(
            "envs/rewards.py",
            "= torch.where(t.terminal, 0.0, potential(t.after))",
            "= potential(t.after)",
        ),
    ),
    "rewards-paid-to-the-twin": fault(
        "The rewards of hosts go to their neighbours.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            COLLECT,
            "env.step(decision.actions)\n",
            "env.step(decision.actions)\n        reward = reward.roll(1)\n",
        ),
    ),
}
