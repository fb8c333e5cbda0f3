"""Checkpoints inside an iteration: what a rollout has come to, so that a kill costs steps and not the iteration.

``partial/<steps done, six digits>/`` lies beside the checkpoints and is written and verified as they are. It belongs
to the checkpoint of the last whole iteration and holds what a rollout moves: hosts, episode, what was seen and done.
Policy and scales stand still in a rollout, so they are in that checkpoint. One is kept, until the iteration is saved.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from simic import durable
from simic.errors import SimicError
from simic.telemetry.rows import FindingRow
from simic.training.checkpoint import MANIFEST_FILE, STATE_FILE, Checkpoint, Damaged, read_bytes

FOLDER = "partial"
FORMAT_VERSION = 2
ASIDE = "damaged-"


class PartialManifest(BaseModel):
    """All of a partial checkpoint that is not a tensor."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format_version: int = FORMAT_VERSION
    iteration: int  # iterations done before it
    step: int  # steps done of the rollout
    checkpoint_sha256: str  # of the tensors of the checkpoint that it belongs to
    columns: list[str]  # of the telemetry of a step, in their order
    findings: list[FindingRow]  # of this iteration so far
    sha256: str = ""  # of its tensors

    def to_json(self) -> bytes:
        """With a checksum of itself."""
        return durable.with_checksum(self.model_dump(mode="json"))


@dataclass(frozen=True)
class PartialCheckpoint:
    """A verified one: CPU tensors by name, and the rest."""

    path: Path
    manifest: PartialManifest
    tensors: dict[str, Tensor]


class PartialStore:
    """The partial checkpoints of one run."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, step: int) -> Path:
        """Where the one after so many steps is."""
        return self.root / f"{step:06d}"

    def steps(self) -> list[int]:
        """Those on disk, verified or not, ascending."""
        if not self.root.is_dir():
            return []
        return sorted(int(path.name) for path in self.root.iterdir() if path.name.isdecimal())

    def write(self, tensors: Mapping[str, Tensor], manifest: PartialManifest) -> None:
        """In place of the one before; SimicError where it cannot be written, which leaves that one as it was.

        Numbers that are not finite are written as they are: NaN stands for what was not measured, and a host may be
        broken until it is put back.
        """
        content = save(dict(tensors))
        manifest = manifest.model_copy(update={"sha256": durable.sha256_of(content)})
        path = self.path(manifest.step)
        try:
            with durable.new_directory(path) as folder:
                durable.write_synced(folder / STATE_FILE, content)
                durable.write_synced(folder / MANIFEST_FILE, manifest.to_json())
        except OSError as error:
            kept = [step for step in self.steps() if step != manifest.step][-1:]
            steps = "".join(f" and {step} steps of the next one" for step in kept)
            raise SimicError(
                f"{path}: cannot write checkpoint: {error.strerror}; {manifest.iteration} iterations{steps} are kept; "
                "fix that and run the same command again"
            ) from None
        self._clear(keep=manifest.step)

    def clear(self) -> None:
        """Keeps none: the iteration is saved as a whole. What was set aside stays."""
        self._clear(keep=None)

    def _clear(self, keep: int | None) -> None:
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if path.name.startswith("."):  # what a killed process left
                shutil.rmtree(path)
            elif path.name.isdecimal() and (keep is None or path != self.path(keep)):
                durable.remove_directory(path)

    def choose(self, checkpoint: Checkpoint | None) -> tuple[PartialManifest | None, list[FindingRow]]:
        """The one to go on with after ``checkpoint``, None where there is none; and findings about those that cannot be
        used, which are set aside. One of an iteration that is saved by now is of no use to anyone, and goes.
        """
        done, findings = 0 if checkpoint is None else checkpoint.manifest.iteration, list[FindingRow]()
        for step in reversed(self.steps()):
            try:
                found = self.read(step).manifest
                if checkpoint is None or found.iteration >= done:
                    _refuse_other(self.path(step), found, checkpoint)
                    return found, findings
                durable.remove_directory(self.path(step))
            except Damaged as damage:
                findings.append(self.set_aside(step, done, damage))
        return None, findings

    def set_aside(self, step: int, done: int, damage: Damaged) -> FindingRow:
        """Renames one that cannot be used, so that it is kept for inspection and never tried again; says why."""
        aside = self.root / f"{ASIDE}{step:06d}"
        durable.remove_directory(aside)
        self.path(step).rename(aside)
        text = f"{damage}; kept as {FOLDER}/{aside.name}, iteration {done + 1} starts again"
        return FindingRow(iteration=done, check="damaged_checkpoint", severity="medium", message=text)

    def read(self, step: int) -> PartialCheckpoint:
        """The verified one after so many steps; ``Damaged`` naming the file and what is wrong with it."""
        path = self.path(step)
        manifest = _manifest(path / MANIFEST_FILE)
        content = read_bytes(path / STATE_FILE)
        if durable.sha256_of(content) != manifest.sha256:
            raise Damaged(f"{path / STATE_FILE}: damaged: its sha256 is not the one in {MANIFEST_FILE}")
        if manifest.step != step:
            raise Damaged(f"{path}: holds the state after {manifest.step} steps, not after {step}")
        try:
            return PartialCheckpoint(path, manifest, load(content))
        except SafetensorError as error:
            raise Damaged(f"{path / STATE_FILE}: not a safetensors file: {error}") from None


def _manifest(file: Path) -> PartialManifest:
    try:
        content = durable.checked(read_bytes(file))
    except ValueError as error:
        raise Damaged(f"{file}: damaged: {error}") from None
    if content.get("format_version") != FORMAT_VERSION:
        raise Damaged(f"{file}: format version {content.get('format_version')}, this version reads {FORMAT_VERSION}")
    try:
        return PartialManifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        raise Damaged(f"{file}: damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _refuse_other(path: Path, manifest: PartialManifest, checkpoint: Checkpoint | None) -> None:
    """``Damaged`` unless it goes on from just that checkpoint."""
    if checkpoint is None or manifest.iteration != checkpoint.manifest.iteration:
        done = "none" if checkpoint is None else f"that after {checkpoint.manifest.iteration} iterations"
        raise Damaged(f"{path}: belongs to the checkpoint after {manifest.iteration} iterations, the newest is {done}")
    if manifest.checkpoint_sha256 != checkpoint.manifest.sha256[STATE_FILE]:
        raise Damaged(f"{path}: belongs to another checkpoint than {checkpoint.path}")
