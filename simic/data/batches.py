"""Prepared splits on the device, and the order in which hosts see them.

The test split is a file of its own that only ``load_test`` opens; evaluation alone calls that.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from simic import durable
from simic.errors import SimicError
from simic.rng import Purpose, key, permutation

SCHEMA_VERSION = 2
META_FILE = "meta.json"
TRAINVAL_FILE = "trainval.safetensors"
TEST_FILE = "test.safetensors"


class Meta(BaseModel):
    """meta.json: where the data came from and how it was made; written by ``prepare``, read by everyone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int
    task: str
    source: str
    source_sha256: str
    licence: str
    classes: int
    shape: tuple[int, ...]
    samples: dict[str, int]
    duplicates_dropped: int
    split_fractions: dict[str, float]
    split_rng_seed: int
    mean: list[float]  # empty for text, as std
    std: list[float]
    sha256: dict[str, str]


@dataclass(frozen=True)
class Dataset:
    """One split: ``x [N, C, H, W]`` float32, standardised with the training split's statistics, and ``y [N]`` int64; or
    byte sequences ``x [N, L]`` int64 and the byte that follows each position, ``y [N, L]`` int64, with 256 classes.
    """

    x: Tensor
    y: Tensor
    classes: int

    def __len__(self) -> int:
        return self.y.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: (C, H, W), or (L,) for text."""
        return tuple(self.x.shape[1:])


def load_split(prepared_dir: Path, split: Literal["train", "val"], device: torch.device | str = "cpu") -> Dataset:
    """The training or validation split, checksum verified; SimicError for "test" and for damaged files."""
    if split not in ("train", "val"):
        raise SimicError(f"split {split!r}: must be 'train' or 'val'; the test split is opened by evaluation alone")
    return _load(prepared_dir, TRAINVAL_FILE, split, device)


def load_test(prepared_dir: Path, device: torch.device | str = "cpu") -> Dataset:
    """The test split, for evaluation alone: nothing that trains, selects or promotes may see it."""
    return _load(prepared_dir, TEST_FILE, "test", device)


def _load(prepared_dir: Path, name: str, split: str, device: torch.device | str) -> Dataset:
    meta = read_meta(prepared_dir)
    path = prepared_dir / name
    content = _read(path)
    if durable.sha256_of(content) != meta.sha256[name]:
        raise SimicError(f"{path}: damaged (its sha256 is not the one in {META_FILE}); run simic prepare again")
    try:
        arrays = load(content)
    except SafetensorError as error:
        raise SimicError(f"{path}: not a safetensors file: {error}") from None
    x, y = arrays[f"x_{split}"].to(device), arrays[f"y_{split}"].to(device)
    # Bytes are kept as bytes on disk: an eighth of the size.
    return Dataset(x if x.is_floating_point() else x.long(), y.long(), meta.classes)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; run simic prepare first") from None
    except OSError as error:
        raise SimicError(f"{path}: not readable: {error.strerror}") from None


def read_meta(prepared_dir: Path) -> Meta:
    """meta.json, validated; SimicError naming the file when it is missing, damaged or of another schema version."""
    path = prepared_dir / META_FILE
    try:
        meta = Meta.model_validate_json(_read(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "content"
        raise SimicError(f"{path}: damaged: {where}: {first['msg']}; run simic prepare again") from None
    if meta.schema_version != SCHEMA_VERSION:
        raise SimicError(
            f"{path}: schema version {meta.schema_version}, this version reads {SCHEMA_VERSION}: run simic prepare"
        )
    return meta


def data_hash(prepared_dir: Path) -> str:
    """Hex sha256 that stands for the prepared data: of meta.json, which holds the hash of every other file."""
    read_meta(prepared_dir)
    return durable.sha256(prepared_dir / META_FILE)


def epoch_order(
    rng_seed: int,
    iteration: int,
    env_ids: Tensor,
    step: int,
    samples: int,
    batch_size: int,
    limit: int | Literal["all"] = "all",
) -> Tensor:
    """Sample indices of one epoch of each host, ``[E, n_batches, B]`` int64: a fresh permutation per (iteration, env,
    step); the last partial batch is dropped; ``limit`` keeps that many batches.
    """
    available = samples // batch_size
    batches = available if limit == "all" else limit
    if not 1 <= batches <= available:
        raise SimicError(
            f"batches_per_epoch {limit} of batch_size {batch_size}: "
            f"the training split has {samples} samples, enough for {available} whole batches"
        )
    stream = key(rng_seed, Purpose.BATCH_ORDER, iteration, env_ids, step, device=env_ids.device)
    kept = permutation(stream, samples)[..., : batches * batch_size]
    return kept.reshape(-1, batches, batch_size)
