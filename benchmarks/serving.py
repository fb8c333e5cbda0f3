"""Measure `simic serve`: requests per second, p50 and p99 of one client that sends rows and waits for the answer.

    python -m benchmarks.serving

A network that grew on scikit-learn's breast cancer table is served by simic and by `mlflow models serve`, and
scikit-learn's gradient boosting by the same server as the network: one process and one thread each. They are asked in
turns, so that what else the machine does meets all. Then memory over 100,000 requests of a row.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from sklearn.ensemble import HistGradientBoostingClassifier

import simic
from benchmarks import page
from benchmarks.own_data import frame
from simic.data.own import predict
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.serving import app, promotion
from simic.serving.networks import NetworkModel
from simic.serving.service import Service
from simic.serving.sources import FolderSource

# How many rows requests have, in how many turns and for how long in each they are sent, and over how many requests
# memory is measured.
OUT = page.RESULTS / "serving.json"
ROWS = (1, 32, 1024)
TURNS = 5
SECONDS = 4.0
WARM_UP = 20
MEMORY_REQUESTS = 100_000
MEMORY_POINTS = 20
MEMORY_CLIENTS = 10
TARGET = "diagnosis"
MLFLOW = "mlflow models serve"
PORT = 8137
BOOSTING_PORT = 8138
MLFLOW_PORT = 8139


def serve_boosting(folder: Path) -> None:
    """Serve scikit-learn's gradient boosting in the place of a network, fitted to the same codes."""
    service = Service(FolderSource(folder), Path("requests"))
    assert isinstance(service.model, NetworkModel)
    # All else of the server stays as it is.
    saved = service.model.saved
    rows = frame("breast_cancer", TARGET)
    x = predict.codes(rows, saved.inputs["columns"])
    boosting = HistGradientBoostingClassifier(random_state=0).fit(x, rows[TARGET])
    saved.probabilities = boosting.predict_proba  # type: ignore[method-assign]
    app.serve(service, "127.0.0.1", BOOSTING_PORT, "", print)


@contextmanager
def command(*arguments: str, folder: Path) -> Iterator[int]:
    """Run a server, and end it with its children; yield its process id."""
    with subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=folder, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield process.pid
        finally:
            # MLflow's server is a child of its command.
            for child in psutil.Process(process.pid).children(recursive=True):
                child.terminate()
            process.terminate()


class Client:
    """A client with one connection, and how long its requests took by their number of rows."""

    def __init__(self, process: int, port: int, path: str, health: str) -> None:
        self._server = psutil.Process(process)
        self._port = port
        self._path = path
        self._health = health
        self._seconds: dict[int, list[float]] = {count: [] for count in ROWS}
        self._cpu_seconds: dict[int, float] = dict.fromkeys(ROWS, 0.0)
        self.connect()

    def connect(self) -> None:
        """Open a connection, as soon as the server answers, which takes seconds after its start."""
        while self._server.is_running():
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port)
            try:
                self._connection.request("GET", self._health)
                self._connection.getresponse().read()
            except OSError:
                time.sleep(0.2)
            else:
                # Head and body go out as two packets: the second would wait for news of the first.
                self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return

    def ask(self, body: bytes) -> None:
        """Send a body and read the answer."""
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", self._path, body, headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.status == 200, content

    def take_turn(self, count: int, body: bytes) -> None:
        """Send a body of so many rows again and again for ``SECONDS``, and remember how long each request took."""
        # Servers close connections that idle.
        self.connect()
        for _ in range(WARM_UP):
            self.ask(body)
        # One request after the other, as a client waits for its answer.
        cpu = self._cpu()
        begin = time.perf_counter()
        while time.perf_counter() - begin < SECONDS:
            start = time.perf_counter()
            self.ask(body)
            self._seconds[count].append(time.perf_counter() - start)
        self._cpu_seconds[count] += self._cpu() - cpu

    def result(self, count: int) -> dict[str, float]:
        """Sum up all turns of requests of so many rows."""
        seconds = self._seconds[count]
        p50, p99 = (1000 * np.percentile(seconds, (50, 99))).round(2).tolist()
        # Seconds of the clock hang on what else this machine does; those of the processor less so.
        return {
            "requests": len(seconds),
            "per_second": round(len(seconds) / sum(seconds), 1),
            "p50_ms": p50,
            "p99_ms": p99,
            "cpu_ms": round(1000 * self._cpu_seconds[count] / len(seconds), 2),
        }

    def _cpu(self) -> float:
        server = [self._server, *self._server.children(recursive=True)]
        times = [process.cpu_times() for process in server]
        return sum(time.user + time.system for time in times)


