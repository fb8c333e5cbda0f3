"""Log requests: each as a line of a journal before it is answered, and journals that are full or old as Parquet files.

A kill loses nothing that was answered: the journal that it leaves is made a Parquet file by the next server.
"""

import fcntl
import io
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic_core import from_json, to_json

from simic import durable
from simic.data.own.contract import as_parquet, plain_rows
from simic.data.raw_inputs import InputColumn
from simic.serving.networks import NetworkModel, Prediction

# Of a journal, which then becomes a file.
MOST_ROWS = 10_000
MOST_BYTES = 2**26
MOST_SECONDS = 60.0
# A month of a file each minute.
MOST_FILES = 50_000
# Beside the columns of the contract.
OWN_COLUMNS = ("time", "request", "model", "predicted", "probability")

LOG = logging.getLogger(__name__)


class RequestLog:
    """A folder of files ``requests-<start>-<pid>.parquet``, of which the oldest are removed, and of journals.

    Args:
        folder: Is made with the first journal. Several servers may share it.
        on_loss: Is told how many rows could not be written.
    """

    def __init__(self, folder: Path, on_loss: Callable[[int], None]) -> None:
        self._folder = folder
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._journal: io.FileIO | None = None
        # Of the journal that is being written.
        self._model: NetworkModel | None = None
        self._rows = 0
        self._bytes = 0
        self._begun = 0.0

    def add(self, prediction: Prediction) -> None:
        """Write down the rows of a request."""
        rows = len(prediction.coded)
        line = to_json(
            {
                "time": prediction.time,
                "request": prediction.request,
                # As digits, which take a tenth of the time that numbers take.
                "coded": prediction.coded.tobytes().hex(),
                "texts": prediction.texts,
                "predicted": prediction.predicted.tolist(),
                "probability": prediction.probability.tolist(),
            },
            inf_nan_mode="null",
        )
        with self._lock:
            try:
                # Rows of one file have the same columns.
                if self._model is not prediction.model:
                    self._end()
                    self._begin(prediction)
                self._write(line)
                self._rows += rows
                if self._rows >= MOST_ROWS or self._bytes >= MOST_BYTES:
                    self._end()
            except OSError as error:
                # Predictions go on; the loss is counted. A line that is cut short is the last of its journal.
                LOG.error("the request log lost %d rows: %s", rows, error)
                self._on_loss(rows)
                self._end()

    def tidy(self) -> None:
        """Make Parquet files of journals that are full, old, of another model, or left by a server that was killed."""
        with self._lock:
            if time.monotonic() - self._begun >= MOST_SECONDS:
                self._end()
        for path in sorted(self._folder.glob("requests-*.jsonl")):
            try:
                # Who writes a journal holds its lock.
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # An empty one is about to be locked, or its server was killed long ago.
                    age = time.time() - path.stat().st_mtime
                    if (content := file.read()) or age > MOST_SECONDS:
                        self._finish(path, content)
            except (BlockingIOError, FileNotFoundError):
                continue
            except OSError as error:
                # One of them must not keep the others from becoming files.
                LOG.error("the request log keeps %s: %s", path.name, error)

    def close(self) -> None:
        """Make Parquet files of all."""
        with self._lock:
            self._end()
        self.tidy()

    def _begin(self, prediction: Prediction) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Names sort by time; with the process in them two servers share a folder.
        start = prediction.time.strftime("%Y%m%dT%H%M%S.%f")
        path = self._folder / f"requests-{start}-{os.getpid()}.jsonl"
        # Without a buffer: what is written is the system's, which outlives the process.
        self._journal = path.open("ab", buffering=0)
        fcntl.flock(self._journal, fcntl.LOCK_EX)
        model = prediction.model
        self._rows = 0
        self._bytes = 0
        self._begun = time.monotonic()
        try:
            self._write(to_json({"version": model.version, "columns": model.columns}))
        except OSError:
            # Else a full disk would get an empty journal for each request.
            path.unlink(missing_ok=True)
            raise
        self._model = model

    def _write(self, line: bytes) -> None:
        assert self._journal is not None
        if self._journal.write(line + b"\n") <= len(line):
            raise OSError("the disk is full")
        self._bytes += len(line)

    def _end(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self._model = None

    def _finish(self, path: Path, content: bytes) -> None:
        """Make the Parquet file of a journal, the same one however often."""
        try:
            # What follows the last line break was cut short, and not answered.
            head, *requests = map(from_json, content.split(b"\n")[:-1] or [b"{}"])
            if requests:
                table = log_table(head, requests)
                durable.replace_file(path.with_suffix(".parquet"), as_parquet(table))
            path.unlink(missing_ok=True)
            for old in sorted(self._folder.glob("requests-*.parquet"))[:-MOST_FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            # It stays for the next time.
            LOG.error("the request log keeps %s: %s", path.name, error)
        except (LookupError, TypeError, ValueError) as error:
            LOG.error("the request log puts %s aside: %s", durable.put_aside(path), error)


def logged_name(name: str) -> str:
    """Name a column in the log: one that is called as ours are, or so with underscores, gets one more."""
    return f"{name}_" if name.rstrip("_") in OWN_COLUMNS else name


def log_table(model: dict[str, Any], requests: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Make one table of requests to a model: when, id of the row, version, its columns as they came, and answers.

    The id of a row is that of its request with its place.
    """
    columns = [InputColumn(**column) for column in model["columns"]]
    names = [column.name for column in columns if column.levels is not None]
    texts = zip(*(request["texts"] for request in requests), strict=True)
    frame = pd.DataFrame(
        {name: [*itertools.chain(*text)] for name, text in zip(names, texts, strict=True)},
        dtype=object,
    )
    codes = np.frombuffer(bytes.fromhex("".join(request["coded"] for request in requests)))
    came = plain_rows(frame, codes.reshape(-1, len(columns)), columns)
    table = came.rename(columns=logged_name)
    # Beside them what is of each row.
    rows = [(request, place) for request in requests for place in range(len(request["predicted"]))]
    table.insert(0, "time", pd.to_datetime([request["time"] for request, _ in rows]))
    table.insert(1, "request", [f"{request['request']}-{place}" for request, place in rows])
    table.insert(2, "model", model["version"])
    for answer in ("predicted", "probability"):
        table[answer] = [request[answer][place] for request, place in rows]
    return table
