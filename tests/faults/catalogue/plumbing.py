"""Faults between the parts: environment, lifecycle, hosts, masks, observations, rewards."""

from tests.faults.fault import Faults, Patch, critical, high, medium

ROLLOUT, COLLECT = "agent/rollout.py", "agent/ppo.py"
ENV, POPULATION = "envs/growth_env.py", "growth/batch/population.py"
LIFECYCLE, GROUPS, ARENA = "growth/life/lifecycle.py", "growth/batch/groups.py", "growth/batch/arena.py"
OBSERVATIONS, ATTRIBUTION = "envs/observations.py", "envs/attribution.py"

FAULTS: Faults = {
    "memory-outlives-episode": critical(
        "The policy's memory goes on from the last episode into the next one.",
        Patch(
            ROLLOUT,
            "return cls(observation, policy.initial_state(env.num_envs), starts)",
            'return cls(observation, getattr(env, "memory", policy.initial_state(env.num_envs)), starts)',
        ),
        Patch(COLLECT, "    return rollout, Position", "    env.memory = state\n    return rollout, Position"),
    ),
    "memory-wiped-while-acting": critical(
        "The policy forgets everything after each step of acting, but not in the update.",
        Patch(COLLECT, "state = decision.state\n", "state = decision.state.zeroed(torch.ones_like(valid))\n"),
    ),
    "action-noise-shared": high(
        "All hosts draw their actions with the same random numbers.",
        Patch(COLLECT, "ACTION, iteration, env.env_ids", "ACTION, iteration, torch.zeros_like(env.env_ids)"),
    ),
    "style-mask-ignored": critical(
        "The policy acts without the mask of the heads that are masked for every op alike.",
        Patch("agent/distributions.py", '== "nothing":\n        return mask', '== "nothing":\n        return None'),
    ),
    "hosts-share-weights": critical(
        "All hosts of an iteration begin with the same weights.",
        Patch(POPULATION, "HOST_INIT, iteration, self.env_ids", "HOST_INIT, iteration, torch.zeros_like(self.env_ids)"),
    ),
    "blueprint-never-trains": critical(
        "The weights of one blueprint never move.",
        Patch(GROUPS, "=state.frozen[hosts, slot]", "=state.frozen[hosts, slot] | (state.blueprint[hosts, slot] == 2)"),
    ),
    "host-gradient-zeroed": critical(
        "Hosts get no gradient: only their seeds learn.",
        Patch(
            ARENA,
            "[_norms(own) for own in grads]",
            "list(map(_norms, grads := [[g * float(i > 0) for g in of] for i, of in enumerate(grads)]))",
        ),
    ),
    "seed-gradient-leaks": high(
        "Isolated seeds send their gradient into the host.",
        Patch(GROUPS, "np.flatnonzero(~np.isin(stage, list(isolated)))", "np.arange(len(stage))"),
    ),
    "host-moments-forgotten": high(
        "Hosts lose the moments of their optimizer after each epoch.",
        Patch(ARENA, "**moments", "**{name: [torch.zeros_like(each) for each in of] for name, of in moments.items()}"),
    ),
    "host-optimizer-steps-twice": high(
        "Hosts and seeds make two steps for each minibatch.",
        Patch(ARENA, "apply(self._ranges, grads", "for _ in '12':\n            apply(self._ranges, grads"),
    ),
    "seeds-decay-like-hosts": medium(
        "Seeds have the weight decay of hosts, though params.yaml gives them none.",
        Patch(POPULATION, "else self.optimizer.seed_weight_decay", "else 100 * self.optimizer.weight_decay"),
    ),
    "holding-gate-open": high(
        "The gate before HOLDING lets every seed pass, whether its ramp has ended or not.",
        Patch("growth/life/lifecycle.py", "Stage.HOLDING: holding,", "Stage.HOLDING: always,"),
    ),
    "prune-does-nothing": high(
        "PRUNE takes effect by its record alone: the seed stays.",
        Patch(LIFECYCLE, "slots = _remove(slots, where & ~scheduled)", "scheduled = scheduled & False"),
    ),
    "alpha-lags": medium(
        "A ramp is one step behind until it jumps to its end.",
        Patch("growth/life/lifecycle.py", "t = done / slots", "t = (done - 1).clamp(min=0) / slots"),
    ),
    "full-alpha-in-validation": high(
        "Blending seeds are validated as if their ramp had ended.",
        Patch(POPULATION, "of(hosts), slots.alpha, data, flags[:", "of(hosts), slots.alpha.ceil(), data, flags[:"),
    ),
    "contribution-of-another-slot": critical(
        "A seed's contribution is measured with another slot's seed left out.",
        Patch(ATTRIBUTION, "correct[left_out].float())", "correct[left_out].roll(1, 0).float())"),
    ),
    "committed-counts-all-seeds": critical(
        "Committed accuracy is that of the live network, unfossilized seeds included.",
        Patch(ATTRIBUTION, "acting, acting & ~fossilized))", "acting, np.zeros_like(acting)))"),
    ),
    "budget-forgets-candidate": high(
        "The mask of the parameter budget leaves out the seed that is asked about.",
        Patch("envs/actions.py", "(elsewhere[:, :, None] + self.reserve", "(elsewhere[:, :, None] + 0 * self.reserve"),
    ),
    "kept-seeds-weigh-nothing": critical(
        "Fossilized seeds are counted without their parameters.",
        Patch(POPULATION, "(slots.stage, LIVE_STAGES)", "(slots.stage, LIVE_STAGES) * (slots.stage != 5)"),
    ),
    "time-not-seen": high(
        "The observation of the time is always 0.",
        Patch(
            OBSERVATIONS,
            "full_like(v.state.trained.loss, v.step / v.episode_steps)",
            "full_like(v.state.trained.loss, 0.0)",
        ),
    ),
    "lags-shifted": high(
        "What is shown as the newest validation result is the one before it.",
        Patch(OBSERVATIONS, "at = -1 - lag", "at = -2 - lag"),
    ),
    "sees-another-host": critical(
        "Every host is decided by the observation of its neighbour.",
        Patch(OBSERVATIONS, "(1), per_kind.flatten(1)), dim=1)", "(1), per_kind.flatten(1)), dim=1).roll(1, 0)"),
    ),
    "reward-sign": critical(
        "The policy is paid for a falling score.",
        Patch("envs/rewards.py", "return setting.weights.score.weight", "return -setting.weights.score.weight"),
    ),
    "component-not-paid": critical(
        "One component of the reward is recorded but not paid.",
        Patch("envs/rewards.py", "first, *rest = parts.values()", "first, _, *rest = parts.values()"),
    ),
    "terminal-potential": critical(
        "The potential of a terminal state is not 0, so shaping pays for seeds that were never kept.",
        Patch("envs/rewards.py", "= torch.where(t.terminal, 0.0, potential(t.after))", "= potential(t.after)"),
    ),
    "rewards-paid-to-the-twin": critical(
        "The rewards of hosts go to their neighbours.",
        Patch(COLLECT, "env.step(decision.actions)\n", "env.step(decision.actions)\n        reward = reward.roll(1)\n"),
    ),
}
