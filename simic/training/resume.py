"""Where to resume: the newest checkpoint that is intact and whose telemetry is, and findings about newer ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simic.errors import SimicError
from simic.params import Params, digest
from simic.telemetry.recorder import Chain, Extent
from simic.telemetry.rows import FindingRow, Severity
from simic.training.checkpoint import Checkpoint, CheckpointStore, Damaged, Manifest
from simic.training.machine import Machine

# A run may resume with other values of these alone.
HARMLESS = ("train.iterations", "train.validate_every", "train.stop_on")


@dataclass(frozen=True)
class Identity:
    """What must be the same for a checkpoint to be resumed."""

    params: dict[str, Any]
    data_sha256: str
    machine: Machine

    @property
    def params_sha256(self) -> str:
        return digest(self.params)

    @classmethod
    def of(cls, tree: Params, data_sha256: str, machine: Machine) -> "Identity":
        """Of the sections that training depends on."""
        kept = {"rng_seed": tree.rng_seed, "train": tree.train.model_dump(mode="json")}
        return cls(kept, data_sha256, machine)

    def on(self, machine: Machine) -> "Identity":
        """The same on another machine."""
        return replace(self, machine=machine)


@dataclass(frozen=True)
class Start:
    """The checkpoint to resume (None: start from the beginning), and findings to record."""

    checkpoint: Checkpoint | None
    findings: list[FindingRow]


def choose(store: CheckpointStore, log: Path, identity: Identity) -> Start:
    """Looks from the newest checkpoint back; newer ones that cannot be used are set aside and reported.

    SimicError when a checkpoint belongs to other params or data, or when none of several can be used: starting over is
    for the user to decide.
    """
    iterations, damaged = store.iterations(), {}
    if not iterations:
        return Start(None, [])
    telemetry = Chain.of(log)
    for iteration in reversed(iterations):
        try:
            checkpoint = store.read(iteration)
            _refuse_lost_rows(checkpoint, telemetry)
        except Damaged as damage:
            damaged[iteration] = str(damage)
            continue
        findings = compare(checkpoint.manifest, identity)
        return Start(checkpoint, [*_set_aside(store, damaged), *findings])
    raise SimicError(
        f"{store.root}: none of the {len(iterations)} checkpoints is usable; the newest: "
        f"{damaged[iterations[-1]]}; start over with --fresh"
    )


def _set_aside(store: CheckpointStore, damaged: Mapping[int, str]) -> list[FindingRow]:
    """Takes them out of the way and says why."""
    findings = []
    for iteration, damage in damaged.items():
        aside = store.set_aside(iteration)
        message = f"{damage}; kept as {aside.name}, resuming from an earlier one"
        findings.append(_finding(iteration, "damaged_checkpoint", "medium", message))
    return findings


def _refuse_lost_rows(checkpoint: Checkpoint, telemetry: Chain) -> None:
    """An earlier checkpoint whose telemetry is all there makes the same rows again; this one cannot."""
    damage = telemetry.damage(extent(checkpoint.manifest))
    if damage is not None:
        raise Damaged(f"{damage}, but checkpoint {checkpoint.path.name} needs it")


def extent(manifest: Manifest) -> Extent:
    """How much of the telemetry belongs to a checkpoint."""
    return Extent(manifest.telemetry_files, manifest.telemetry_sha256)


def compare(manifest: Manifest, identity: Identity) -> list[FindingRow]:
    """Findings for harmless differences and for another machine; SimicError naming the fields that forbid a resume."""
    changed = differences(manifest.params, identity.params)
    if manifest.data_sha256 != identity.data_sha256:
        changed["prepared data"] = f"{manifest.data_sha256[:12]} → {identity.data_sha256[:12]}"
    refused = {name: text for name, text in changed.items() if name not in HARMLESS}
    if refused:
        raise SimicError(
            f"checkpoint after {manifest.iteration} iterations was trained with other settings: {_listed(refused)}; "
            "restore them, or start over with --fresh"
        )
    findings = []
    if changed:
        text = f"resumed with changed settings: {_listed(changed)}"
        findings.append(_finding(manifest.iteration, "resumed_with_changes", "info", text))
    machine = manifest.machine.differences(identity.machine)
    if machine:
        text = f"resumed on another machine, so the result is not bit for bit the same: {_listed(machine)}"
        findings.append(_finding(manifest.iteration, "inexact_resume", "medium", text, machine))
    return findings


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Leaves that differ, by dotted name, each as "old → new"."""
    found: dict[str, str] = {}
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found |= differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found[f"{prefix}{key}"] = f"{before} → {after}"
    return found


def _listed(changed: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({text})" for name, text in changed.items())


def _finding(
    iteration: int, check: str, severity: Severity, message: str, evidence: Mapping[str, str] | None = None
) -> FindingRow:
    return FindingRow(
        iteration=iteration, check=check, severity=severity, message=message, evidence=dict(evidence or {})
    )
