"""What training hosts costs, counted alike for every policy and every floor; validation is no part of it."""

from simic.params import Train

BACKWARD_AND_FORWARD = 3  # a training pass costs about three forward passes (Kaplan et al. 2020, §2.1: 6N vs 2N)


def epoch_samples(train: Train, samples: int) -> int:
    """How many of a task's training samples one host trains on in one epoch."""
    available = samples // train.batch_size
    batches = available if train.batches_per_epoch == "all" else train.batches_per_epoch
    return batches * train.batch_size
