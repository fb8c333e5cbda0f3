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
from simic.serving.watch import watch

OUT = page.RESULTS / "production.json"
FIGURE = page.IMAGES / "production.png"
ROOT = Path(__file__).parents[1]
LABEL = "digit"
NAME = "simic-digits"
# Rows to train on, those of census employees, and the requests after which pupils' begin.
TRAINING = 2000
CENSUS = 5000
SHIFT = CENSUS - TRAINING
# Ports.
PREFECT = 4290
MLFLOW = 5290
SERVE = 8290
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
        # Accuracy of each 500 answers, and what happened, by the number of requests.
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
            wait(lambda: ready in log.read_text())
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)

    def ask(self, rows: Any) -> None:
        """Send rows, write down their labels, and wait until the server's log has them."""
        body = {"rows": rows.drop(columns=LABEL).to_dict("records")}
        url = f"http://127.0.0.1:{SERVE}/predict"
        answer = get(url, json.dumps(body).encode())
        names = [f"{answer['request']}-{place}" for place in range(len(rows))]
        labels = self.root / "labels.csv"
        rows[[LABEL]].assign(request=names).to_csv(
            labels, mode="a", header=not labels.exists(), index=False
        )
        self.sent += len(rows)
        right = np.array(answer["predicted"]) == rows[LABEL].astype(str)
        self.answers.append(
            {
                "requests": self.sent,
                "model": answer["model"],
                "accuracy": 100 * float(right.mean()),
            }
        )
        logs = self.root / "requests"
        wait(lambda: sum(len(pd.read_parquet(file)) for file in logs.glob("*")) == self.sent)

    def watch(self) -> None:
        """Run simic/watch; where it starts a retraining, wait for the challenger and compare it."""
        # The flow's own process, as the schedule would start it.
        before = version("challenger")
        self.run("prefect", "deployment", "run", "simic/watch", f"-pmodel={NAME}", "--watch")
        looks = self.root / "production" / "watch" / NAME / "looks.jsonl"
        if "alarm_of" in looks.read_text().splitlines()[-1]:
            self.note("noticed")
            wait(lambda: version("challenger") != before)
            self.note("retrained")
            self.run("simic", "promote", NAME)
        if version("champion") != "1":
            self.note("promoted")

    def note(self, event: str) -> None:
        """Remember an event."""
        self.events.append({"requests": self.sent, "event": event})


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
        command = ("simic", "serve", NAME, "--port", str(SERVE), "--poll", "2")
        stack.enter_context(loop.started(*command, ready="serves"))
        # Requests, and a watch after every 500 as long as the first champion serves.
        for start in range(0, len(stream), 500):
            if start == SHIFT:
                loop.note("pupils")
            loop.ask(stream[start : start + 500])
            # The last thousand rows are for the way back.
            if start == len(stream) - 1500:
                loop.run("simic", "rollback", NAME, "--reason", "to show it")
                loop.note("rolled back")
            elif start < len(stream) - 1500 and version("champion") == "1":
                loop.watch()
            # The server looks for a new champion every two seconds.
            time.sleep(5)
        history = loop.run("simic", "show", "--history").splitlines()
    return {"answers": loop.answers, "events": loop.events, "history": history}


def draw(result: dict[str, Any]) -> Figure:
    """Draw the accuracy of each 500 answers over the requests, with what happened."""
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axis = figure.subplots()
    answers = pd.DataFrame(result["answers"])
    for model, group in answers.groupby("model"):
        axis.plot(group["requests"] - 250, group["accuracy"], "o", label=str(model))
    # What happened stands at the foot, at its request.
    for event in result["events"]:
        place = (event["requests"], 0.02)
        axis.axvline(event["requests"], color="0.7", linewidth=1)
        axis.annotate(event["event"], place, xycoords=("data", "axes fraction"), rotation=90)
    axis.set_xlabel("requests")
    axis.set_ylabel("accuracy of 500 answers, %")
    axis.legend(frameon=False)
    return figure


def main() -> None:
    """Measure false alarms and delays, or run the loop; each keeps the other's result."""
    parser = page.parser(__doc__, OUT)
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args()
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.live:
        result["live"] = live()
        draw(result["live"]).savefig(FIGURE, dpi=110)
    else:
        result["seeds"] = false_alarms()
    page.write_result(options.out, result)


if __name__ == "__main__":
    main()
