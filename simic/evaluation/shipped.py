"""Read the headroom that comes with simic: it was measured once, on the same data and with the same settings.

Nothing in a headroom depends on a controller, so that measuring it for every run would give the same numbers again.
``python -m benchmarks.headroom`` measures it anew and writes the file.
"""

import gzip
from pathlib import Path
from typing import Literal

from simic import durable, seals
from simic.evaluation.headroom import tuned_rules
from simic.evaluation.result import Frozen, HeadroomReport, read_as
from simic.params import Params, digest
from simic.training.machine import Machine

FOLDER = seals.PACKAGE / "published" / "headroom"


class ShippedHeadroom(Frozen):
    """A headroom, the settings that it was measured with by hash, and the machine that measured it."""

    schema_version: Literal[1] = 1
    settings_sha256: str
    machine: Machine
    report: HeadroomReport


def settings_hash(params: Params) -> str:
    """Hash all params that a headroom depends on."""
    # Whether this file is used decides no number.
    headroom = params.headroom.model_copy(update={"shipped": True})
    return digest(seals.params_of("headroom", params.model_copy(update={"headroom": headroom})))


def file_of(params: Params) -> Path:
    """Locate the file for the suite of these params."""
    return FOLDER / f"{params.prepare.suite.name}.json.gz"


def find(params: Params, data_sha256: str) -> HeadroomReport | None:
    """Give the shipped headroom; None where there is none of these data, settings and rules, or none is wanted.

    Args:
        params: those of the run.
        data_sha256: hash of its prepared data.
    """
    file = file_of(params)
    if not params.headroom.shipped or params.prepare.task != "suite" or not file.exists():
        return None
    shipped = read(file)
    report = shipped.report
    expected = (settings_hash(params), data_sha256, tuned_rules(params))
    if (shipped.settings_sha256, report.data_sha256, report.tuned) != expected:
        return None
    torch = shipped.machine.libraries["torch"]
    source = f"comes with simic; measured by torch {torch} on {shipped.machine.cpu_capability}"
    return report.model_copy(update={"source": source})


def read(file: Path) -> ShippedHeadroom:
    """Read a shipped headroom; SimicError where it is damaged."""
    return read_as(
        file,
        ShippedHeadroom,
        "a shipped headroom",
        "python -m benchmarks.headroom",
        gzip.decompress,
    )


def write(file: Path, params: Params, machine: Machine, report: HeadroomReport) -> None:
    """Write a headroom that was measured with ``params``; equal results are equal bytes."""
    shipped = ShippedHeadroom(settings_sha256=settings_hash(params), machine=machine, report=report)
    durable.replace_file(file, gzip.compress(shipped.to_json().encode(), mtime=0))
