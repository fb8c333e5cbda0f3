"""Split and encode a user's data, and describe what a network must know to take data like these."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from simic.data.bank import LIMIT, SPLITS, Bank, bank_of_one
from simic.data.batches import TaskMeta
from simic.data.own.readers import Given
from simic.data.own.table_columns import codes, describe, is_number, labels
from simic.data.prepare import cut
from simic.data.raw_inputs import TO_CHANNELS_FIRST, InputEncoder, Layout, RawInputs
from simic.data.sources import checked, equal_rows
from simic.errors import SimicError

FEW_ROWS = 60  # of all splits together; with fewer the scores of networks hardly differ by more than chance
CHANNELS = (1, 3, 4)
MOST_CLASSES_SHOWN = 6


@dataclass(frozen=True)
class OwnData:
    """Standardised splits, how the exported network encodes raw samples into them, and notes on what was done.

    ``raw`` are the inputs of that network by split: float64 codes of a table, images as they came.
    """

    bank: Bank
    inputs: RawInputs
    notes: tuple[str, ...]
    raw: Mapping[str, np.ndarray]


def own_data(
    given: Given,
    shares: Mapping[str, float],
    rng_seed: int,
    layout: str | None = None,
    few: bool = False,
) -> OwnData:
    """Split and encode; SimicError naming what cannot be used.

    ``shares`` are those of validation and test, unless the data came in parts; without test, validation serves as both.
    ``layout`` says where channels are (nchw, nhwc), where that is ambiguous. ``few``: there may be few samples, in all
    and of a class.
    """
    y, classes = labels(given.y, str(given.y.name))
    x = given.x
    if isinstance(x, pd.DataFrame):
        x = x.rename(columns=str)
    elif x.ndim < 2:
        raise SimicError(f"{given.name}: x is {list(x.shape)}: must be rows [N, D] or images [N, H, W(, C)]")
    elif x.ndim == 2:
        x = pd.DataFrame(x).infer_objects().add_prefix("x")
    if isinstance(x, pd.DataFrame) and layout is not None:
        raise SimicError(f"--layout {layout}: is for images; {given.name} is a table")
    firsts = equal_rows(_places(x) if isinstance(x, pd.DataFrame) else x)
    parts, notes = _parts(given, torch.from_numpy(y), classes, firsts, shares, rng_seed, few)
    train = parts["train"].numpy()
    if absent := sorted({*range(len(classes))} - {*y[train].tolist()}):
        raise SimicError(
            f"{given.name}: no training sample is of class {classes[absent[0]]}: bring one, or leave it out"
        )
    if isinstance(x, pd.DataFrame):
        raw, inputs, said = _of_table(x, train, classes)
        counts = {"row": len(y), "column": len(x.columns), "feature": len(inputs.mean)}
        shown = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())
    else:
        inputs, said = _of_images(x, y, train, classes, given.name, layout)
        raw, shown = x, f"{len(y)} images of {' × '.join(map(str, inputs.shape))}"
    sizes = "split: " + ", ".join(f"{len(chosen)} {split}" for split, chosen in parts.items())
    if len(y) < FEW_ROWS:
        notes += [f"{len(y)} samples: a network can be grown, but so few cannot show whether it is any good"]
    notes = [f"{given.name}: {shown}", _describe_classes(y, classes, str(given.y.name)), sizes, *notes, *said]
    bank = _bank(given, inputs, raw, torch.from_numpy(y), parts)
    return OwnData(bank, inputs, tuple(notes), {split: raw[chosen.numpy()] for split, chosen in parts.items()})


def _bank(given: Given, inputs: RawInputs, raw: np.ndarray, y: Tensor, parts: Mapping[str, Tensor]) -> Bank:
    encoder, arrays = InputEncoder(inputs), dict[str, Tensor]()
    for split in SPLITS:
        places = parts.get(split, parts["val"])
        arrays[f"x_{split}"] = encoder(torch.as_tensor(raw[places.numpy()], dtype=inputs.dtype)).contiguous()
        arrays[f"y_{split}"] = y[places]
    name, count = given.name, len(inputs.classes)
    task = TaskMeta(name=name, kind="own", group="train", classes=count, parameters={}, mean=[], std=[])
    return bank_of_one(task, name, given.sha256, "the user's own", arrays)


def _parts(
    given: Given,
    y: Tensor,
    classes: tuple[str, ...],
    firsts: Tensor,
    shares: Mapping[str, float],
    rng_seed: int,
    few: bool,
) -> tuple[dict[str, Tensor], list[str]]:
    """Return sorted places by split, and notes: the parts that were given, with missing ones cut from training."""
    copies = int((firsts != torch.arange(len(y))).sum())
    notes = [f"samples that equal an earlier one: {copies}; each stays, in the split of the first"] if copies else []
    if given.part is None:
        return cut(y, dict(shares), rng_seed, given.name, classes, firsts, few), notes
    parts = {split: torch.from_numpy(np.flatnonzero(given.part == number)) for number, split in enumerate(SPLITS)}
    seen = torch.isin(firsts[parts["train"]], torch.cat([firsts[parts[split]] for split in ("val", "test")]))
    if seen.any():
        notes = [f"training samples that equal one of validation or test: {int(seen.sum())}; they are left out"]
    train = parts["train"] = parts["train"][~seen]
    if left := {split: share for split, share in shares.items() if not len(parts[split])}:
        first_of = torch.unique(firsts[train], return_inverse=True)[1]
        places = torch.full((len(train),), len(train)).scatter_reduce(0, first_of, torch.arange(len(train)), "amin")
        inner = cut(y[train], left, rng_seed, given.name, classes, places[first_of], few)
        parts |= {split: train[chosen] for split, chosen in inner.items()}
    return parts, notes


def _describe_classes(y: np.ndarray, classes: tuple[str, ...], target: str) -> str:
    counts = np.bincount(y, minlength=len(classes))
    shown = [f"{classes[k]} ({100 * counts[k] / len(y):.0f} %)" for k in counts.argsort(kind="stable")[::-1]]
    more = f" and {len(shown) - MOST_CLASSES_SHOWN} more" if len(shown) > MOST_CLASSES_SHOWN else ""
    return f"{target}: {len(classes)} classes, {', '.join(shown[:MOST_CLASSES_SHOWN])}{more}"


def _with_statistics(inputs: RawInputs, features: np.ndarray, axis: tuple[int, ...]) -> RawInputs:
    """Add mean and deviation of each feature; one that does not vary keeps scale 1."""
    mean, std = np.nanmean(features, axis=axis), np.nanstd(features, axis=axis)
    scale = np.where(std > 0, std, 1.0)
    return inputs.model_copy(update={"mean": tuple(mean.tolist()), "std": tuple(scale.tolist())})


# --- tables ----------------------------------------------------------------------------------------------------------


def _places(frame: pd.DataFrame) -> np.ndarray:
    """Return for each value its place among those of its column, so that rows of any types can be compared."""
    for name in frame.columns:
        is_number(frame[name], name)  # refuses what has no place
    return np.stack([pd.factorize(frame[name], use_na_sentinel=False)[0] for name in frame.columns], axis=1)


def _of_table(x: pd.DataFrame, train: np.ndarray, classes: tuple[str, ...]) -> tuple[np.ndarray, RawInputs, list[str]]:
    columns, said = describe(x, train)
    raw = codes(x, columns)
    inputs = RawInputs(
        layout="table", shape=(len(columns),), columns=columns, mean=(), std=(), clip=LIMIT, classes=classes
    )
    features = InputEncoder(inputs).features(torch.from_numpy(raw[train])).numpy()
    return raw, _with_statistics(inputs, features, (0,)), said


# --- images ----------------------------------------------------------------------------------------------------------


def _of_images(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, classes: tuple[str, ...], name: str, layout: str | None
) -> tuple[RawInputs, list[str]]:
    read_as = layout_of(x.shape, name, layout)
    placed = x[:, None] if read_as == "hw" else x.transpose(TO_CHANNELS_FIRST[read_as])
    checked(name, placed, y)
    inputs = RawInputs(layout=read_as, shape=x.shape[1:], mean=(), std=(), classes=classes)
    channels, height, width = placed.shape[1:]
    said = [f"read as {channels} channel(s) of {height} × {width} pixels, each standardised"]
    return _with_statistics(inputs, placed[train].astype(np.float64), (0, 2, 3)), said


def layout_of(shape: tuple[int, ...], name: str, asked: str | None = None) -> Layout:
    """Return where the channels of images ``[N, …]`` are: the axis of 1, 3 or 4; SimicError naming both readings where
    that is neither or both, unless it was ``asked``.
    """
    if len(shape) == 3 and asked is None:
        return "hw"
    if len(shape) != 4:
        raise SimicError(f"{name}: x is {list(shape)}: must be [N, H, W], or [N, H, W, C] or [N, C, H, W] for --layout")
    axes: dict[Layout, int] = {"nchw": 1, "nhwc": 3}
    likely: list[Layout] = [
        each for each in axes if (shape[axes[each]] in CHANNELS if asked is None else each == asked)
    ]
    if len(likely) != 1:
        first, second, third = shape[1:]
        raise SimicError(
            f"{name}: x is {list(shape)}: which axis are the channels? Say --layout nchw: {first} channels of {second} "
            f"× {third} pixels; --layout nhwc: {third} channels of {first} × {second} pixels"
        )
    return likely[0]
