"""Which way hosts and operations run, by device: thresholds between ways that give the same numbers up to rounding.

The shipped ones were measured on a 2-core CPU (docs/history/measurements.md); ``simic autotune`` measures them on yours
and writes a table that ``runtime.backend`` may name. Nothing is measured when training starts.
"""

import math
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simic.durable import sha256
from simic.errors import SimicError
from simic.reading import read_file

MAX_BYTES = 1_000_000  # of a table


class Thresholds(BaseModel):
    """Thresholds; each looks at a host alone, so that they decide alike for any number of hosts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    # Entries of a host's largest feature map in a minibatch from which hosts run one after the other; None = never.
    apart: int | None = Field(ge=0)
    # Entries up to which a k×k convolution is one dense matrix from all pixels and channels to all of them.
    dense_entries: int = Field(ge=0)

    @property
    def apart_from(self) -> float:
        """As a number to compare with."""
        return math.inf if self.apart is None else self.apart


class ThresholdTable(BaseModel):
    """The file of ``simic autotune``: thresholds by type of device, and the measurements behind them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[3] = 3
    thresholds: dict[str, Thresholds]
    machine: dict[str, str] = {}
    measured: list[dict[str, float | str]] = []


# No GPU could be had so far: what is under "cuda" is by reasoning, not measured.
SHIPPED = {
    "cpu": Thresholds(apart=70_000, dense_entries=16 * 16 * 64),
    "cuda": Thresholds(apart=None, dense_entries=16 * 16 * 64),
}


def is_table(backend: str) -> bool:
    """Whether ``runtime.backend`` names a file rather than a way."""
    return backend.endswith(".json")


def content(backend: str) -> str | None:
    """sha256 of the table that ``backend`` names; None where it names a way."""
    if not is_table(backend):
        return None
    read(Path(backend))
    return sha256(Path(backend))


def of(backend: str, device: torch.device) -> Thresholds:
    """Of a device: from the table that ``backend`` names, else the shipped ones ("cuda" for any accelerator)."""
    if not is_table(backend):
        return SHIPPED.get(device.type, SHIPPED["cuda"])
    found = read(Path(backend)).thresholds
    if device.type not in found:
        raise SimicError(
            f"{backend}: has no thresholds for {device.type!r}, only for {sorted(found)}; run simic autotune there"
        )
    return found[device.type]


def read(path: Path) -> ThresholdTable:
    """A table; SimicError naming the file and what is wrong with it."""
    try:
        return ThresholdTable.model_validate_json(
            read_file(path, MAX_BYTES, "runtime.backend names it; simic autotune writes one")
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise SimicError(f"{path}: {where}: {first['msg']}; write it anew with simic autotune") from None
