"""Predict by a network that ``simic grow`` saved."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simic.data.own import predict
from simic.data.own.contract import Contract
from simic.data.raw_inputs import InputColumn
from simic.serving.drift import DriftWindow
from simic.serving.refusals import Refusal


class Prediction(NamedTuple):
    """What is known of a request: codes of its rows ``[N, C]``, the values of each text column, and answers ``[N]``."""

    model: "NetworkModel"
    time: datetime
    request: str
    coded: np.ndarray
    texts: list[list[Any]]
    counts: predict.Counts
    predicted: np.ndarray
    probability: np.ndarray
    probabilities: np.ndarray


class NetworkModel:
    """A network, what it learned from, and a window of what it is sent."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        # Networks of images have none.
        self.terms = Contract.read(folder / predict.CONTRACT)
        self.saved = predict.SavedModel(folder)
        self.classes = np.array(self.terms.classes)
        self.card = (folder / "README.md").read_text(encoding="utf-8")
        self.columns = [InputColumn(**column) for column in self.saved.inputs["columns"]]
        self.drift = DriftWindow(self.terms, [column.levels for column in self.columns])
        # Columns that are logged as text; numbers are logged as their codes.
        self.texts = [{"name": column.name} for column in self.columns if column.levels is not None]
        # The first call takes longest, and shows that the program runs here.
        self.saved.probabilities(np.full((1, len(self.columns)), np.nan))

    def predict(self, frame: pd.DataFrame, request: str) -> Prediction:
        """Predict for rows; Refusal where they do not fit the contract."""
        try:
            coded, counts = predict.check(frame, self.saved.inputs["columns"], self.saved.contract)
        except (ValueError, OverflowError) as error:
            raise Refusal(422, str(error)) from None
        probabilities = self.saved.probabilities(coded)
        self.drift.add(coded)
        return Prediction(
            self,
            datetime.now(UTC),
            request,
            coded,
            [values.tolist() for values in predict.named_columns(frame, self.texts)],
            counts,
            self.classes[probabilities.argmax(axis=1)],
            probabilities.max(axis=1),
            probabilities,
        )
