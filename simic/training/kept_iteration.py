"""Keep of a few iterations what the audit derives them from again: the states around one, and its rollout."""

import torch
from torch import Tensor

from simic import rng
from simic.agent.rollout import Position, Rollout
from simic.params import Params
from simic.telemetry.columns import Columns
from simic.training.ranks import Ranks, merged

FEW = 4  # the first ones are all kept
GROWTH = 1.25  # of the stretches after them, of each of which one is kept
SHOWN = 2  # of those of a longer run, the newest are published
BEFORE, AFTER = "before/", "after/"
BY_STEP = ("actions", "log_probs", "values", "next_values", "rewards", "terminated", "truncated", "valid")
BY_STEP += ("advantages", "returns")


def chosen(params: Params) -> list[int]:
    """Return the iterations to keep, in order: the first few, and by hash one of each stretch that follows.

    They do not depend on how many there are, so that the log of a training made longer is that of one of that length;
    one of the last two fifths is always among them.
    """
    kept, first = list(range(FEW)), FEW
    while kept[-1] < params.train.iterations:
        after = max(first + 1, int(first * GROWTH))
        word = int(rng.bits(rng.key(params.rng_seed, rng.Purpose.KEPT_ITERATION, first), (1,)))
        kept.append(first + word % (after - first))
        first = after
    return [number for number in kept if number < params.train.iterations]


def shown(params: Params) -> list[int]:
    """Return those of them that are published."""
    return chosen(params) if params.train.iterations <= FEW else chosen(params)[-SHOWN:]


def state(tensors: dict[str, Tensor], when: str) -> Columns:
    """Return the tensors of a training state as columns."""
    return {f"{when}{name}": tensor.numpy() for name, tensor in tensors.items()}


def of_all(tensors: dict[str, Tensor], ranks: Ranks) -> Columns:
    """Return what is kept of the hosts of this process, ``[T, E, …]``, of all processes."""
    own = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    return merged(ranks.gather(own), axis=1)


def rollout_columns(rollout: Rollout, end: Position, ranks: Ranks) -> Columns:
    """Return a rollout as the update was given it, of all processes: ``[T, E, …]``, what was seen ``[T+1, E, …]``."""
    last = end.observation
    told = last.categories[:, :0] if last.told is None else last.told
    seen = {
        "features": (rollout.raw_features, last.features),
        "categories": (rollout.categories, last.categories),
        "told": (rollout.told, told),
        **{f"masks.{name}": (mask, last.masks[name]) for name, mask in rollout.masks.items()},
    }
    tensors = {name: torch.cat((steps, after[None])) for name, (steps, after) in seen.items()}
    tensors |= {name: getattr(rollout, name) for name in BY_STEP} | {"env_ids": rollout.env_ids[None]}
    return of_all(tensors, ranks)
