"""What the policy sees and decides, as a checkpoint's manifest says it in plain JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Mask = Sequence[Any]  # nested lists of bools: of the choices, or of them for each op or slot


@dataclass(frozen=True)
class Factor:
    """One part of an action: how many choices it has, on what its mask depends (nothing, the op or the slot), and the
    logits that an untrained policy adds to its choices, if any. The last features are about the choices of the factor
    that is ``described``, so many about each.
    """

    name: str
    size: int
    mask_given: str
    lean: tuple[float, ...] = ()
    described: int = 0


@dataclass(frozen=True)
class Interface:
    """``matters[op][k]``: whether factor k is a part of the action when the op was chosen. ``flags``: the features that
    are never scaled. ``told`` numbers are for the critic alone.
    """

    factors: tuple[Factor, ...]
    matters: tuple[tuple[bool, ...], ...]
    flags: tuple[bool, ...]
    categories: int
    told: int

    @classmethod
    def of(cls, specs: Mapping[str, Any]) -> "Interface":
        """From ``{"action": …, "observation": …}``."""
        action, seen = specs["action"], specs["observation"]
        factors = tuple(
            Factor(each["name"], each["size"], each["mask_given"], tuple(each["lean"]), each["described"])
            for each in action["heads"]
        )
        flags = seen["raw"] or [False] * seen["features"]
        return cls(factors, tuple(map(tuple, action["relevance"])), tuple(flags), seen["categories"], seen["told"])

    def legal(self, masks: Mapping[str, Mask], factor: int, op: int, slot: int) -> list[int]:
        """The choices that the masks of one moment allow, given the op and the slot."""
        described = self.factors[factor]
        mask = masks.get(described.name)
        if mask is None:
            return list(range(described.size))
        row = {"op": op, "slot": slot}.get(described.mask_given)
        allowed = mask if row is None else mask[row]
        return [choice for choice, legal in enumerate(allowed) if legal]

    def decides(self, masks: Mapping[str, Mask], action: Sequence[int]) -> bool:
        """Whether a moment left a choice: more than one was legal of some factor that the op uses."""
        op, slot = action[0], action[1] if len(action) > 1 else 0
        used = [factor for factor, matters in enumerate(self.matters[op]) if matters]
        return any(len(self.legal(masks, factor, op, slot)) > 1 for factor in used)
