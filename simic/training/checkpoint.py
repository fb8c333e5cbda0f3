"""Checkpoints: one directory each, whole or absent, verified before use, no pickle, no code executed on load.

``<iterations done, six digits>/`` holds state.safetensors (every tensor) and manifest.json (everything else, and the
sha256 of the tensors). The numbers say which is the latest; which is the best stands in every manifest. Published are
``best/``, ``latest/`` and chain.json: which iterations these are, and every link of the run's hash chain.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from simic import durable
from simic.errors import SimicError
from simic.training.machine import Machine

FORMAT_VERSION = 6
STATE_FILE = "state.safetensors"
MANIFEST_FILE = "manifest.json"
CHAIN_FILE = "chain.json"
RESTORED = "dvc checkout checkpoints brings back what was recorded, and simic train makes it again"

Scalar = str | bool | int | float | None


class Manifest(BaseModel):
    """Everything of a checkpoint that is not a tensor. Nothing in it differs between equal runs on one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format_version: int = FORMAT_VERSION
    sha256: dict[str, str] = {}  # of the other files
    iteration: int  # iterations done
    best_iteration: int | None  # the checkpoint with the best validation score so far
    telemetry_files: int  # of the log, that belong to this state
    telemetry_sha256: str  # of the last of them
    params: dict[str, Any]
    params_sha256: str
    data_sha256: str
    machine: Machine
    # what the policy sees and decides, enough to build it without the environment
    specs: dict[str, Any]
    scalars: dict[str, Scalar]

    def to_json(self) -> bytes:
        """Encode the file, with a checksum of itself."""
        return durable.with_checksum(self.model_dump(mode="json"))


@dataclass(frozen=True)
class Checkpoint:
    """A verified directory: CPU tensors by name, and the manifest."""

    path: Path
    manifest: Manifest
    tensors: dict[str, Tensor]


class Damaged(SimicError):
    """A checkpoint that fails verification: another one may do."""


class Edited(Damaged):
    """A checkpoint that is whole in itself and is none of this run."""


class OtherFormat(SimicError):
    """A checkpoint that another version of simic wrote."""


class ChainFile(NamedTuple):
    """The hash chain of a published run: iterations of ``best`` and ``latest``, and the links by iterations done."""

    iterations: dict[str, int]
    links: dict[int, str]


class CheckpointStore:
    """The checkpoints of one run by iterations done; the last ``keep_last`` and the best stay."""

    def __init__(self, root: Path, keep_last: int):
        self.root = root
        self.keep_last = keep_last

    def path(self, iteration: int) -> Path:
        return self.root / f"{iteration:06d}"

    def numbers(self) -> list[int]:
        """List those on disk, verified or not, ascending."""
        if not self.root.is_dir():
            return []
        return sorted(int(path.name) for path in self.root.iterdir() if path.name.isdecimal())

    def set_aside(self, iteration: int) -> Path:
        """Rename a checkpoint that cannot be used, so that it is kept for inspection and never tried again."""
        return durable.put_aside(self.path(iteration))

    def write(self, tensors: Mapping[str, Tensor], manifest: Manifest) -> Path:
        """Write a new checkpoint and drop old ones; SimicError for a non-finite state or a failed write, which leave
        all earlier checkpoints as they were.
        """
        # Before a folder is made: a state with a NaN must never be the newest, from which a run would go on.
        refuse_non_finite(tensors, manifest)
        path = self.path(manifest.iteration)
        earlier = self.numbers()
        kept_text = (
            f"the checkpoint after {earlier[-1]} iterations is kept"
            if earlier
            else "there is no earlier checkpoint"
        )
        write(path, tensors, manifest, kept_text)
        # Old ones go only now that the new one is on disk.
        for iteration in self.numbers()[: -self.keep_last]:
            if iteration != manifest.best_iteration:
                durable.remove_directory(self.path(iteration))
        return path

    def read(self, iteration: int) -> Checkpoint:
        """Read the checkpoint after so many iterations; ``Damaged`` when it is not whole, or another one."""
        return _of_iteration(read(self.path(iteration)), iteration)

    def publish(self, target: Path, best: int, latest: int, links: Mapping[int, str]) -> None:
        """Copy the two that matter to ``target/best`` and ``target/latest``, verified, as a whole.

        Args:
            target: The folder that is replaced.
            best: Iterations done at the best checkpoint.
            latest: Iterations done at the latest one.
            links: The hash chain of the run, by iterations done, as far as it is known.
        """
        # Every link, and not only those of the two: whoever has the log can hold each iteration against it.
        chain = {
            "best": best,
            "latest": latest,
            "links": {str(number): link for number, link in links.items()},
        }
        with durable.new_directory(target) as folder:
            durable.write_synced(folder / CHAIN_FILE, durable.with_checksum(chain))
            for name, iteration in (("best", best), ("latest", latest)):
                try:
                    source = self.read(iteration).path
                except Damaged as damage:
                    raise Damaged(
                        f"{damage}; run the same command again: it goes on from what is good"
                    ) from None
                (folder / name).mkdir()
                for file in (STATE_FILE, MANIFEST_FILE):
                    durable.write_synced(folder / name / file, (source / file).read_bytes())
                # Read back from the copy: what is published is what was verified.
                read_published(folder, name)


