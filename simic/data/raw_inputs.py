"""Encode a user's rows or images as they are into the standardised samples that networks train on.

``RawInputs`` describes the training samples, ``InputEncoder`` is the module that encodes by it: inside an exported
network, and when data are prepared, so that both see the same numbers.
"""

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

Layout = Literal["table", "hw", "nchw", "nhwc"]
TO_CHANNELS_FIRST = {"nhwc": (0, 3, 1, 2), "nchw": (0, 1, 2, 3)}


class InputColumn(BaseModel):
    """A column of a table: numbers, or with ``levels`` strings, which are given as their places among these."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    levels: tuple[str, ...] | None = None
    # Rare levels share a feature, as the place after the last.
    other: bool = False
    # A feature says where a value is missing.
    missing: bool = False
    # Of numbers that a file has as text: what stands before decimals, and their unit or currency.
    mark: Literal[".", ","] = "."
    unit: str = ""
    # Of very many levels: features of each, of any other one and of a missing one, in place of one for each.
    rates: tuple[tuple[float, ...], ...] = ()

    @property
    def codes(self) -> list[float | None]:
        """List the features of the column: None is the number itself, all others are 1 for their code: a place among
        the levels, or NaN where a value is missing. Those that ``rates`` has come after the features of all columns.
        """
        if self.rates:
            return []
        missing = [torch.nan] * self.missing
        if self.levels is None:
            return [None, *missing]
        return [*map(float, range(len(self.levels) + self.other)), *missing]


class RawInputs(BaseModel):
    """Raw samples, with mean and deviation of each feature (of images: of each channel) in training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: Layout
    # Shape of one raw sample.
    shape: tuple[int, ...]
    columns: tuple[InputColumn, ...] = ()
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # Standard deviations at which features are cut off.
    clip: float | None = None
    classes: tuple[str, ...]
    # Pillow's name for the pixels of image files that are read alike; empty: there are none.
    mode: str = ""

    @property
    def dtype(self) -> torch.dtype:
        """Tell the dtype of raw samples: a table's numbers may lie far from 0, where float32 has no decimals left."""
        return torch.float64 if self.layout == "table" else torch.float32


class InputEncoder(nn.Module):
    """Encode raw samples ``[B, …]`` as standardised ones: ``[B, 1, 1, D]`` of a table, ``[B, C, H, W]`` of images."""

    def __init__(self, inputs: RawInputs) -> None:
        super().__init__()
        self.layout = inputs.layout
        self.clip = inputs.clip
        shape = (1, len(inputs.mean)) if inputs.layout == "table" else (1, len(inputs.mean), 1, 1)
        constants = {
            "mean": torch.tensor(inputs.mean, dtype=torch.float64).view(shape),
            "std": torch.tensor(inputs.std, dtype=torch.float64).view(shape),
        }
        if inputs.layout == "table":
            # Of each feature: its column, whether it is the number itself, else the code that it is 1 for.
            codes = [column.codes for column in inputs.columns]
            features = [code for column_codes in codes for code in column_codes]
            sources = [place for place, column_codes in enumerate(codes) for _ in column_codes]
            constants["source"] = torch.tensor(sources, dtype=torch.int64)
            constants["numbers"] = torch.tensor(
                [code is None for code in features], dtype=torch.bool
            )
            constants["codes"] = torch.tensor([code or 0.0 for code in features]).double()
        # By the place of the column.
        self.rated = tuple(place for place, column in enumerate(inputs.columns) if column.rates)
        for place in self.rated:
            constants[f"rates{place}"] = torch.tensor(
                inputs.columns[place].rates, dtype=torch.float64
            )
        for name, value in constants.items():
            # Constants stay out of state dictionaries, since structure.json has them.
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.layout == "table":
            return self.standardise(self.features(x))[:, None, None]
        return self.standardise(
            x[:, None] if self.layout == "hw" else x.permute(TO_CHANNELS_FIRST[self.layout])
        )

    def features(self, x: Tensor, rates: Tensor | None = None) -> Tensor:
        """Turn rows ``[B, columns]`` into float64 features ``[B, D]``; a number that is missing stays NaN.

        Training rows have ``rates`` of their own, in place of those that the columns list.
        """
        # Of each feature the value of its column, and whether it is the feature's code.
        values = x.double()[:, self.get_buffer("source")]
        codes = self.get_buffer("codes")
        # Without a choice between booleans, which ONNX Runtime does not have.
        coded = ((values == codes) | (codes.isnan() & values.isnan())).double()
        features = torch.where(self.get_buffer("numbers"), values, coded)
        if not self.rated:
            return features
        if rates is None:
            rates = torch.cat(
                [look_up(x[:, place], self.get_buffer(f"rates{place}")) for place in self.rated], 1
            )
        return torch.cat((features, rates), 1)

    def standardise(self, features: Tensor) -> Tensor:
        """Standardise in float64, so that a large offset costs no digits; a missing number becomes the mean."""
        scaled = (features.double() - self.get_buffer("mean")) / self.get_buffer("std")
        # A missing number is neither large nor small.
        scaled = torch.where(scaled.isnan(), 0.0, scaled)
        return (scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)).float()


def look_up(codes: Tensor, table: Tensor) -> Tensor:
    """Find the values ``[B, K]`` of codes ``[B]`` in a table ``[codes + 2, K]``, of which the last row but one is for
    codes beyond, the last for missing ones.
    """
    place = torch.where(codes.isnan(), len(table) - 1, codes.clamp(0, len(table) - 2))
    return table[place.long()]
