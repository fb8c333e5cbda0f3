"""A network in production: requests shift half-way, a watch notices, a challenger follows and is taken back once.

    python -m benchmarks.production            # false alarms and delays of the watch over 20 seeds, in this process
    python -m benchmarks.production --live     # the loop once: MLflow, Prefect, its runner, simic serve as processes

The table is MNIST's 10,000 test images as the means of 7 × 7 blocks, read from $SIMIC_DATA_DIR as in own_data. Nobody
made its shift: the first 5,000 were written by employees of the Census Bureau, the others by pupils (LeCun, Cortes,
Burges). A network learns from 2,000 of the first; 3,000 more of these are asked for, then pupils'.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import simic
from benchmarks import page
from benchmarks.own_data import MNIST
from simic.data.own.contract import REFERENCE
from simic.data.published import read_idx
from simic.serving.champions import OpenNetwork
from simic.serving.networks import NetworkModel
from simic.serving.shifts import LEAST_PSI
from simic.serving.watch import looks_in, watch

OUT = page.RESULTS / "production.json"
FIGURE = page.IMAGES / "production.png"
ROOT = Path(__file__).parents[1]
LABEL = "digit"
NAME = "simic-digits"
# Rows to train on, those of census employees, and the requests after which pupils' begin.
TRAINING = 2000
CENSUS = 5000
SHIFT = CENSUS - TRAINING
# Rows of a request, and between two watches; and the last ones, which come after the way back.
REQUEST_ROWS = 10
WATCH_ROWS = 500
LAST_ROWS = 1500
# Ports.
PREFECT = 4290
MLFLOW = 5290
SERVE = 8290
SERVED = f"http://127.0.0.1:{SERVE}"
SERVERS = {
    "PORT": str(PREFECT),
    "MLFLOW_PORT": str(MLFLOW),
    "PREFECT_API_URL": f"http://127.0.0.1:{PREFECT}/api",
    "PYTHONPATH": str(ROOT),
}


def rows_of(seed: int) -> tuple[Any, Any]:
    """Draw the rows to train on, and those that are asked for: census employees', then pupils'."""
    images = read_idx(MNIST / "t10k-images-idx3-ubyte.gz", 3)
    means = images.reshape(-1, 7, 4, 7, 4).mean((2, 4))
    blocks = means.reshape(len(images), -1).round(2)
    rows = pd.DataFrame(blocks, columns=[f"block{place:02d}" for place in range(49)])
    rows[LABEL] = read_idx(MNIST / "t10k-labels-idx1-ubyte.gz", 1)
    # The files' order is that of the writers.
    draws = np.random.default_rng(seed)
    census = draws.permutation(CENSUS)
    stream = [*census[TRAINING:], *(CENSUS + draws.permutation(len(rows) - CENSUS))]
    return rows.iloc[census[:TRAINING]], rows.iloc[stream].reset_index(drop=True)


# --- twenty seeds ----------------------------------------------------------------------------------------------------


def false_alarms(rows_a_look: int = 250) -> list[dict[str, int]]:
    """Watch 20 streams; count looks with a finding before the shift, and rows from the shift to the first after it.

    One network answers all. Of each seed the rows to train on, drawn anew, are what its stream is compared with.
    """
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        grown = Path(scratch) / "grown"
        simic.grow(
            rows_of(0)[0],
            target=LABEL,
            out=grown,
            n=1,
            policy="static",
            host="mlp/baseline",
            verbose=False,
        )
        model = NetworkModel(grown, "1")
        for seed in range(20):
            folder = Path(scratch) / str(seed)
            network = OpenNetwork(Path(shutil.copytree(grown, folder / "grown")), model)
            (folder / "requests").mkdir()
            training, stream = rows_of(seed)
            training.to_parquet(network.folder / REFERENCE)
            # Each turn a file of requests, their labels, and a look.
            result = {"seed": seed, "false": 0}
            for start in range(0, len(stream), rows_a_look):
                rows = stream[start : start + rows_a_look]
                ids = rows.index.astype(str)
                answers = model.saved.predict(rows)[["class", "probability"]].set_index(rows.index)
                log = rows.drop(columns=LABEL).join(answers.rename(columns={"class": "predicted"}))
                log = log.assign(time=pd.Timestamp.now("UTC"), request=ids, model="1")
                log.to_parquet(folder / f"requests/requests-{start:05d}-1.parquet")
                labels = stream[[LABEL]][: start + rows_a_look]
                labels.to_csv(folder / "labels.csv", index_label="request")
                report = watch(network, folder / "requests", folder / "w", folder / "labels.csv")
                if report.look is not None and report.look.findings:
                    if start >= SHIFT:
                        result["noticed"] = start + len(rows) - SHIFT
                        break
                    result["false"] += 1
            print(result, flush=True)
            results.append(result)
    return results


# --- the loop with its processes -------------------------------------------------------------------------------------


class Loop:
    """A project in a folder of its own, with servers: `make serve` (Prefect, a runner, MLflow) and simic serve."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = os.environ | SERVERS
        self.watches = root / "production" / "watch" / NAME
        self.begun = time.monotonic()
        # Accuracy of the answers between two watches, and what happened, by the number of rows sent.
        self.answers: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.sent = 0

    def run(self, *command: str) -> str:
        """Run a command of the project; print and return what it says."""
        program = [sys.executable, "-m", *command]
        run = subprocess.run(
            program, cwd=self.root, env=self.env, stdout=-1, text=True, check=False
        )
        print(f"$ {' '.join(command)}\n{run.stdout}", flush=True)
        return run.stdout

    @contextmanager
    def started(self, *command: str, ready: str) -> Iterator[None]:
        """Start a server, and end it with the block."""
        log = self.root / f"{command[0]}.log"
        program = [sys.executable, "-m", *command]
        with log.open("w") as file:
            process = subprocess.Popen(
                program, cwd=self.root, env=self.env, stdout=file, stderr=file
            )
        try:
            wait(lambda: ready in log.read_text() or process.poll() is not None)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)

    def ask(self, rows: Any) -> None:
        """Send rows, a few in each request, and write down their labels."""
        right = 0
        model = ""
        for start in range(0, len(rows), REQUEST_ROWS):
            part = rows[start : start + REQUEST_ROWS]
            body = {"rows": part.drop(columns=LABEL).to_dict("records")}
            answer = get(f"{SERVED}/predict", json.dumps(body).encode())
            names = [f"{answer['request']}-{place}" for place in range(len(part))]
            labels = self.root / "labels.csv"
            part[[LABEL]].assign(request=names).to_csv(
                labels, mode="a", header=not labels.exists(), index=False
            )
            model = answer["model"]
            right += int((np.array(answer["predicted"]) == part[LABEL].astype(str)).sum())
        self.sent += len(rows)
        accuracy = 100 * right / len(rows)
        self.answers.append({"rows": self.sent, "model": model, "accuracy": round(accuracy, 1)})

    def watch(self) -> None:
        """Run simic/watch; where it starts a retraining, wait for the challenger and compare it."""
        # The server writes its log once a minute.
        logs = self.root / "requests"
        wait(
            lambda: sum(len(pd.read_parquet(file)) for file in logs.glob("*.parquet")) == self.sent
        )
        # The flow's own process, as the schedule would start it.
        before = version("challenger")
        self.run("prefect", "deployment", "run", "simic/watch", f"-pmodel={NAME}", "--watch")
        if looks_in(self.watches)[-1].findings:
            self.note("noticed")
            wait(lambda: version("challenger") != before)
            self.note("retrained")
            self.run("simic", "promote", NAME)
            if version("champion") != "1":
                self.note("promoted")

    def note(self, event: str) -> None:
        """Remember an event; of a new champion when it is served."""
        champion = f"{NAME}/{version('champion')}"
        wait(lambda: get(f"{SERVED}/health")["model"] == champion)
        seconds = round(time.monotonic() - self.begun)
        self.events.append({"rows": self.sent, "event": event, "seconds": seconds})


