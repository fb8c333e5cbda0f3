"""From a source to three disjoint, stratified, standardised splits on disk, whole or not at all."""

from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from simic import durable
from simic.data.batches import META_FILE, SCHEMA_VERSION, TEST_FILE, TRAINVAL_FILE, Meta
from simic.data.sources import Source, read_digits, read_npz
from simic.errors import SimicError
from simic.params import Prepare, Split
from simic.rng import Purpose, key, permutation

SPLITS = ("train", "val", "test")


def prepare(params: Prepare, rng_seed: int, out_dir: Path, data_dir: Path) -> None:
    """Writes ``out_dir`` anew: trainval.safetensors, test.safetensors, meta.json.

    ``data_dir`` is where the paths of user data start. SimicError naming the file for missing, damaged or unusable
    input; ``out_dir`` is as before then.
    """
    source = read_digits() if params.task == "digits" else read_npz(data_dir, params.source)
    source, dropped = drop_duplicates(source)
    indices = stratified_split(source.y, params.split, rng_seed, source.name)
    mean, std = statistics(source.x[indices["train"]])
    arrays = {}
    for split, chosen in indices.items():
        arrays[f"x_{split}"] = as_images((source.x[chosen] - mean) / std)
        arrays[f"y_{split}"] = source.y[chosen].clone()
    with durable.new_directory(out_dir) as folder:
        test = {name: arrays.pop(name) for name in ("x_test", "y_test")}
        durable.write_synced(folder / TRAINVAL_FILE, save(arrays))
        durable.write_synced(folder / TEST_FILE, save(test))
        meta = Meta(
            schema_version=SCHEMA_VERSION,
            task=params.task,
            source=source.name,
            source_sha256=source.sha256,
            licence=source.licence,
            classes=int(source.y.max()) + 1,
            shape=tuple(arrays["x_train"].shape[1:]),
            samples={split: len(chosen) for split, chosen in indices.items()},
            duplicates_dropped=dropped,
            split_fractions=params.split.model_dump(),
            split_rng_seed=rng_seed,
            mean=mean.flatten().tolist(),
            std=std.flatten().tolist(),
            sha256={name: durable.sha256(folder / name) for name in (TRAINVAL_FILE, TEST_FILE)},
        )
        durable.write_synced(folder / META_FILE, (meta.model_dump_json(indent=2) + "\n").encode())


def drop_duplicates(source: Source) -> tuple[Source, int]:
    """The source without exact copies of a sample (the first stays), and how many there were.

    A copy in another split would make the splits overlap.
    """
    rows = source.x.flatten(1)
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(rows)).scatter_reduce(0, group, torch.arange(len(rows)), "amin")
    kept = first.sort().values
    return Source(source.name, source.sha256, source.licence, source.x[kept], source.y[kept]), len(rows) - len(kept)


def stratified_split(y: Tensor, fractions: Split, rng_seed: int, name: str) -> dict[str, Tensor]:
    """Sorted sample indices per split: each class is shuffled by its own stream and cut at the rounded fractions."""
    parts: dict[str, list[Tensor]] = {split: [] for split in SPLITS}
    for label in range(int(y.max()) + 1):
        members = torch.nonzero(y == label).flatten()
        order = members[permutation(key(rng_seed, Purpose.SPLIT, label), len(members))]
        val, test = round(len(members) * fractions.val), round(len(members) * fractions.test)
        sizes = {"train": len(members) - val - test, "val": val, "test": test}
        if min(sizes.values()) < 1:
            raise SimicError(f"{name}: class {label} has {len(members)} samples: a split of {sizes} leaves one empty")
        for split, chosen in zip(SPLITS, order.split(list(sizes.values())), strict=True):
            parts[split].append(chosen)
    return {split: torch.cat(chosen).sort().values for split, chosen in parts.items()}


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the training samples, per channel of images, per feature of vectors; a constant
    one keeps scale 1. Shapes broadcast against ``x``.
    """
    dims = (0, 2, 3) if x.ndim == 4 else (0,)
    wide = x.to(torch.float64)
    mean, std = wide.mean(dims, keepdim=True), wide.std(dims, correction=0, keepdim=True)
    return mean.float(), torch.where(std > 0, std, 1.0).float()


def as_images(x: Tensor) -> Tensor:
    """``[N, C, H, W]``, contiguous: vectors ``[N, D]`` become one row of pixels ``[N, 1, 1, D]``."""
    return (x if x.ndim == 4 else x[:, None, None, :]).contiguous()
