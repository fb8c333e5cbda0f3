"""What a run's artifacts were made from, and whether they are still the ones that were recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from simic import durable, params
from simic.errors import SimicError
from simic.training import checkpoint
from simic.training.checkpoint import Damaged, Manifest

PUBLISHED = ("best", "latest")


@dataclass(frozen=True)
class Origin:
    """What the checkpoints do not hold because it differs between equal runs; None = not recorded."""

    code_revision: str | None = None
    code_dirty: bool | None = None
    resumes: int | None = None


@dataclass(frozen=True)
class Provenance:
    """None = not recorded. ``damaged`` says which artifacts are not what was recorded."""

    params_sha256: str | None
    data_sha256: str | None
    lock_sha256: str | None
    checkpoint_sha256: Mapping[str, str]
    state_chain: str | None
    origin: Origin
    versions: Mapping[str, str]
    hardware: Mapping[str, str]
    damaged: tuple[str, ...]
    non_finite: tuple[str, ...]  # tensors of the checkpoints that hold NaN or Inf


@dataclass(frozen=True)
class Certificate:
    """Training repeated from checkpoints: how many iterations were reproduced, and whether all of them were."""

    exact: bool
    iterations: int

    def __str__(self) -> str:
        return f"{self.iterations} iterations reproduced" + ("" if self.exact else ", the next one differs")


def trace(tree: params.Params, checkpoints: Path, lock: Path, origin: Origin) -> Provenance:
    """Reads and verifies the published checkpoints against their manifests and against the present params."""
    damaged: list[str] = []
    non_finite: list[str] = []
    hashes: dict[str, str] = {}
    manifest: Manifest | None = None
    for name in PUBLISHED:
        try:
            found = checkpoint.read(checkpoints / name)
        except Damaged as error:
            damaged.append(str(error))
            continue
        manifest = found.manifest
        hashes[name] = manifest.sha256[checkpoint.STATE_FILE]
        non_finite += [f"{name}: {tensor}" for tensor, values in found.tensors.items() if not _finite(values)]
        if manifest.params_sha256 != _trained_params(tree):
            damaged.append(f"{checkpoints / name}: was trained with params that differ from params.yaml")
    machine = manifest.machine if manifest else None
    return Provenance(
        params_sha256=manifest.params_sha256 if manifest else None,
        data_sha256=manifest.data_sha256 if manifest else None,
        lock_sha256=_sha256(lock),
        checkpoint_sha256=hashes,
        state_chain=str(manifest.scalars["chain"]) if manifest else None,
        origin=origin,
        versions={"python": machine.python, **machine.libraries} if machine else {},
        hardware={"device": machine.device, "cpu": machine.cpu_capability, "threads": str(machine.threads)}
        if machine
        else {},
        damaged=tuple(damaged),
        non_finite=tuple(non_finite),
    )


def _finite(values: torch.Tensor) -> bool:
    return not values.is_floating_point() or bool(values.isfinite().all())


def _trained_params(tree: params.Params) -> str:
    """As the trainer computes it (training.resume.Identity)."""
    return params.digest({"rng_seed": tree.rng_seed, "train": tree.train.model_dump(mode="json")})


def _sha256(path: Path) -> str | None:
    """None where there is no such file."""
    try:
        return durable.sha256(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SimicError(f"{path}: not readable: {error.strerror}") from None