def measured(clients: dict[str, Client]) -> list[dict[str, Any]]:
    """Measure requests of each number of rows, by the name of their server."""
    table = frame("breast_cancer", TARGET).drop(columns=TARGET)
    rows = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    for turn in range(TURNS):
        for count in ROWS:
            # Rows of the table, again from its first when there are no more.
            sent = [rows[place % len(rows)] for place in range(count)]
            for name, client in clients.items():
                # MLflow has its own name for rows.
                key = "dataframe_records" if name == MLFLOW else "rows"
                client.take_turn(count, json.dumps({key: sent}).encode())
        print(f"turn {turn + 1} of {TURNS}", flush=True)
    results = [
        {"server": name, "rows": count} | client.result(count)
        for name, client in clients.items()
        for count in ROWS
    ]
    print(*results, sep="\n", flush=True)
    return results


def memory(process: int) -> list[float]:
    """Measure the resident megabytes of a server while it answers ``MEMORY_REQUESTS`` of several clients."""
    row = frame("breast_cancer", TARGET).drop(columns=TARGET).iloc[0].to_dict()
    body = json.dumps({"rows": [row]}).encode()
    requests = MEMORY_REQUESTS // MEMORY_POINTS // MEMORY_CLIENTS

    def ask(_: int) -> None:
        client = Client(process, PORT, "/predict", "/health")
        for _ in range(requests):
            client.ask(body)

    # Connections are new for each point: the server closes those that idle.
    points = list[float]()
    for _ in range(MEMORY_POINTS):
        with ThreadPoolExecutor(MEMORY_CLIENTS) as threads:
            list(threads.map(ask, range(MEMORY_CLIENTS)))
        points.append(round(psutil.Process(process).memory_info().rss / 1e6, 1))
        print(points[-1], flush=True)
    return points


def main() -> None:
    parser = page.parser(__doc__, OUT)
    parser.add_argument("--boosting", type=Path, help="serve it in place of the network there")
    options = parser.parse_args()
    if options.boosting is not None:
        serve_boosting(options.boosting)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # The network, which is the same in all servers.
        data = frame("breast_cancer", TARGET)
        simic.grow(data, target=TARGET, out=folder / "grown", verbose=False)
        workspace = Workspace(folder)
        version = promotion.register(workspace, folder / "grown", "cancer")
        place = tracking.download(tracking.connect(workspace).client, version, folder / "model")
        simic_serve = ("simic", "serve", "grown", "--port", str(PORT))
        boosting = ("benchmarks.serving", "--boosting", "grown")
        mlflow = ("mlflow", "models", "serve", "--workers", "1", "--env-manager", "local")
        mlflow += ("-m", str(place.parents[1]), "-p", str(MLFLOW_PORT))
        with (
            command(*simic_serve, folder=folder) as process,
            command(*boosting, folder=folder) as boosting_process,
            command(*mlflow, folder=folder) as mlflow_process,
        ):
            clients = {
                "simic serve": Client(process, PORT, "/predict", "/health"),
                "gradient boosting": Client(boosting_process, BOOSTING_PORT, "/predict", "/health"),
                MLFLOW: Client(mlflow_process, MLFLOW_PORT, "/invocations", "/ping"),
            }
            rows = measured(clients)
        # A server that nobody has asked yet.
        with command(*simic_serve, folder=folder) as process:
            points = memory(process)
    page.write_result(options.out, {"rows": rows, "memory_mb": points, "requests": MEMORY_REQUESTS})


if __name__ == "__main__":
    main()
