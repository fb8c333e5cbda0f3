"""A network of a table, a policy, and servers that run."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import uvicorn

from simic.agent import Agent
from simic.classifier import GrowClassifier
from simic.data.own import predict
from simic.data.own.contract import Contract
from simic.growth.grown_network import write_network
from simic.serving.app import create_app, listen
from simic.serving.service import Service
from simic.serving.sources import FolderSource, ModelSource
from tests.helpers import made_once

JSON = "application/json"
STREAM = "application/vnd.apache.arrow.stream"


def table(rows: int = 120, rng_seed: int = 0) -> pd.DataFrame:
    draws = np.random.default_rng(rng_seed)
    frame = pd.DataFrame(draws.normal(size=(rows, 2)), columns=["a", "b"])
    frame["time"] = draws.choice(["day", "night", None], rows)
    frame.loc[::7, "b"] = np.nan
    return frame


def fitted(rng_seed: int = 1) -> GrowClassifier:
    frame = table()
    classes = np.where(frame["a"] + (frame["time"] == "day") > 0, "yes", "no")
    classifier = GrowClassifier(n=1, epochs=2, policy="static", random_state=rng_seed)
    return classifier.fit(frame, classes)


def save(classifier: GrowClassifier, folder: Path) -> Path:
    """As `simic grow` does."""
    network = classifier.network_
    # Of the estimator's places the names.
    names = tuple(map(str, classifier.classes_))
    inputs = network.structure.inputs.model_copy(update={"classes": names})
    network.structure = network.structure.model_copy(update={"inputs": inputs})
    contract = Contract.model_validate(
        network.contract | {"classes": names, "class_shares": dict.fromkeys(names, 0.5)}
    )
    program = Path(predict.__file__).read_text(encoding="utf-8")
    files = {"predict.py": program, predict.CONTRACT: contract.to_json()}
    return write_network(network, folder, [], "# A card", files)


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two networks of the same table."""

    def make(folder: Path) -> None:
        for number in (1, 2):
            save(fitted(number), folder / f"network{number}")

    folder = made_once(tmp_path_factory, "networks", make)
    return [folder / "network1", folder / "network2"]


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two untrained agents of CartPole, exported, with a memory."""

    def make(folder: Path) -> None:
        for number in (1, 2):
            agent = Agent("CartPole-v1", rng_seed=number, envs=4, rollout_steps=16)
            agent.save(folder / f"agent{number}.safetensors")
            agent.export(folder / f"policy{number}")

    folder = made_once(tmp_path_factory, "policies", make)
    return [folder / "policy1", folder / "policy2"]


@dataclass
class Server:
    """A server that runs, and what it answers."""

    address: str
    service: Service

    def ask(
        self, body: Any = None, path: str = "/predict", media: str = JSON, token: str = ""
    ) -> tuple[int, Any]:
        """Status, and what the JSON or text holds; a body makes it a POST."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": media, "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.address + path, content, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, text, kind = response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                status, text, kind = error.code, error.read(), error.headers
        is_json = kind.get_content_type() == JSON
        return status, json.loads(text) if is_json else text.decode()

    def metric(self, name: str, token: str = "") -> float:
        lines = self.ask(path="/metrics", token=token)[1].splitlines()
        return float(dict(line.rsplit(" ", 1) for line in lines)[name])


@contextmanager
def running(
    source: ModelSource | Path, log: Path | None = None, token: str = "", poll: float = 3600
) -> Iterator[Server]:
    """A server in a thread; at its end it has written its log."""
    service = Service(FolderSource(source) if isinstance(source, Path) else source, log)
    server = uvicorn.Server(uvicorn.Config(create_app(service, token, poll), log_level="warning"))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", service)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving(folder: Path, model: Path | str) -> Iterator[tuple[Server, subprocess.Popen]]:
    """`simic serve` in a process of its own, which is stopped where it was not killed."""
    command = [sys.executable, "-m", "simic", "serve", model, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.fullmatch(r"serves \S+ on (http://127\.0\.0\.1:\d+)\n", line)
        assert address is not None, line
        try:
            yield Server(address[1], None), process  # type: ignore[arg-type]
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def registry(root: Path, port: int) -> Iterator[int]:
    """MLflow's server of a project's store, in a group of processes, whose number it yields."""
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{root}/mlflow.db"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen([*command, *store], cwd=root, **quiet) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                    break
                time.sleep(0.1)
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def arrow(frame: pd.DataFrame, packed: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pandas(frame, preserve_index=False)
    options = pa.ipc.IpcWriteOptions(compression=packed)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def rows_of(frame: pd.DataFrame) -> list[dict]:
    """As JSON has them, null where a value is missing."""
    return json.loads(frame.to_json(orient="records", double_precision=15))
