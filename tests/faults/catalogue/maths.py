"""Faults in the formulas of the agent: advantages, scales, losses, the optimizer."""

from tests.faults.fault import Faults, Patch, fault

NORMALIZATION, ITERATION = "agent/normalization.py", "training/iteration.py"
ADVANTAGES = PPO = "agent/ppo.py"
LOSSES, ROLLOUT = "agent/losses.py", "agent/rollout.py"

FAULTS: Faults = {
    "gae-gamma-squared": fault(
        "The trace of the advantages is discounted by γ² λ.",
        "agent/test_losses.py",
        Patch(
            ADVANTAGES,
            "(gamma * gae_lambda * continues)",
            "(gamma * gamma * gae_lambda * continues)",
        ),
    ),
    "gamma-lambda-swapped": fault(
        "γ and λ are handed to the advantages the wrong way round.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            ITERATION,
            "rewards, settings.gamma, settings.gae_lambda)",
            "rewards, settings.gae_lambda, settings.gamma)",
        ),
    ),
    "bootstrap-at-terminal": fault(
        "A terminal state is worth its value instead of 0.",
        "agent/test_losses.py",
        Patch(ADVANTAGES, "next_values.masked_fill(terminated, 0.0)", "next_values"),
    ),
    "next-value-is-own-value": fault(
        "The value of the state after a step is that of the state before it.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[tables, lstm]",
        Patch(
            ROLLOUT,
            "(rollout.values[1:], value_after[None])",
            "(rollout.values[:-1], value_after[None])",
        ),
    ),
    "value-target-is-advantage": fault(
        "The critic is fitted to the advantages, not to the returns.",
        "agent/test_losses.py",
        Patch(
            LOSSES,
            "(rescoring.values - batch.returns)",
            "(rescoring.values - batch.advantages)",
        ),
    ),
    "advantage-normalised-per-host": fault(
        "Each host's advantages are centred on their own mean.",
        "agent/test_losses.py",
        Patch(
            ADVANTAGES,
            'mean = reduce(torch.where(valid, advantages, 0.0).sum(), "sum") / count',
            "mean = torch.where(valid, advantages, 0.0).mean(dim=0)",
        ),
    ),
    "clip-range-tenfold": fault(
        "The ratio is clipped at ten times the range that params.yaml says.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            LOSSES, "(log_ratio), advantages, settings", "(log_ratio), advantages, 10 * settings"
        ),
    ),
    "entropy-sign": fault(
        "Entropy is punished instead of paid.",
        "agent/test_losses.py",
        Patch(
            LOSSES,
            "(torch.zeros_like(choice_rows) - entropy_coef)",
            "(torch.zeros_like(choice_rows) + entropy_coef)",
        ),
    ),
    "ratio-per-head": fault(
        "Each head has a clipped ratio of its own though the joint one is asked for.",
        "agent/test_losses.py",
        Patch(LOSSES, 'if settings.ratio == "joint":', 'if settings.ratio != "joint":'),
    ),
    "optimizer-steps-twice": fault(
        "The optimizer is applied twice to every gradient.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            PPO,
            "            self.adam.step_unless_skipped(learning_rate, clipping, verdict.step)\n",
            "            for _ in range(2):\n"
            "                self.adam.step_unless_skipped(learning_rate, clipping, verdict.step)\n",
        ),
    ),
    "gradient-clip-inverted": fault(
        "Gradients below the clipping norm are blown up to it, large ones pass.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            PPO,
            "self.settings.max_grad_norm).clamp(min=1.0)",
            "self.settings.max_grad_norm).clamp(max=1.0)",
        ),
    ),
    "half-the-minibatches": fault(
        "Every epoch of an update ends before its last minibatch.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(
            PPO, "for minibatch in range(minibatches):", "for minibatch in range(minibatches - 1):"
        ),
    ),
    "entropy-schedule-backwards": fault(
        "The entropy coefficient rises over the run instead of falling.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch(PPO, "entropy_coef + self._progress()", "entropy_coef + (1.0 - self._progress())"),
    ),
    "rewards-shifted": fault(
        "Rewards are shifted by a tenth of the standard deviation of the returns when they are scaled.",
        "agent/test_normalization.py",
        Patch(NORMALIZATION, "(rewards / self.sigma)", "(rewards / self.sigma + 0.1)"),
    ),
    "moments-merged-wrongly": fault(
        "The variance of observations leaves out how far the means of two rollouts lie apart.",
        "agent/test_normalization.py",
        Patch(
            NORMALIZATION,
            "m2 = self.m2 + batch.m2 + delta.square() * self.count * share",
            "m2 = self.m2 + batch.m2 + delta.square() * share",
        ),
    ),
    "return-runs-through-episodes": fault(
        "The running return that scales rewards goes on from one episode to the next.",
        "agent/test_normalization.py",
        Patch(
            NORMALIZATION,
            "torch.where(starts[t], 0.0, self.running) * self.gamma",
            "self.running * self.gamma",
        ),
    ),
    "explained-variance-of-values": fault(
        "Explained variance is reported as a share of the values' variance, not of the returns'.",
        "reference/test_small_runs.py::test_a_small_training_is_what_the_reference_computes[environment]",
        Patch("agent/metrics.py", "variance[3] / variance[1]", "variance[3] / variance[2]"),
    ),
}
