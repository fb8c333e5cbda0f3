"""Log requests in Parquet files, each written whole or not at all.

What is held in memory is lost by a kill: the rows of the last minute, at most twice ``MOST_ROWS``.
"""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from simic import durable
from simic.data.own.contract import as_parquet, plain_rows
from simic.serving.networks import Prediction

MOST_ROWS = 10_000
MOST_SECONDS = 60.0
MOST_FILES = 10_000
# Beside the columns of the contract.
OWN_COLUMNS = ("time", "request", "model", "predicted", "probability")

LOG = logging.getLogger(__name__)


class RequestLog:
    """A folder of files ``requests-<start>-<pid>.parquet``, of which the oldest are removed.

    Args:
        folder: Is made when the first file is written.
        on_loss: Is told how many rows could not be written.
    """

    def __init__(self, folder: Path, on_loss: Callable[[int], None]) -> None:
        self._folder = folder
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._held: list[Prediction] = []
        self._rows = 0
        self._begun = 0.0
        self._writer = ThreadPoolExecutor(1, "request-log")
        self._writing: Future[None] | None = None

    def add(self, prediction: Prediction) -> None:
        """Take in the rows of a request."""
        with self._lock:
            # Rows of one file have the same columns.
            if self._held and self._held[0].model is not prediction.model:
                self._flush()
            if not self._held:
                self._begun = time.monotonic()
            # Rows are what takes memory, whether they come one by one or in thousands.
            self._held.append(prediction)
            self._rows += len(prediction.coded)
            if self._rows >= MOST_ROWS:
                self._flush()

    def flush_old(self) -> None:
        """Write what is held if its first row is old enough."""
        with self._lock:
            if time.monotonic() - self._begun >= MOST_SECONDS:
                self._flush()

    def close(self) -> None:
        """Write all, and wait until it is on disk."""
        with self._lock:
            self._flush()
        self._writer.shutdown()

    def _flush(self) -> None:
        if not self._held:
            return
        if self._writing is not None:
            # A disk that is slower than the requests holds them up: no more is in memory than is stated.
            self._writing.result()
        self._writing = self._writer.submit(self._write, self._held)
        self._held = []
        self._rows = 0

    def _write(self, predictions: list[Prediction]) -> None:
        # Names sort by time; with the process in them two servers share a folder.
        start = predictions[0].time.strftime("%Y%m%dT%H%M%S.%f")
        path = self._folder / f"requests-{start}-{os.getpid()}.parquet"
        table = log_table(predictions)
        try:
            durable.replace_file(path, as_parquet(table))
            for old in sorted(self._folder.glob("requests-*.parquet"))[:-MOST_FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            # Predictions go on; the loss is counted.
            LOG.error("the request log lost %d rows: %s", len(table), error)
            self._on_loss(len(table))


def log_table(predictions: list[Prediction]) -> pd.DataFrame:
    """Make one table of requests to a model: when, id of the row, version, its columns as they came, and answers.

    The id of a row is that of its request with its place. A column that has the name of one of ours gets an underscore.
    """
    model = predictions[0].model
    frame = pd.DataFrame(
        {
            text["name"]: [*itertools.chain(*(item.texts[place] for item in predictions))]
            for place, text in enumerate(model.texts)
        },
        dtype=object,
    )
    came = plain_rows(frame, np.concatenate([item.coded for item in predictions]), model.columns)
    table = came.rename(columns=lambda name: f"{name}_" if name in OWN_COLUMNS else name)
    # Beside them what is of each row.
    rows = [(item, place) for item in predictions for place in range(len(item.coded))]
    table.insert(0, "time", [item.time for item, _ in rows])
    table.insert(1, "request", [f"{item.request}-{place}" for item, place in rows])
    table.insert(2, "model", model.version)
    table["predicted"] = np.concatenate([item.predicted for item in predictions])
    table["probability"] = np.concatenate([item.probability for item in predictions])
    return table
