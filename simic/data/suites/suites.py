"""Register suites by name: the kinds that each holds out, and how hosts are trained on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from simic import registry
from simic.errors import SimicError


@dataclass(frozen=True)
class TaskSuite:
    """A suite. ``held_out`` kinds have no instance in training. ``overrides`` of params.yaml suit it: host, batches,
    budget.

    ``val`` kinds serve only to choose the checkpoint; without any, those of training do. ``outside`` kinds, which only
    a suite of tables has, may have other widths. Each of ``parts`` gets as many tasks of a group as any other part that
    has kinds there; within a part kinds take turns.
    """

    name: str
    held_out: tuple[str, ...]
    samples: dict[str, int]  # of each split of each task
    overrides: tuple[str, ...]
    val: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()
    table: bool = False  # samples are rows [n, 1, 1, D]: standardised by column, clipped to ±5, kept as float16

    def dealt(self, kinds: Sequence[str], count: int) -> list[tuple[str, int]]:
        """Return ``count`` pairs of kind and number of its instance, of parts and kinds in turn."""
        parts = [[name for name in part if name in kinds] for part in self.parts]
        parts.append([name for name in kinds if not any(name in part for part in parts)])
        parts = [part for part in parts if part]
        turns = [(parts[k % len(parts)], k // len(parts)) for k in range(count if parts else 0)]
        return [(part[turn % len(part)], turn // len(part)) for part, turn in turns]


SUITES: dict[str, TaskSuite] = {}
# Overrides for small networks on images and sequences. params.yaml is for tables, whose seeds act in the epoch in which
# they germinate; here one trains and blends in over epochs, and none can prove itself before the eighth.
GRADUAL = (
    "train.host={family: cnn, preset: impaired}",
    "train.iterations=8",
    "train.horizon=null",
    "train.envs=64",
    "train.episode_steps=25",
    "train.batches_per_epoch=all",
    "train.batch_size=64",
    "train.validate_every=4",
    "train.host_optimizer={name: sgd, learning_rate: 0.05, weight_decay: 0.0005, seed_weight_decay: 0.0}",
    "train.lifecycle={training_dwell: 3, blending_dwell: 3, min_prune_age: 8, embargo_steps: 5, reset_steps: 1, "
    "sequential_development: true, max_seeds: null}",
    "train.actions={}",
    "train.reward={mode: shaped, pbrs_weight: 0.3, intervention_cost: 0.01}",
    "train.policy={core: lstm, encoder_units: 128, core_units: 128, critic: own}",
    "train.ppo={learning_rate: 0.001, learning_rate_schedule: constant, epochs: 4, target_kl: 0.015, "
    "entropy_coef: 0.01, entropy_coef_final: 0.001, gamma: 0.995, normalize_rewards: true}",
)


def suite(item: TaskSuite) -> TaskSuite:
    """Register a suite; SimicError where the name is taken."""
    if item.name in SUITES:
        raise SimicError(f"suite {item.name!r} is registered already")
    SUITES[item.name] = item
    registry.add(registry.SUITE, item.name)
    return item
