"""Keep the state before a few iterations, so that the audit can play and learn them again."""

from simic import rng
from simic.params import Params

FEW = 4  # the first ones are all kept
GROWTH = 1.25  # of the stretches after them, of each of which one is kept
PUBLISHED = 2  # of those of a longer run, the newest are published


def chosen(params: Params) -> list[int]:
    """Choose the iterations to keep, in order: the first few, and by hash one of each stretch that follows.

    They do not depend on how many there are, so that the log of a training made longer is that of one of that length;
    one of the last two fifths is always among them.
    """
    # Stretches grow by a quarter, so that their number grows with the logarithm of the length.
    numbers = list(range(FEW))
    first = FEW
    while numbers[-1] < params.train.iterations:
        after = max(first + 1, int(first * GROWTH))
        # By a hash of the seed: chosen before it is known what comes out.
        word = int(rng.bits(rng.key(params.rng_seed, rng.Purpose.KEPT_ITERATION, first), (1,)))
        numbers.append(first + word % (after - first))
        first = after
    return [number for number in numbers if number < params.train.iterations]


def published(params: Params) -> list[int]:
    """Choose those of them that are published."""
    return chosen(params) if params.train.iterations <= FEW else chosen(params)[-PUBLISHED:]
