"""What the policy sees and decides, as a checkpoint's manifest says it in plain JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Mask = Sequence[Any]  # nested lists of bools: of the choices, or of them for each op or slot


@dataclass(frozen=True)
class Factor:
    """One part of an action: how many choices it has, and on what its mask depends (nothing, the op or the slot)."""

    name: str
    size: int
    mask_given: str


@dataclass(frozen=True)
class Interface:
    """``matters[op][k]``: whether factor k is a part of the action when the op was chosen. ``flags``: the features that
    are never scaled.
    """

    factors: tuple[Factor, ...]
    matters: tuple[tuple[bool, ...], ...]
    flags: tuple[bool, ...]
    categories: int

    @classmethod
    def of(cls, specs: Mapping[str, Any]) -> "Interface":
        """From ``{"action": …, "observation": …}``."""
        action, seen = specs["action"], specs["observation"]
        factors = tuple(Factor(each["name"], each["size"], each["mask_given"]) for each in action["heads"])
        flags = seen["raw"] or [False] * seen["features"]
        return cls(factors, tuple(map(tuple, action["relevance"])), tuple(flags), seen["categories"])

    def legal(self, masks: Mapping[str, Mask], factor: int, op: int, slot: int) -> list[int]:
        """The choices that the masks of one moment allow, given the op and the slot."""
        described = self.factors[factor]
        mask = masks.get(described.name)
        if mask is None:
            return list(range(described.size))
        row = {"op": op, "slot": slot}.get(described.mask_given)
        allowed = mask if row is None else mask[row]
        return [choice for choice, legal in enumerate(allowed) if legal]
