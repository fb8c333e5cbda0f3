"""What is kept of a few iterations so that the audit can derive them again: the states around one, and its rollout."""

import torch
from torch import Tensor

from simic import rng
from simic.agent.rollout import Position, Rollout
from simic.params import Params
from simic.telemetry.columns import Columns
from simic.training.ranks import Ranks, merged

FEW = 4  # of a run of so many iterations, all are kept
BEFORE, AFTER = "before/", "after/"
BY_STEP = ("actions", "log_probs", "values", "next_values", "rewards", "terminated", "truncated", "valid")
BY_STEP += ("advantages", "returns")


def chosen(params: Params) -> frozenset[int]:
    """Return the iterations to keep: the last one, and one of the later half by hash."""
    count = params.train.iterations
    if count <= FEW:
        return frozenset(range(count))
    word = int(rng.bits(rng.key(params.rng_seed, rng.Purpose.KEPT_ITERATION), (1,)))
    return frozenset((count // 2 + word % (count - 1 - count // 2), count - 1))


def state(tensors: dict[str, Tensor], when: str) -> Columns:
    """Return the tensors of a training state as columns."""
    return {f"{when}{name}": tensor.numpy() for name, tensor in tensors.items()}


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
    found = {name: torch.cat((steps, after[None])) for name, (steps, after) in seen.items()}
    found |= {name: getattr(rollout, name) for name in BY_STEP} | {"env_ids": rollout.env_ids[None]}
    own = {name: tensor.detach().cpu().numpy() for name, tensor in found.items()}
    return merged(ranks.gather(own), axis=1)
