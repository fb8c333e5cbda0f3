"""Where parameters live between epochs: one row per host, with its moments and its step count."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from simic.errors import SimicError


@dataclass(frozen=True)
class Rows:
    """``param [E, n]``, moments of the same shape, ``step [E]`` float64 (whole numbers: updates done)."""

    param: Tensor
    moments: dict[str, Tensor]
    step: Tensor

    @classmethod
    def zeros(cls, envs: int, params: int, moments: tuple[str, ...], device: torch.device) -> Self:
        """Rows that nobody uses yet."""
        param = torch.zeros(envs, params, device=device)
        return cls(
            param,
            {name: torch.zeros_like(param) for name in moments},
            torch.zeros(envs, dtype=torch.float64, device=device),
        )

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything, by name."""
        yield "param", self.param
        yield "step", self.step
        yield from self.moments.items()

    def start(self, rows: Tensor, param: Tensor) -> None:
        """New parameters for the rows ``[R]``; moments and step from zero."""
        self.param[rows] = param
        self.step[rows] = 0.0
        for moment in self.moments.values():
            moment[rows] = 0.0

    def clone(self) -> Self:
        """A copy that shares nothing."""
        moments = {name: moment.clone() for name, moment in self.moments.items()}
        return type(self)(self.param.clone(), moments, self.step.clone())

    def fill(self, name: str, state: Mapping[str, Tensor]) -> Self:
        """Everything from ``name/…`` of a state that ``named`` gave; SimicError where that is of other shapes."""
        for part, tensor in self.tensors():
            saved = state.get(f"{name}/{part}")
            if saved is None or saved.shape != tensor.shape:
                found = None if saved is None else tuple(saved.shape)
                raise SimicError(f"population state {name}/{part}: shape {found}, must be {tuple(tensor.shape)}")
            tensor.copy_(saved)
        return self

    def copy_where(self, rows: Tensor, other: Self) -> None:
        """Take ``other``'s rows where ``rows [E]`` bool."""
        on_host = rows.device.type == "cpu"  # elsewhere to ask which ones would make the host wait
        chosen = rows.nonzero().flatten() if on_host else rows
        for (_, mine), (_, theirs) in zip(self.tensors(), other.tensors(), strict=True):
            if on_host:
                mine[chosen] = theirs[chosen]
            else:
                mine.copy_(torch.where(rows.view(-1, *[1] * (mine.dim() - 1)), theirs, mine))


def named(stores: Mapping[str, Rows]) -> dict[str, Tensor]:
    """Everything of several, as copies: ``<store>/<part>``."""
    return {f"{name}/{part}": tensor.clone() for name, store in stores.items() for part, tensor in store.tensors()}


def store_names(state: Mapping[str, Tensor]) -> list[str]:
    """Those whose tensors are in a state."""
    return list(dict.fromkeys(key.partition("/")[0] for key in state if "/" in key))
