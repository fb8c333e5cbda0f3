"""What a decision was based on: how much less likely it is when one thing that the policy saw is hidden from it.

One at a time (occlusion; Zeiler and Fergus 2014, arXiv 1311.2901): a number is replaced by its mean over training, a
flag is turned, a slot's blueprint is taken away, and what the policy remembers of earlier steps is forgotten.
"""

import math

import torch
from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, RecurrentState
from simic.agent.spec import Observation
from simic.envs.observations import EPOCHS_UNIT, Feature, columns
from simic.evaluation.baselines import EMPTY

LEAST_NATS = 0.01  # smaller changes of a log-probability are not worth a line


def occlusion(
    policy: ActorCritic, normalizers: Normalizers, seen: Observation, memory: RecurrentState, action: Tensor, steps: int
) -> list[tuple[str, float]]:
    """Return what was seen in words and the log-probability in nats that ``action [1, heads]`` loses without it
    (negative: it spoke against), the largest first. ``seen`` and ``memory`` are of one host, before normalisation.
    """
    slots = policy.observation_spec.categories
    table = columns(slots, policy.observation_spec.cardinality)
    shown = normalizers.see(seen)
    flags = torch.tensor([row.flag for _, row in table], device=shown.features.device)
    # One row for each feature, each blueprint and the memory, and a last one in which nothing is hidden.
    count = len(table) + slots + 2
    many = Observation(
        shown.features.repeat(count, 1),
        shown.categories.repeat(count, 1),
        {name: mask.expand(count, *mask.shape[1:]) for name, mask in shown.masks.items()},
    )
    places = torch.arange(len(table))
    many.features[places, places] = torch.where(flags, 1.0 - shown.features[0], 0.0)
    places = torch.arange(slots)
    many.categories[len(table) + places, places] = EMPTY
    before = RecurrentState(*(part.repeat(count, 1) for part in memory))
    before = before.zeroed(torch.arange(count, device=flags.device) == count - 2)
    log_prob = policy.act(many, before, greedy=True, actions=action.expand(count, -1)).joint
    lost = (log_prob[-1] - log_prob[:-1]).tolist()
    words = [in_words(name, row, float(seen.features[0, place]), steps) for place, (name, row) in enumerate(table)]
    words += [f"slot {slot}: which blueprint it holds" for slot in range(slots)] + [
        "what it remembers of earlier steps"
    ]
    ranked = sorted(zip(words, lost, strict=True), key=lambda each: -abs(each[1]))
    return [(what, nats) for what, nats in ranked if abs(nats) >= LEAST_NATS]


def in_words(name: str, row: Feature, value: float, steps: int) -> str:
    """Return a feature's name and its value in the unit before it was squashed (simic.envs.observations)."""
    slot, _, rest = name.partition("_")
    told = f"slot {slot.removeprefix('slot')}: {rest}" if slot.startswith("slot") and rest else name
    told = told.replace("_", " ")
    if row.flag:
        return f"{told}: {'yes' if value else 'no'}"
    if row.unit == "points, symlog":
        size = math.expm1(abs(value) * math.log1p(100.0))
        return f"{told} {math.copysign(size, value):+.1f} points"
    if row.unit == "fraction":
        return f"{told} {100.0 * value:.1f} %"
    if row.unit.endswith("/ episode"):
        return f"{told} {value * steps:.0f} steps"
    unbounded = value / (1.0 - value) if value < 1.0 else math.inf
    if row.unit.startswith("steps, "):
        return f"{told} {EPOCHS_UNIT * unbounded:.0f} steps"
    if row.unit.endswith("x/(1+x)"):
        value, unit = unbounded, row.unit.removesuffix(", x/(1+x)")
        return f"{told} {value:.3g}{'' if unit in ('1', 'count') else f' ({unit})'}"
    return f"{told} {value:.3g}{'' if row.unit == '1' else f' ({row.unit})'}"