def get(url: str, body: bytes | None = None) -> Any:
    """Ask a server for JSON."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def version(alias: str) -> str:
    """Ask MLflow which version has an alias."""
    place = f"http://127.0.0.1:{MLFLOW}/api/2.0/mlflow/registered-models/get?name={NAME}"
    aliases = get(place)["registered_model"].get("aliases", [])
    versions = {item["alias"]: item["version"] for item in aliases}
    return versions.get(alias, "")


def wait(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    deadline = time.monotonic() + 1800
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(1)


def live() -> dict[str, Any]:
    """Serve, watch, retrain, promote, roll back, with all processes."""
    training, stream = rows_of(0)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        # A project with a network on the first rows.
        loop = Loop(Path(scratch))
        for name in ("Procfile", "params.yaml", "pyproject.toml"):
            shutil.copy(ROOT / name, loop.root)
        training.to_csv(loop.root / "data.csv", index=False)
        loop.run("dvc", "init", "--no-scm", "--quiet")
        loop.run("simic", "grow", "data.csv", "--target", LABEL, "--n", "4")
        best = "grown/recommended" if (loop.root / "grown/recommended").exists() else "grown"
        loop.run("simic", "register", best, "digits")
        # Its servers.
        stack.enter_context(loop.started("flows.up", ready="ready for runs"))
        loop.env["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{MLFLOW}"
        wait(lambda: version("champion") == "1")
        command = ("simic", "serve", NAME, "--port", str(SERVE))
        stack.enter_context(loop.started(*command, ready="serves"))
        # Requests, with watches as long as the first champion serves.
        for start in range(0, len(stream), WATCH_ROWS):
            if start == SHIFT:
                loop.note("shift")
            loop.ask(stream[start : start + WATCH_ROWS])
            left = len(stream) - loop.sent
            if left == LAST_ROWS:
                loop.run("simic", "rollback", NAME, "--reason", "to show it")
                loop.note("rolled back")
            elif left > LAST_ROWS and version("champion") == "1":
                loop.watch()
        history = loop.run("simic", "show", "--history").splitlines()
        # Each watch had one look.
        looks = [
            {
                "rows": WATCH_ROWS * look.number,
                "largest_psi": round(max(column.psi for column in look.columns), 3),
                "findings": look.findings,
            }
            for look in looks_in(loop.watches)
        ]
    return {
        "answers": loop.answers,
        "events": loop.events,
        "looks": looks,
        "history": history,
    }


def draw(result: dict[str, Any]) -> Figure:
    """Draw accuracy and the shift that watches saw over the rows that were sent, with what happened."""
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    accuracy, shift = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for model, group in pd.DataFrame(result["answers"]).groupby("model"):
        share = group["accuracy"] / 100
        deviation = 100 * np.sqrt(share * (1 - share) / WATCH_ROWS)
        accuracy.errorbar(
            group["rows"] - WATCH_ROWS / 2,
            group["accuracy"],
            deviation,
            fmt="o",
            label=f"{model}, ± 1 standard error",
        )
    looks = pd.DataFrame(result["looks"])
    shift.plot(looks["rows"], looks["largest_psi"], "s", color="0.3", label="watch")
    shift.axhline(LEAST_PSI, color="0.3", linestyle=":", linewidth=1, label="least of a finding")
    # Several things happen between two requests: they share a line, and stand above it.
    events = pd.DataFrame(result["events"]).groupby("rows")["event"].agg("\n".join)
    for rows, words in events.items():
        for axis in (accuracy, shift):
            axis.axvline(rows, color="0.7", linewidth=1, zorder=0)
        # The shift and what follows stand close to each other.
        side = "right" if str(words) == "shift" else "left"
        place = (rows, 1.02)
        accuracy.annotate(words, place, xycoords=("data", "axes fraction"), ha=side, fontsize=9)
    accuracy.set_ylabel(f"accuracy, %\nof {WATCH_ROWS} answers")
    shift.set(xlabel="rows sent", ylabel="largest PSI\nof a column", ylim=(0, 0.25))
    for axis in (accuracy, shift):
        axis.legend(frameon=False, loc="lower right", fontsize=9)
    return figure


def main() -> None:
    """Measure false alarms and delays, or run the loop; each keeps the other's result."""
    parser = page.parser(__doc__, OUT)
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args()
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.live:
        result["live"] = live()
    else:
        result["seeds"] = false_alarms()
    if "live" in result:
        draw(result["live"]).savefig(FIGURE, dpi=110)
    page.write_result(options.out, result)


if __name__ == "__main__":
    main()
