"""Count what training hosts costs, alike for every policy and every static network, and validation apart."""

from torch import Tensor

from simic.envs.attribution import most_networks
from simic.envs.growth_env import GrowthEnv
from simic.params import Train

BACKWARD_AND_FORWARD = 3  # a training pass costs about three forward passes (Kaplan et al. 2020, §2.1: 6N vs 2N)


def epoch_samples(train: Train, samples: int) -> int:
    """Return how many of a task's training samples one host trains on in one epoch."""
    available = samples // train.batch_size
    batches = available if train.batches_per_epoch == "all" else train.batches_per_epoch
    return batches * train.batch_size


def spent(env: GrowthEnv, flops: Tensor) -> tuple[Tensor, Tensor]:
    """Return FLOPs ``[H]`` int64 of training and of validation, from the FLOPs per sample ``[H]`` summed over steps.

    Validation is counted with every ablation: an upper bound, since equal networks are run once.
    """
    samples = epoch_samples(env.train, len(env.training_data))
    networks = most_networks(env.host.slots)
    return flops * (BACKWARD_AND_FORWARD * samples), flops * (networks * len(env.validation_data))
