"""Split and encode a user's data, and describe what a network must know to take data like these."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor

from simic.data.bank import CLIP_DEVIATIONS, SPLITS, Bank, single_task_bank
from simic.data.batches import TaskMeta
from simic.data.own.contract import Contract, plain_rows, reference_sample
from simic.data.own.predict import array_frame
from simic.data.own.rates import rates
from simic.data.own.readers import UserData
from simic.data.own.table_columns import (
    TypedTable,
    codes,
    describe,
    is_number,
    is_rated,
    labels,
    listed,
    typed,
)
from simic.data.prepare import stratified_split
from simic.data.raw_inputs import (
    TO_CHANNELS_FIRST,
    InputColumn,
    InputEncoder,
    Layout,
    RawInputs,
)
from simic.data.sources import checked, equal_rows
from simic.errors import SimicError
from simic.memory import refuse_too_much

# Samples of all splits together; with fewer the scores of networks hardly differ by more than chance.
FEW_ROWS = 60
CHANNELS = (1, 3, 4)
# Of image files, by channels.
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Share of validation rows that a column alone tells the class of, where it is named; unless one class has as many.
TELLING = 0.99
MOST_TELLING_ROWS = 2000
# In float64, and standardised.
BYTES_A_FEATURE = 16
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
    # Of a table: what the training rows are like, and some of them.
    contract: Contract | None = None
    reference: pd.DataFrame | None = None


def own_data(
    data: UserData,
    shares: Mapping[str, float],
    rng_seed: int,
    layout: str | None = None,
    few: bool = False,
) -> OwnData:
    """Split and encode a user's data.

    Args:
        data: samples and labels as they came.
        shares: of validation and test, unless the data came in parts; without test, validation serves as both.
        rng_seed: seed of the split.
        layout: where channels of images are (nchw, nhwc), where that is ambiguous.
        few: there may be few samples, in all and of a class.

    Raises:
        SimicError: naming what cannot be used.
    """
    y, classes = labels(data.y, str(data.y.name))
    x = _samples(data, layout)
    firsts = equal_rows(_places(x.frame) if isinstance(x, TypedTable) else x)
    parts, notes = _parts(data, torch.from_numpy(y), classes, firsts, shares, rng_seed, few)
    train = parts["train"].numpy()
    if absent := sorted({*range(len(classes))} - {*y[train].tolist()}):
        raise SimicError(
            f"{data.name}: no training sample is of class {classes[absent[0]]}: bring one, or leave it out"
        )
    # Describe the training samples, so that a network outside encodes others like them.
    trained = None
    contract = None
    reference = None
    if isinstance(x, TypedTable):
        raw, inputs, trained, encoding = _encode_table(x, y, train, classes)
        encoding += _name_telling(
            raw, y, {split: rows.numpy() for split, rows in parts.items()}, inputs
        )
        contract, reference = _learned_from(
            frame=x.frame.iloc[train],
            coded=raw[train],
            inputs=inputs,
            y=y[train],
            data=data,
            rng_seed=rng_seed,
        )
    else:
        raw = x
        inputs, encoding = _encode_images(x, y, train, classes, data, layout)
    # Tell the user what was done.
    sizes = "split: " + ", ".join(f"{len(rows)} {split}" for split, rows in parts.items())
    if len(y) < FEW_ROWS:
        notes += [
            f"{len(y)} samples: a network can be grown, but so few cannot show whether it is any good"
        ]
    notes = [
        f"{data.name}: {encoding[0]}",
        _describe_classes(y, classes, str(data.y.name)),
        sizes,
        *notes,
        *data.notes,
        *encoding[1:],
    ]
    return OwnData(
        bank=_bank(
            data=data,
            inputs=inputs,
            raw=raw,
            trained=trained,
            y=torch.from_numpy(y),
            parts=parts,
        ),
        inputs=inputs,
        notes=tuple(notes),
        raw={split: raw[rows.numpy()] for split, rows in parts.items()},
        contract=contract,
        reference=reference,
    )


def _samples(data: UserData, layout: str | None) -> TypedTable | np.ndarray:
    """Take rows as a table and all else as images."""
    x = data.x
    if isinstance(x, pd.DataFrame):
        # Not rename: of names that are tuples it would change each part.
        x = x.set_axis([*map(str, x.columns)], axis=1)
    elif x.ndim < 2:
        raise SimicError(
            f"{data.name}: x is {list(x.shape)}: must be rows [N, D] or images [N, H, W(, C)]"
        )
    elif x.ndim == 2:
        x = array_frame(x)
    if isinstance(x, pd.DataFrame):
        if layout is not None:
            raise SimicError(f"--layout {layout}: is for images; {data.name} is a table")
        if not x.columns.is_unique:
            twice = x.columns[x.columns.duplicated()][0]
            raise SimicError(f"column {twice!r}: is there twice; rename one of them")
        return typed(x, data.words, data.semicolons)
    if data.words:
        raise SimicError(f"--words {data.words[0]}: is for tables; {data.name} is images")
    return x


def _bank(
    data: UserData,
    inputs: RawInputs,
    raw: np.ndarray,
    trained: Tensor | None,
    y: Tensor,
    parts: Mapping[str, Tensor],
) -> Bank:
    encoder = InputEncoder(inputs)
    arrays = dict[str, Tensor]()
    for split in SPLITS:
        rows = parts.get(split, parts["val"])
        samples = torch.as_tensor(raw[rows.numpy()], dtype=inputs.dtype)
        if trained is not None and split == "train":
            features = encoder.features(samples, trained)
            arrays["x_train"] = encoder.standardise(features)[:, None, None]
        else:
            arrays[f"x_{split}"] = encoder(samples).contiguous()
        arrays[f"y_{split}"] = y[rows]
    task = TaskMeta(
        name=data.name,
        kind="own",
        group="train",
        classes=len(inputs.classes),
        parameters={},
        mean=[],
        std=[],
    )
    return single_task_bank(task, data.name, data.sha256, "the user's own", arrays)


def _parts(
    data: UserData,
    y: Tensor,
    classes: tuple[str, ...],
    firsts: Tensor,
    shares: Mapping[str, float],
    rng_seed: int,
    few: bool,
) -> tuple[dict[str, Tensor], list[str]]:
    """Find sorted places by split, with notes: the parts that the data came in, missing ones split off training."""
    # Copies on both sides of a split would make memory look like skill.
    copies = int((firsts != torch.arange(len(y))).sum())
    notes = (
        [f"samples that equal an earlier one: {copies}; each stays, in the split of the first"]
        if copies
        else []
    )
    split_by_class = partial(
        stratified_split,
        rng_seed=rng_seed,
        name=data.name,
        classes=classes,
        few=few,
    )
    if data.part is None:
        return split_by_class(y, shares, firsts=firsts), notes
    parts = {
        split: torch.from_numpy(np.flatnonzero(data.part == number))
        for number, split in enumerate(SPLITS)
    }
    # What is scored on must not have been trained on.
    scored = torch.cat([firsts[parts[split]] for split in ("val", "test")])
    leaked = torch.isin(firsts[parts["train"]], scored)
    if leaked.any():
        notes = [
            f"training samples that equal one of validation or test: {int(leaked.sum())}; they are left out"
        ]
    train = parts["train"] = parts["train"][~leaked]
    if missing := {split: share for split, share in shares.items() if not len(parts[split])}:
        # Equal samples within training: for each the place of the first.
        unit = torch.unique(firsts[train], return_inverse=True)[1]
        first = torch.full((len(train),), len(train)).scatter_reduce(
            0, unit, torch.arange(len(train)), "amin"
        )
        inner = split_by_class(y[train], missing, firsts=first[unit])
        parts |= {split: train[rows] for split, rows in inner.items()}
    return parts, notes


def _describe_classes(y: np.ndarray, classes: tuple[str, ...], target: str) -> str:
    counts = np.bincount(y, minlength=len(classes))
    shares = [
        f"{classes[k]} ({100 * counts[k] / len(y):.0f} %)"
        for k in counts.argsort(kind="stable")[::-1]
    ]
    more = (
        f" and {len(shares) - MOST_CLASSES_SHOWN} more" if len(shares) > MOST_CLASSES_SHOWN else ""
    )
    return f"{target}: {len(classes)} classes, {', '.join(shares[:MOST_CLASSES_SHOWN])}{more}"


def _with_statistics(inputs: RawInputs, features: np.ndarray, axis: tuple[int, ...]) -> RawInputs:
    """Add mean and deviation of each feature; one that does not vary keeps scale 1."""
    mean = np.nanmean(features, axis=axis)
    std = np.nanstd(features, axis=axis)
    scale = np.where(std > 0, std, 1.0)
    return inputs.model_copy(update={"mean": tuple(mean.tolist()), "std": tuple(scale.tolist())})


# --- tables ----------------------------------------------------------------------------------------------------------


def _places(frame: pd.DataFrame) -> np.ndarray:
    """Number the different values of each column, so that rows of any types can be compared."""
    for name in frame.columns:
        # Refuses dates and nested values, which cannot be compared.
        is_number(frame[name], name)
    return np.stack(
        [pd.factorize(frame[name], use_na_sentinel=False)[0] for name in frame.columns],
        axis=1,
    )


def _encode_table(
    table: TypedTable,
    y: np.ndarray,
    train: np.ndarray,
    classes: tuple[str, ...],
) -> tuple[np.ndarray, RawInputs, Tensor | None, list[str]]:
    """Code a table; describe its columns as the training rows show them, in notes of which the first is its size.

    Of columns with very many levels each level becomes the rates of all classes but the first; those of the training
    rows, which have none from their own answers, are the third result.
    """
    columns, notes = describe(table, train, len(classes))
    raw = codes(table.frame, columns)
    rated = list[InputColumn]()
    trained = list[np.ndarray]()
    for place, column in enumerate(columns):
        if is_rated(column):
            of_rows, by_level = rates(raw[train, place], len(column.levels or ()), y[train])
            trained.append(of_rows[:, 1:])
            column = column.model_copy(
                update={"rates": tuple(map(tuple, by_level[:, 1:].tolist()))}
            )
        rated.append(column)
    columns = tuple(rated)
    inputs = RawInputs(
        layout="table",
        shape=(len(columns),),
        columns=columns,
        mean=(),
        std=(),
        clip=CLIP_DEVIATIONS,
        classes=classes,
    )
    # A feature for each level may be many.
    width = sum(len(column.codes) + len((column.rates or [()])[0]) for column in columns)
    size = len(raw) * width * BYTES_A_FEATURE
    refuse_too_much(f"{len(raw)} rows of {width} features", size, "the number of rows or of levels")
    # Mean and deviation are those of training alone: nothing of the other splits reaches the network.
    own_rates = torch.from_numpy(np.hstack(trained)) if trained else None
    features = InputEncoder(inputs).features(torch.from_numpy(raw[train]), own_rates).numpy()
    counts = {"row": len(raw), "column": len(table.frame.columns), "feature": features.shape[1]}
    size = ", ".join(f"{count} {unit}{'s' * (count != 1)}" for unit, count in counts.items())
    scaled = _with_statistics(inputs, features, (0,))
    return raw, scaled, own_rates, [size, *table.notes, *notes]


def _learned_from(
    frame: pd.DataFrame,
    coded: np.ndarray,
    inputs: RawInputs,
    y: np.ndarray,
    data: UserData,
    rng_seed: int,
) -> tuple[Contract, pd.DataFrame]:
    """Describe the training rows, and draw some of them with their answers."""
    label = str(data.y.name)
    # A frame of a program may have a column of the name that its labels have.
    while label in frame.columns:
        label += "_"
    names = np.array(inputs.classes)[y]
    contract = Contract.of_table(
        frame=frame,
        coded=coded,
        inputs=inputs,
        y=pd.Series(names, name=label),
        data_sha256=data.sha256,
    )
    rows = plain_rows(frame, coded, inputs.columns)
    rows[label] = names
    return contract, reference_sample(rows, rng_seed)


def _name_telling(
    raw: np.ndarray,
    y: np.ndarray,
    parts: Mapping[str, np.ndarray],
    inputs: RawInputs,
) -> list[str]:
    """Name columns of which each alone tells the class: often the answer itself, or what is known only after it."""
    train = parts["train"][:MOST_TELLING_ROWS]
    val = parts["val"][:MOST_TELLING_ROWS]
    telling = list[str]()
    for place, column in enumerate(inputs.columns):
        # As many leaves as a rule of one column needs.
        leaves = 2 * len(inputs.classes) + len(column.levels or ())
        tree = DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=0)
        # By rank: a tree keeps float32, which has too few digits and too small a range.
        _, ranks = np.unique(raw[:, place], return_inverse=True)
        tree.fit(ranks[train][:, None], y[train])
        if tree.score(ranks[val][:, None], y[val]) >= TELLING:
            telling.append(column.name)
    if not telling or np.bincount(y[val]).max() >= TELLING * len(val):
        return []
    return [
        f"alone tells the class: {listed(telling)}; is it known before the answer? If not, leave it out"
    ]


# --- images ----------------------------------------------------------------------------------------------------------


def _encode_images(
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    classes: tuple[str, ...],
    data: UserData,
    layout: str | None,
) -> tuple[RawInputs, list[str]]:
    """Find where the channels of images are; describe these as the training images show them, likewise."""
    order = layout_of(x.shape, data.name, layout)
    images = x[:, None] if order == "hw" else x.transpose(TO_CHANNELS_FIRST[order])
    checked(data.name, images, y)
    channels, height, width = images.shape[1:]
    # Image files have bytes, as these arrays may have.
    mode = data.mode or (MODES.get(channels, "") if x.dtype == np.uint8 else "")
    inputs = RawInputs(layout=order, shape=x.shape[1:], mean=(), std=(), classes=classes, mode=mode)
    notes = [
        f"{len(y)} images of {' × '.join(map(str, inputs.shape))}",
        f"read as {channels} channel(s) of {height} × {width} pixels, each standardised",
    ]
    return _with_statistics(inputs, images[train].astype(np.float64), (0, 2, 3)), notes


def layout_of(shape: tuple[int, ...], name: str, layout: str | None = None) -> Layout:
    """Find where the channels of images are: the axis of 1, 3 or 4 values.

    Args:
        shape: of all images, ``[N, …]``.
        name: of the data, for messages.
        layout: what the user says.

    Raises:
        SimicError: naming both readings, where neither or both axes could be it.
    """
    if len(shape) == 3 and layout is None:
        return "hw"
    if len(shape) != 4:
        raise SimicError(
            f"{name}: x is {list(shape)}: must be [N, H, W], or [N, H, W, C] or [N, C, H, W] for --layout"
        )
    axes: dict[Layout, int] = {"nchw": 1, "nhwc": 3}
    likely: list[Layout] = [
        order
        for order, axis in axes.items()
        if (shape[axis] in CHANNELS if layout is None else order == layout)
    ]
    if len(likely) != 1:
        first, second, third = shape[1:]
        raise SimicError(
            f"{name}: x is {list(shape)}: which axis are the channels? Say --layout nchw: {first} channels of {second} "
            f"× {third} pixels; --layout nhwc: {third} channels of {first} × {second} pixels"
        )
    return likely[0]
