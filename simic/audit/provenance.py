"""The origin of a run's artifacts, and whether they are still those that were recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from simic import params, seals
from simic.errors import SimicError
from simic.telemetry import starts
from simic.telemetry.rows import FindingRow
from simic.training import checkpoint
from simic.training.checkpoint import Checkpoint, Damaged

PUBLISHED = ("best", "latest")
RESTORED = "dvc checkout telemetry brings back what was recorded"


@dataclass(frozen=True)
class Origin:
    """Hold what differs between equal runs, so that checkpoints do not hold it; None = not recorded."""

    name: str | None = None  # of the run
    started: datetime | None = None  # the first time
    command: str | None = None  # that started or resumed it last
    code_revision: str | None = None  # that trained; of a resumed run the last one
    code_dirty: bool | None = None
    code_changes: int = 0  # resumes with other code than before
    resumes: int | None = None
    findings: tuple[FindingRow, ...] = ()  # of all starts

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the starts of a run, if it recorded any; SimicError where they are damaged."""
        if not path.exists():
            return cls()
        try:
            begun = starts.read(path)
        except SimicError as error:
            raise SimicError(f"{error}; {RESTORED}") from None
        first, last, codes = begun[0], begun[-1], [start.code for start in begun]
        when = datetime.fromtimestamp(first.unix_seconds, UTC)
        findings = tuple(finding for start in begun for finding in start.findings)
        changes = sum(first != second for first, second in pairwise(codes))
        dirty = any(each.endswith("-dirty") for each in codes)
        revision = last.code.removesuffix("-dirty") or None
        state = dirty if last.code else None
        return cls(last.name, when, last.command, revision, state, changes, len(codes) - 1, findings)


@dataclass(frozen=True)
class Provenance:
    """Hold hashes, versions and params of a run, None = not recorded; ``damaged`` names artifacts that were changed."""

    params_sha256: str | None
    data_sha256: str | None
    checkpoint_sha256: Mapping[str, str]
    state_chain: str | None
    origin: Origin
    versions: Mapping[str, str]
    hardware: Mapping[str, str]
    damaged: tuple[str, ...]
    sealed: tuple[str, ...]  # stages whose seals hold
    code_sha256: Mapping[str, str]  # by stage
    params: Mapping[str, Any]  # by the keys of params.yaml that the stages sealed

    @property
    def code_changed_since(self) -> tuple[str, ...]:
        """Name the code that is not what training or evaluation sealed."""
        changed = (problem.partition(": code ")[2] for problem in self.damaged if not problem.startswith("prepare"))
        return tuple(dict.fromkeys(text.removesuffix(" has changed since") for text in changed if text))


def trace(tree: params.Params, root: Path) -> tuple[Provenance, dict[str, Checkpoint]]:
    """Return the provenance of a workspace and its undamaged checkpoints: every seal is hashed again, and checkpoints
    are compared with their manifests and the present params.
    """
    broken, sealed = seals.broken(root, tree)
    checkpoints: dict[str, Checkpoint] = {}
    # As the trainer computes it (training.resume.Identity).
    trained = params.digest({"rng_seed": tree.rng_seed, "train": tree.train.model_dump(mode="json")})
    for name in PUBLISHED:
        try:
            checkpoints[name] = checkpoint.read_published(root / "checkpoints", name)
        except Damaged as error:
            broken.append(str(error))
            continue
        if checkpoints[name].manifest.params_sha256 != trained:
            broken.append(f"checkpoints/{name}: was trained with params that differ from params.yaml")
    manifest = next(reversed(checkpoints.values())).manifest if checkpoints else None
    versions, hardware = {}, {}
    if manifest is not None:
        machine = manifest.machine
        versions = {"python": machine.python, **machine.libraries}
        hardware = {"device": machine.device, "cpu": machine.cpu_capability, "threads": str(machine.threads)}
    kept_seals = {stage: seal for stage in sealed if (seal := seals.read(root, stage)) is not None}
    provenance = Provenance(
        params_sha256=manifest.params_sha256 if manifest else None,
        data_sha256=manifest.data_sha256 if manifest else None,
        checkpoint_sha256={name: kept.manifest.sha256[checkpoint.STATE_FILE] for name, kept in checkpoints.items()},
        state_chain=str(manifest.scalars["chain"]) if manifest else None,
        origin=Origin.read(root / "telemetry" / starts.RUN_FILE),
        versions=versions,
        hardware=hardware,
        damaged=tuple(broken),
        sealed=tuple(sealed),
        code_sha256={stage: params.digest(seal.code) for stage, seal in kept_seals.items()},
        params={key: value for seal in kept_seals.values() for key, value in seal.params.items()},
    )
    return provenance, checkpoints
