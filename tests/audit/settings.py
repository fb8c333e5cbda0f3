"""Settings of the tests that train on patches: all that the project's own params say otherwise for their own suite."""

import simic.data.suites.patches  # noqa: F401 - registers itself
from simic.data.suites.suites import SUITES

PATCHES = (
    "prepare.suite={name: patches, instances: {train: 192, val: 16, held_out: 16, held_out_kinds: 4}}",
    *SUITES["patches"].overrides,
    "headroom.search_tasks=8",
    "evaluate.epochs=null",
    "train.horizon=null",
    "train.host_optimizer={name: adamw, learning_rate: 0.003, weight_decay: 0.0005}",
    "train.lifecycle={reset_steps: 1, embargo_steps: 0, max_seeds: 1, sequential_development: false}",
    "train.actions={blueprint: [norm, attention, depthwise, bottleneck], style: [linear_add, sigmoid_add], "
    "alpha_target: [1.0]}",
    "train.reward={mode: score}",
    "train.policy={}",
    "train.ppo={}",
)
