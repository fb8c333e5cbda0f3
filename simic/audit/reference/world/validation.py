"""What a host and its seeds are worth on the validation samples, a second time: each network by itself."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.audit.reference.world.bank import Samples
from simic.audit.reference.world.hosts import Anatomy
from simic.audit.reference.world.life import FOSSILIZED, Slot
from simic.audit.reference.world.networks import Weights, logits
from simic.audit.reference.world.training import among

On = frozenset[int]  # slots whose seeds are on
NAN = math.nan


@dataclass(frozen=True)
class Answers:
    """Of one network: which samples are right ``[N]``, the mean loss in nats, how far the best class of each sample is
    ahead of the next ``[N]``.
    """

    correct: Tensor
    loss: float
    lead: Tensor


Network = Callable[[On], Answers]


@dataclass(frozen=True)
class Validation:
    """Accuracies in points, losses in nats; of each slot NaN where its seed does not act, of interactions where no
    other does. ``boost`` is the largest interaction with another seed, at least 0.
    """

    accuracy: float
    all_off_accuracy: float
    committed_accuracy: float
    loss: float
    committed_loss: float
    contribution: list[float]
    contribution_se: list[float]
    interaction: list[float]
    interaction_se: list[float]
    boost: list[float]


@torch.no_grad()
def answers(body: Anatomy, weights: Weights, slots: Sequence[Slot], on: On, samples: Samples, classes: int) -> Answers:
    """Of the network with these seeds on, at their present alpha."""
    found = among(logits(body, weights, slots, on, samples.x), classes)
    best = found.topk(2, dim=1).values
    loss = float(F.cross_entropy(found, samples.y))
    return Answers((found.argmax(1) == samples.y).double(), loss, best[:, 0] - best[:, 1])


def validate(slots: Sequence[Slot], network: Network) -> Validation:
    """All that a step measures."""
    acting = frozenset(k for k, slot in enumerate(slots) if slot.acts)
    kept = frozenset(k for k in acting if slots[k].stage == FOSSILIZED)
    main, none, committed = network(acting), network(frozenset()), network(kept)
    alone = {k: paired(main.correct - network(acting - {k}).correct) for k in acting}
    interaction, boost = _interactions(acting, network)
    missing = (NAN, NAN)
    every = range(len(slots))
    return Validation(
        accuracy=points(main.correct),
        all_off_accuracy=points(none.correct),
        committed_accuracy=points(committed.correct),
        loss=main.loss,
        committed_loss=committed.loss,
        contribution=[alone.get(k, missing)[0] for k in every],
        contribution_se=[alone.get(k, missing)[1] for k in every],
        interaction=[interaction.get(k, missing)[0] for k in every],
        interaction_se=[interaction.get(k, missing)[1] for k in every],
        boost=[boost.get(k, NAN) for k in every],
    )


def points(values: Tensor) -> float:
    """Their mean in points."""
    return 100.0 * float(values.mean())


def paired(differences: Tensor) -> tuple[float, float]:
    """Mean in points and its standard error."""
    return points(differences), 100.0 * float(differences.std()) / math.sqrt(len(differences))


def _interactions(acting: On, network: Network) -> tuple[dict[int, tuple[float, float]], dict[int, float]]:
    """f(i and j) − f(i) − f(j) + f(none), summed over the partners of a seed; and the largest one of each."""
    sums: dict[int, Tensor] = {}
    most: dict[int, float] = {}
    for i, j in combinations(sorted(acting), 2):
        both, first, second, none = (network(frozenset(on)).correct for on in ({i, j}, {i}, {j}, set[int]()))
        surplus = both - first - second + none
        for k in (i, j):
            sums[k] = sums[k] + surplus if k in sums else surplus
            most[k] = max(most.get(k, 0.0), points(surplus))
    return {k: paired(total) for k, total in sums.items()}, most