def cpu_copies(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Copy tensors to the CPU by name, ``part/…``."""
    return {
        f"{part}/{name}": tensor.detach().to("cpu", copy=True).contiguous()
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def refuse_non_finite(tensors: Mapping[str, Tensor], manifest: Manifest) -> None:
    """Raise SimicError naming the first tensor or number that is NaN or infinite: such a state is never written."""
    # One is named and all are counted: the number tells one bad layer from a run that has burst.
    bad = [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not tensor.isfinite().all()
    ]
    bad += [
        name
        for name, value in manifest.scalars.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
    if bad:
        raise SimicError(
            f"state after {manifest.iteration} iterations: {bad[0]} is not finite ({len(bad)} such); "
            "no checkpoint was written, earlier ones are kept"
        )


def write(path: Path, tensors: Mapping[str, Tensor], manifest: Manifest, kept_text: str) -> None:
    """Write a checkpoint whole or not at all.

    Args:
        path: Its directory.
        tensors: The state, by name.
        manifest: The rest; its hash of the tensors is filled in.
        kept_text: What stays where writing fails, for the message.
    """
    # The manifest is written last and holds the hash of the rest: with it, all of it is there.
    content = save(dict(tensors))
    manifest = manifest.model_copy(update={"sha256": {STATE_FILE: durable.sha256_of(content)}})
    try:
        with durable.new_directory(path) as folder:
            durable.write_synced(folder / STATE_FILE, content)
            durable.write_synced(folder / MANIFEST_FILE, manifest.to_json())
    except OSError as error:
        raise SimicError(
            f"{path}: cannot write checkpoint: {error.strerror}; {kept_text}; fix that and run the same command again"
        ) from None


def read(path: Path) -> Checkpoint:
    """Read and verify a checkpoint directory; ``Damaged`` naming the file and what is wrong with it."""
    manifest = read_manifest(path)
    # The hash comes before the parser: what is damaged is never parsed.
    content = _read_bytes(path / STATE_FILE)
    if durable.sha256_of(content) != manifest.sha256.get(STATE_FILE):
        raise Damaged(f"{path / STATE_FILE}: damaged: its sha256 is not the one in {MANIFEST_FILE}")
    try:
        return Checkpoint(path, manifest, load(content))
    except SafetensorError as error:
        raise Damaged(f"{path / STATE_FILE}: not a safetensors file: {error}") from None


def read_published(folder: Path, name: str) -> Checkpoint:
    """Read the checkpoint ``name`` of a published run and hold it against the hash chain; ``Damaged`` naming the file
    and what brings it back.
    """
    try:
        chain = read_chain(folder)
        checkpoint = _of_iteration(read(folder / name), chain.iterations[name])
        refuse_edited(checkpoint, chain.links)
    except Damaged as damage:
        raise type(damage)(f"{damage}; {RESTORED}") from None
    return checkpoint


def read_chain(folder: Path) -> ChainFile:
    """Read the hash chain of a published run; ``Damaged`` naming the file."""
    file = folder / CHAIN_FILE
    try:
        chain = durable.checked(_read_bytes(file))
        iterations = {name: int(chain[name]) for name in ("best", "latest")}
        return ChainFile(iterations, {int(number): link for number, link in chain["links"].items()})
    except (ValueError, KeyError) as error:
        raise Damaged(f"{file}: damaged: not the hash chain of a run: {error}") from None


def _of_iteration(checkpoint: Checkpoint, iteration: int) -> Checkpoint:
    number = checkpoint.manifest.iteration
    if number != iteration:
        raise Edited(
            f"{checkpoint.path}: holds the state after {number} iterations, not after {iteration}"
        )
    return checkpoint


def refuse_edited(checkpoint: Checkpoint, links: Mapping[int, str]) -> None:
    """Raise ``Edited`` where tensors and counters do not give the link of the hash chain that telemetry has of the
    iteration; ``links`` by iterations done. Without the link before it nothing can be said.
    """
    # Computed again from what is in the checkpoint: who edits tensors can mend their sha256, but not the log's links.
    iteration = checkpoint.manifest.iteration
    scalars = checkpoint.manifest.scalars
    before = links.get(iteration - 1) if iteration > 1 else ""
    if before is None or iteration == 0:
        return
    computed = link({**scalars, "chain": before}, checkpoint.tensors)
    if {computed, links.get(iteration, computed)} != {scalars["chain"]}:
        raise Edited(
            f"{checkpoint.path}: its tensors and counters are not those that the hash chain of this run has"
        )


def link(scalars: Mapping[str, Scalar], tensors: Mapping[str, Tensor]) -> str:
    """Hash the next link of the chain: of the counters, which hold the link before, and of every tensor."""
    # Name, type and shape as well: equal bytes under another name are another state.
    hasher = hashlib.sha256(json.dumps(scalars, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(tensor.numpy().tobytes())
    return hasher.hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest alone, verified; ``OtherFormat`` if another version of simic wrote it."""
    file = path / MANIFEST_FILE
    # Bytes, then version, then fields: damage must not be reported as another version.
    try:
        content = durable.checked(_read_bytes(file))
    except ValueError as error:
        raise Damaged(f"{file}: damaged: {error}") from None
    # The version comes first: what another one wrote may have other keys.
    version = content.get("format_version")
    if not isinstance(version, int):
        raise Damaged(f"{file}: damaged: not a manifest")
    if version != FORMAT_VERSION:
        raise OtherFormat(
            f"{file}: format version {version}, this version reads {FORMAT_VERSION}: use the version that wrote it, "
            "or run simic train --fresh"
        )
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        raise Damaged(
            f"{file}: damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path}: not readable: {error.strerror}") from None
