"""Run `simic up`: Prefect server, runner and MLflow UI as children of one process, on 127.0.0.1, stopped together."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from simic import durable
from simic.errors import SimicError, printable
from simic.pipeline.paths import UI_VARIABLE, Workspace, sqlite_uri

HOST = "127.0.0.1"
MLFLOW_PORT = 5000
COMMANDS = {"server": "prefect server start", "mlflow": "mlflow ui", "runner": "flows.serve"}
START_SECONDS = 60.0
RUNNER_GRACE_SECONDS = 30.0  # a run in progress saves its state first
GRACE_SECONDS = 2.0


@dataclass
class Child:
    """Supervise one process with a session and a log file of its own; ``process`` is None for one of a killed life."""

    name: str
    pid: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None  # which also collects it
        return bool(_command(self.pid))

    def terminate(self) -> None:
        """Ask it to end: the runner alone, which tells its run and waits for it, of servers all workers too."""
        with contextlib.suppress(ProcessLookupError):
            (os.kill if self.name == "runner" else os.killpg)(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill what is left of its group, and wait until it is gone, with its ports."""
        deadline = time.monotonic() + GRACE_SECONDS
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, signal.SIGKILL)
                self.alive()
                time.sleep(0.02)


def _command(pid: int) -> str:
    """Return the command line of a process; empty where there is none, or only its exit status is left of it."""
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _stop(children: list[Child], grace_seconds: float) -> None:
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_seconds
    while any(child.alive() for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    for child in children:
        child.kill()


class Supervisor:
    """Start the children in order, notice when one dies, stop the runner before the server it reports to."""

    def __init__(self, root: Path, port: int, mlflow_port: int):
        self.root, self.port, self.mlflow_port = root.resolve(), port, mlflow_port
        self.children: list[Child] = []
        self.stopped = threading.Event()

    def start(self) -> None:
        """Return when everything answers; SimicError naming the log when it does not."""
        server = self._spawn("server", "prefect", "server", "start", "--host", HOST, "--port", str(self.port))
        if not (self.root / "mlflow.db").exists():  # two first initialisations at once would destroy it
            from simic.pipeline import tracking

            tracking.connect(Workspace(self.root))
        store = ("--backend-store-uri", sqlite_uri(self.root / "mlflow.db"))
        place = ("--default-artifact-root", (self.root / "mlruns").as_uri())
        serving = ("mlflow", "ui", "--host", HOST, "--port", str(self.mlflow_port), "--workers", "1")
        mlflow = self._spawn("mlflow", *serving, *store, *place)
        self._await(server, lambda: _answers(f"{self.url}/health"))
        ready = self.root / ".prefect" / "runner.ready"
        ready.unlink(missing_ok=True)
        runner = self._spawn("runner", "flows.serve")
        self._await(mlflow, lambda: _answers(f"http://{HOST}:{self.mlflow_port}/health"))
        self._await(runner, ready.exists)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/api"

    def _spawn(self, name: str, module: str, *arguments: str) -> Child:
        log = _log(self.root, name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.root,
                env={**os.environ, **self._environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops them in order
            )
        self.children.append(Child(name, process.pid, log, process))
        started = [f"{child.pid} {child.name}" for child in self.children]
        _record(self.root).write_text("\n".join(started), encoding="utf-8")  # for ``stop_leftovers``
        return self.children[-1]

    def _environment(self) -> dict[str, str]:
        return {
            "PREFECT_API_URL": self.url,
            "PREFECT_HOME": str(self.root / ".prefect"),
            "DO_NOT_TRACK": "1",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            UI_VARIABLE: f"http://{HOST}:{self.mlflow_port}",
            "PYTHONUNBUFFERED": "1",
        }

    def _await(self, child: Child, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self.stopped.is_set():
                return
            if not child.alive() or time.monotonic() > deadline:
                raise SimicError(f"the {child.name} did not start; {_ending(child.log)}")
            time.sleep(0.1)

    def watch(self) -> Child | None:
        """Wait until asked to stop (None) or until a child dies (that child)."""
        while not self.stopped.wait(0.2):
            for child in self.children:
                if not child.alive():
                    return child
        return None

    def stop(self) -> None:
        """Stop the runner before the server: a run in progress saves its state, and its events find where to go."""
        locks = (self.root / ".prefect" / "locks").glob("*.lock")
        has_run = any(durable.holder(path) is not None for path in locks)
        first = [child for child in self.children if child.name != "server"]
        _stop(first, RUNNER_GRACE_SECONDS if has_run else GRACE_SECONDS)
        _stop([child for child in self.children if child not in first], GRACE_SECONDS)
        _record(self.root).unlink(missing_ok=True)


def run(root: Path, port: int | None, mlflow_port: int) -> None:
    """Do `simic up` until Ctrl-C or SIGTERM."""
    configured = configured_port(root)
    port = port or configured
    with durable.locked(root / ".prefect" / "up.lock", "runs simic up"):
        stop_leftovers(root)
        for number, what, option in ((port, "Prefect", "--port"), (mlflow_port, "MLflow", "--mlflow-port")):
            if not is_free(number):
                raise SimicError(
                    f"port {number} for {what} is taken by another program; stop it, or choose another: "
                    f"{option} {number + 1}"
                )
        supervisor = Supervisor(root, port, mlflow_port)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: supervisor.stopped.set())
        try:
            supervisor.start()
            if not supervisor.stopped.is_set():
                elsewhere = "" if port == configured else f"PREFECT_API_URL={supervisor.url} "
                print(
                    f"ready\n"
                    f"  Prefect   http://{HOST}:{port}\n"
                    f"  MLflow    http://{HOST}:{mlflow_port}/#/experiments?workflowType=machine_learning\n"
                    f"  start a run in another terminal (. .venv/bin/activate):\n"
                    f"    {elsewhere}prefect deployment run simic/train --watch\n"
                    f"  logs in {printable(str(supervisor.root / '.prefect' / 'logs'))}; Ctrl-C stops all",
                    flush=True,
                )
            died = supervisor.watch()
        finally:
            supervisor.stop()
    if died is not None:
        raise SimicError(f"the {died.name} stopped unexpectedly; {_ending(died.log)}")


def stop_leftovers(root: Path) -> None:
    """End the children of a `simic up` that was killed, the runner first.

    Ids are reused, so a process is ours only if its command is the one we started. The kernel gives no id away that a
    group has: where the process is gone, what is left of its group is ours.
    """
    record = _record(root)
    if not record.exists():
        return
    lines = (line.split() for line in record.read_text(encoding="utf-8").splitlines())
    left = [Child(name, int(pid), _log(root, name)) for pid, name in lines]
    ours = [child for child in left if not child.alive() or COMMANDS[child.name] in _command(child.pid)]
    _stop([child for child in ours if child.name == "runner"], RUNNER_GRACE_SECONDS)
    _stop([child for child in ours if child.name != "runner"], GRACE_SECONDS)
    record.unlink()


def _record(root: Path) -> Path:
    return root / ".prefect" / "up.children"


def _log(root: Path, name: str) -> Path:
    return root / ".prefect" / "logs" / f"{name}.log"


def configured_port(root: Path) -> int:
    """Return the port that commands in this folder talk to: PREFECT_API_URL, else [tool.prefect] of pyproject.toml."""
    try:
        settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["prefect"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        raise SimicError(f"{root}: no pyproject.toml with [tool.prefect]; run from the project's root") from None
    address = os.environ.get("PREFECT_API_URL") or settings["api"]["url"]
    try:
        return urllib.parse.urlsplit(address).port or 4200
    except ValueError as error:
        raise SimicError(f"PREFECT_API_URL = {address!r}: {error}; must be as http://{HOST}:4200/api") from None


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _ending(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"its log {log} ends with: {lines[-1].strip() if lines else '(nothing)'}"
