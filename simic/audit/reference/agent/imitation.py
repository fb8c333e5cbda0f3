"""Cloning what another actor showed, by advantage (Peng et al. 2019, arXiv 1910.00177)."""

import math

TEMPERATURE = 0.3  # standard deviations of what twins differ by
LARGEST_EXPONENT = 4.0
EPOCHS, LAST_EPOCHS, MINIBATCHES = 2, 24, 8
TINY = 2.0**-126  # the least normal float32: nothing is divided by less


def worth(sums: list[float]) -> list[float]:
    """What every episode is worth, of mean 1, from what each got more than its twins."""
    mean = math.fsum(sums) / len(sums)
    sigma = math.sqrt(math.fsum((x - mean) ** 2 for x in sums) / len(sums))
    raw = [math.exp(min(x / (TEMPERATURE * max(sigma, TINY)), LARGEST_EXPONENT)) for x in sums]
    return [x * len(raw) / math.fsum(raw) for x in raw]
