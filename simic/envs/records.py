"""The bundles of tensors an environment hands out and keeps."""

from dataclasses import dataclass

from torch import Tensor

from simic.envs.attribution import Attribution
from simic.envs.governor import Vitals
from simic.envs.tracker import Tracker
from simic.growth.vocabulary import Slots


@dataclass(frozen=True)
class StepInfo:
    """What happened in one step; accuracies in points, NaN = not measured, ``[E]`` where nothing else is said."""

    effective_op: Tensor  # -1 in the info of a reset
    gate: Tensor  # the gate the op asked, -1 = none
    gate_passed: Tensor
    components: dict[str, Tensor]  # of the reward, float64; empty in the info of a reset
    live_accuracy: Tensor
    committed_accuracy: Tensor  # host + FOSSILIZED seeds, all others off
    all_off_accuracy: Tensor
    val_loss: Tensor
    train_loss: Tensor
    contribution: Tensor  # [E, K]
    contribution_se: Tensor  # [E, K]
    stage: Tensor  # [E, K]
    blueprint: Tensor  # [E, K]
    alpha: Tensor  # [E, K]
    params: Tensor  # host and live seeds
    committed_params: Tensor  # host and FOSSILIZED seeds
    flops: Tensor  # per sample, host and live seeds
    panicked: Tensor  # rolled back in this step
    cause: Tensor  # governor.Cause of it
    valid: Tensor  # False in all steps after a rollback: such rows are no experience


@dataclass(frozen=True)
class State:
    """All that an episode mutates beside the population."""

    slots: Slots
    tracker: Tracker
    vitals: Vitals
    alive: Tensor  # bool [E]: no rollback yet in this episode
    measured: Attribution
    train_loss: Tensor
    train_accuracy: Tensor
    effective_op: Tensor
    succeeded: Tensor
    seed_params: Tensor  # [E, K]
