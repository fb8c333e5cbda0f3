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
    changed_files: tuple[str, ...] = ()  # of the code, beside the revisions that trained
    code_changes: int = 0  # resumes with other code than before
    resumes: int | None = None
    findings: tuple[FindingRow, ...] = ()  # of all starts
    lengths: tuple[
        tuple[int, int], ...
    ] = ()  # of every start: its iteration, and how many there were to be

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the starts of a run, if it recorded any; SimicError where they are damaged."""
        if not path.exists():
            return cls()
        try:
            begun = starts.read(path)
        except SimicError as error:
            raise SimicError(f"{error}; {RESTORED}") from None
        # The newest start says what the run is; all of them say what changed on the way.
        last = begun[-1]
        return cls(
            name=last.name,
            started=datetime.fromtimestamp(begun[0].unix_seconds, UTC),
            command=last.command,
            code_revision=last.code.removesuffix("-dirty") or None,
            changed_files=tuple(sorted({file for start in begun for file in start.changed_files})),
            code_changes=sum(first.code != second.code for first, second in pairwise(begun)),
            resumes=len(begun) - 1,
            findings=tuple(finding for start in begun for finding in start.findings),
            lengths=tuple((start.start_iteration, start.iterations) for start in begun),
        )


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
    code_changed_since: tuple[str, ...] = ()  # code that is not what a stage sealed


def trace(tree: params.Params, root: Path) -> tuple[Provenance, dict[str, Checkpoint]]:
    """Collect the provenance of a workspace and its undamaged checkpoints: every seal is hashed again, and checkpoints
    are compared with their manifests and the present params.
    """
    # Everything is hashed again: what a seal says is believed only where the files still say it.
    problems, sealed = seals.broken(root, tree)
    # Other code is no damage of the record: the first line of the report says so.
    changed = [problem for problem in problems if ": code " in problem]
    broken = [problem for problem in problems if problem not in changed]
    # Checkpoints: whole, and of these params.
    checkpoints: dict[str, Checkpoint] = {}
    # As the trainer computes it (training.resume.RunIdentity).
    trained = params.digest(
        {"rng_seed": tree.rng_seed, "train": tree.train.model_dump(mode="json")}
    )
    for name in PUBLISHED:
        try:
            checkpoints[name] = checkpoint.read_published(root / "checkpoints", name)
        except Damaged as error:
            broken.append(str(error))
            continue
        if checkpoints[name].manifest.params_sha256 != trained:
            broken.append(
                f"checkpoints/{name}: was trained with params that differ from params.yaml"
            )
    # What the latest checkpoint and the seals that hold say of the run.
    manifest = next(reversed(checkpoints.values())).manifest if checkpoints else None
    machine = manifest.machine if manifest else None
    kept_seals = {stage: seal for stage in sealed if (seal := seals.read(root, stage)) is not None}
    provenance = Provenance(
        params_sha256=manifest.params_sha256 if manifest else None,
        data_sha256=manifest.data_sha256 if manifest else None,
        checkpoint_sha256={
            name: published.manifest.sha256[checkpoint.STATE_FILE]
            for name, published in checkpoints.items()
        },
        state_chain=str(manifest.scalars["chain"]) if manifest else None,
        origin=Origin.read(root / "telemetry" / starts.RUN_FILE),
        versions={"python": machine.python, **machine.libraries} if machine else {},
        # Of the machine at the end of training; earlier ones are named by the findings of resumes.
        hardware={
            "device": machine.device,
            "cpu": machine.cpu_capability,
            "threads": str(machine.threads),
        }
        if machine
        else {},
        damaged=tuple(broken),
        sealed=tuple(sealed),
        code_sha256={stage: params.digest(seal.code) for stage, seal in kept_seals.items()},
        params={key: value for seal in kept_seals.values() for key, value in seal.params.items()},
        code_changed_since=tuple(
            dict.fromkeys(
                text.partition(": code ")[2].removesuffix(" has changed since") for text in changed
            )
        ),
    )
    return provenance, checkpoints
