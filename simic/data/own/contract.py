"""Describe the rows that a network learned from: what it is sent later is checked against them and compared with them.

``grow`` writes it beside the network as ``contract.json``, with a sample of the rows in ``reference.parquet``.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from simic import rng, safe_read
from simic.data.own import predict
from simic.data.raw_inputs import InputColumn, RawInputs
from simic.errors import SimicError

REFERENCE = "reference.parquet"
MOST_REFERENCE_ROWS = 2000
DECILES = np.linspace(0, 1, 11)


class Terms(BaseModel):
    """What is read back is checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ContractColumn(Terms):
    """A column as the training rows have it; all shares are of all rows, so that they add up to 1 with the missing."""

    name: str
    type: Literal["number", "category"]
    # Of a category all levels that were seen, also those too rare to have a feature.
    levels: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    missing_share: float
    # Of numbers: the deciles from lowest to highest, and the share of rows in the bins between them.
    quantiles: tuple[float, ...] = ()
    decile_shares: tuple[float, ...] = ()
    shares: dict[str, float] = {}


class Contract(Terms):
    """``contract.json``."""

    version: Literal[1] = 1
    columns: tuple[ContractColumn, ...]
    # Columns of the table that nothing was learned from; they may be sent, and are not looked at.
    ignored: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    class_shares: dict[str, float]
    rows: int
    data_sha256: str

    @classmethod
    def of_table(
        cls,
        frame: pd.DataFrame,
        coded: np.ndarray,
        inputs: RawInputs,
        y: pd.Series,
        data_sha256: str,
    ) -> Self:
        """Describe training rows.

        Args:
            frame: The rows, typed.
            coded: Their codes ``[N, C]``.
            inputs: The columns that are learned from, and the classes.
            y: Names of their classes, named as the column with them.
            data_sha256: Of the file.
        """
        names = {column.name for column in inputs.columns}
        shares = _shares(y)
        return cls(
            columns=tuple(
                _described(column, frame[column.name], coded[:, place])
                for place, column in enumerate(inputs.columns)
            ),
            ignored=tuple(str(name) for name in frame.columns if str(name) not in names),
            label=str(y.name),
            classes=inputs.classes,
            class_shares={name: shares[name] for name in inputs.classes},
            rows=len(frame),
            data_sha256=data_sha256,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ``contract.json``; SimicError where it is missing or none."""
        remedy = "grow the network again on its table"
        content = safe_read.read_file(path, predict.MOST_CONTRACT_BYTES, remedy)
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"]))
            raise SimicError(f"{path}: {place}: {problem['msg']}; {remedy}") from None

    def to_json(self) -> str:
        """Write the text of ``contract.json``."""
        return self.model_dump_json(indent=1) + "\n"


def _described(column: InputColumn, values: Any, codes: np.ndarray) -> ContractColumn:
    missing = float(np.isnan(codes).mean())
    if column.levels is not None:
        shares = _shares(predict.as_text(values))
        return ContractColumn(
            name=column.name,
            type="category",
            levels=tuple(shares),
            missing_share=missing,
            shares=shares,
        )
    numbers = codes[~np.isnan(codes)]
    quantiles = np.quantile(numbers, DECILES)
    counts = np.bincount(decile_bins(numbers, quantiles), minlength=10)
    return ContractColumn(
        name=column.name,
        type="number",
        low=float(quantiles[0]),
        high=float(quantiles[-1]),
        missing_share=missing,
        quantiles=tuple(quantiles.tolist()),
        decile_shares=tuple((counts / len(codes)).tolist()),
    )


def decile_bins(values: np.ndarray, quantiles: Sequence[float] | np.ndarray) -> np.ndarray:
    """Number the bin, from 0 to 9, of each value between deciles; a value that equals one is below it."""
    return np.searchsorted(quantiles[1:-1], values)


def _shares(values: Any) -> dict[str, float]:
    """Compute the share of each text among all values, also missing ones, sorted by name."""
    shares = values.value_counts().sort_index() / len(values)
    return {str(name): float(share) for name, share in shares.items()}


def plain_rows(
    frame: pd.DataFrame, coded: np.ndarray, columns: Sequence[InputColumn]
) -> pd.DataFrame:
    """Make a table of rows as they came, of which every column has one type: numbers are float64, all else text.

    Args:
        frame: The rows.
        coded: Their codes ``[N, C]``.
        columns: That are wanted.
    """
    series: dict[str, Any] = {}
    for place, column in enumerate(columns):
        if column.levels is None:
            series[column.name] = coded[:, place]
        else:
            text = frame[column.name].reset_index(drop=True)
            series[column.name] = predict.as_text(text)
    return pd.DataFrame(series)


def reference_sample(rows: pd.DataFrame, rng_seed: int) -> pd.DataFrame:
    """Draw at most ``MOST_REFERENCE_ROWS`` rows, in their order."""
    stream = rng.key(rng_seed, rng.Purpose.REFERENCE)
    drawn = rng.permutation(stream, len(rows))
    places = drawn[:MOST_REFERENCE_ROWS].sort().values
    return rows.iloc[places.numpy()]


def as_parquet(rows: pd.DataFrame) -> bytes:
    """Write a table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    rows.to_parquet(buffer, index=False)
    return buffer.getvalue()
