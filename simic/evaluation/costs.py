"""What training hosts costs, counted alike for every policy and every floor; validation is counted apart."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from simic.envs.attribution import most_networks
from simic.envs.growth_env import GrowthEnv
from simic.envs.records import StepInfo
from simic.params import Train

BACKWARD_AND_FORWARD = 3  # a training pass costs about three forward passes (Kaplan et al. 2020, §2.1: 6N vs 2N)


def epoch_samples(train: Train, samples: int) -> int:
    """How many of a task's training samples one host trains on in one epoch."""
    available = samples // train.batch_size
    batches = available if train.batches_per_epoch == "all" else train.batches_per_epoch
    return batches * train.batch_size


@dataclass
class Meter:
    """FLOPs ``[H]`` int64 that some hosts of an environment cost from step to step."""

    env: GrowthEnv
    training: Tensor
    validation: Tensor

    @classmethod
    def of(cls, env: GrowthEnv, hosts: int) -> Self:
        """Nothing spent yet by so many."""
        nothing = torch.zeros(hosts, dtype=torch.int64, device=env.device)
        return cls(env, nothing, nothing)

    def add(self, info: StepInfo) -> None:
        """One host epoch, and its validation with every ablation (an upper bound: equal networks are run once)."""
        samples = epoch_samples(self.env.train, len(self.env.training_data))
        networks = most_networks(self.env.host.slots)
        self.training = self.training + info.flops * (BACKWARD_AND_FORWARD * samples)
        self.validation = self.validation + info.flops * (networks * len(self.env.validation_data))
