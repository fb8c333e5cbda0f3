"""What to try first: the survey grows every opening alone on the same tasks; the best sequence follows from its curves.

The order matters as much as the choice. What shows early whether it helps comes first; what takes long to show comes
last, when nothing is left to be judged.
"""

from itertools import permutations

import torch
from torch import Tensor

from simic.agent.rollout import Rollout
from simic.envs.explorer import Tries
from simic.envs.observations import columns
from simic.envs.patient import KEEP_ABOVE_PCT


def openings_tried(rollout: Rollout, openings: int, slots: int) -> Tensor:
    """Validation accuracy ``[tasks, openings, T]`` before each step, in [0, 1]; 0 where a host had ended.

    Environments whose ids follow each other share a task and try one opening each.
    """
    accuracy = [name for name, _ in columns(slots)].index("accuracy_lag_0")
    curves = torch.where(rollout.valid, rollout.raw_features[..., accuracy], 0.0)
    return curves.T.unflatten(0, (-1, openings)).double().cpu()


def best_sequence(curves: Tensor, tries: Tries) -> Tensor:
    """The openings ``[tries]`` to try one after the other, as indices into ``curves [tasks, openings, T]``.

    Of all sequences the one that ends best on the mean of the tasks, where each try but the last is kept if its host
    has gained enough by the time it is judged. A seed that germinates later is taken to follow the same curve and to
    get as far as there is time.
    """
    openings, steps = curves.shape[1:]
    starts = tries.starts[:openings]
    sequences = torch.tensor(list(permutations(range(openings), len(starts))))
    gain = curves[:, :, min(tries.age, steps - 1)] - curves[:, :, 0]
    convinces = 100.0 * gain > KEEP_ABOVE_PCT
    *earlier, reached = [
        curves[:, opening, steps - 1 - start] for start, opening in zip(starts, sequences.T, strict=True)
    ]
    for opening, end in zip(sequences.T[:-1].flip(0), reversed(earlier), strict=True):
        reached = torch.where(convinces[:, opening], end, reached)
    return sequences[int(reached.mean(dim=0).argmax())]
