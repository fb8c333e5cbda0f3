"""Measure `simic serve`: requests per second, p50 and p99 of one client that sends rows and waits for the answer.

    python -m benchmarks.serving

A network that grew on scikit-learn's breast cancer table is served by simic and by `mlflow models serve`, and
scikit-learn's gradient boosting by the same server as the network. Then memory over 100,000 requests of a row.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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

# How many rows requests have, for how long they are sent, and over how many requests memory is measured.
OUT = page.RESULTS / "serving.json"
ROWS = (1, 32, 1024)
SECONDS = 15.0
MEMORY_REQUESTS = 100_000
MEMORY_POINTS = 20
MEMORY_CLIENTS = 10
TARGET = "diagnosis"
PORT = 8137


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
    app.serve(service, "127.0.0.1", PORT, "", print)


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
    """One connection that is kept."""

    def __init__(self, process: int, path: str, health: str) -> None:
        self._server = psutil.Process(process)
        self._path = path
        # A server takes seconds to start.
        while True:
            self._connection = http.client.HTTPConnection("127.0.0.1", PORT)
            try:
                self._connection.request("GET", health)
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

    def measure(self, body: bytes) -> dict[str, float]:
        """Send a body again and again for ``SECONDS``."""
        for _ in range(20):
            self.ask(body)
        # One request after the other, as a client waits for its answer.
        times = list[float]()
        cpu = self._cpu_seconds()
        begin = time.perf_counter()
        while time.perf_counter() - begin < SECONDS:
            start = time.perf_counter()
            self.ask(body)
            times.append(time.perf_counter() - start)
        p50, p99 = (1000 * np.percentile(times, (50, 99))).round(2).tolist()
        # Seconds of the clock hang on what else this machine does; those of the processor less so.
        cpu_ms = 1000 * (self._cpu_seconds() - cpu) / len(times)
        return {
            "per_second": round(len(times) / sum(times), 1),
            "p50_ms": p50,
            "p99_ms": p99,
            "cpu_ms": round(cpu_ms, 2),
        }

    def _cpu_seconds(self) -> float:
        server = [self._server, *self._server.children(recursive=True)]
        times = [process.cpu_times() for process in server]
        return sum(time.user + time.system for time in times)


def measured(client: Client, name: str, body: Callable[[list[dict]], Any]) -> list[dict[str, Any]]:
    """Measure requests of each number of rows."""
    table = frame("breast_cancer", TARGET).drop(columns=TARGET)
    rows = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    # Rows of the table, again from its first when there are no more.
    results = list[dict[str, Any]]()
    for count in ROWS:
        sent = [rows[place % len(rows)] for place in range(count)]
        numbers = client.measure(json.dumps(body(sent)).encode())
        results.append({"server": name, "rows": count} | numbers)
        print(results[-1], flush=True)
    return results


def memory(process: int) -> list[float]:
    """Measure the resident megabytes of a server while it answers ``MEMORY_REQUESTS`` of several clients."""
    row = frame("breast_cancer", TARGET).drop(columns=TARGET).iloc[0].to_dict()
    body = json.dumps({"rows": [row]}).encode()
    requests = MEMORY_REQUESTS // MEMORY_POINTS // MEMORY_CLIENTS

    def ask(_: int) -> None:
        client = Client(process, "/predict", "/health")
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
        serve = ("simic", "serve", "grown", "--port", str(PORT))
        with command(*serve, folder=folder) as process:
            client = Client(process, "/predict", "/health")
            rows = measured(client, "simic serve", lambda sent: {"rows": sent})
            points = memory(process)

        # Gradient boosting behind the same server.
        serve = ("benchmarks.serving", "--boosting", "grown")
        with command(*serve, folder=folder) as process:
            client = Client(process, "/predict", "/health")
            rows += measured(client, "gradient boosting", lambda sent: {"rows": sent})

        # The network behind MLflow's own server.
        workspace = Workspace(folder)
        version = promotion.register(workspace, folder / "grown", "cancer")
        place = tracking.download(tracking.connect(workspace).client, version, folder / "model")
        model = str(place.parents[1])
        serve = (
            "mlflow",
            "models",
            "serve",
            "-m",
            model,
            "-p",
            str(PORT),
            "--env-manager",
            "local",
        )
        with command(*serve, folder=folder) as process:
            client = Client(process, "/invocations", "/ping")
            rows += measured(
                client, "mlflow models serve", lambda sent: {"dataframe_records": sent}
            )
    page.write_result(options.out, {"rows": rows, "memory_mb": points, "requests": MEMORY_REQUESTS})


if __name__ == "__main__":
    main()
