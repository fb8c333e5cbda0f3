"""A Prefect server for one study, on 127.0.0.1: a process that ends with the one that started it, however that ends.

Prefect's own temporary servers outlive a killed parent, and every process of a pool starts one of its own.
"""

import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simic import durable
from simic.errors import SimicError
from simic.pipeline import up
from simic.pipeline.paths import Workspace

START_SECONDS = 300.0  # 10 on an idle machine


@contextmanager
def named(project: Workspace, folder: Path) -> Iterator[None]:
    """PREFECT_API_URL names a server from here on: it may do so already, else this project's `simic up` where it runs,
    else a new one, whose state is in ``folder`` as long as it runs. To be entered before Prefect is imported.
    """
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")  # the study prints its own progress
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "error")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if "PREFECT_API_URL" in os.environ:
        yield
    elif durable.holder(project.root / ".prefect" / "up.lock"):
        os.environ["PREFECT_API_URL"] = f"http://{up.HOST}:{up.configured_port(project.root)}/api"
        yield
    else:
        with _new(folder) as url:
            os.environ["PREFECT_API_URL"] = url
            yield


@contextmanager
def _new(folder: Path) -> Iterator[str]:
    shutil.rmtree(folder, ignore_errors=True)  # of a study that was killed
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind((up.HOST, 0))
        port = probe.getsockname()[1]
    try:
        with _started(port, folder) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _started(port: int, folder: Path) -> Iterator[str]:
    url, log = f"http://{up.HOST}:{port}/api", folder / "server.log"
    environment = os.environ | {"PREFECT_HOME": str(folder.resolve()), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "simic.study.server", str(port)]
    with (
        log.open("wb") as output,
        # a group of its own: Ctrl-C is for the study, which still reports to it
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, process_group=0
        ) as server,
    ):
        try:
            _await(server, url, log)
            yield url
        finally:
            server.kill()


def _await(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(url):
        if server.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(said) if line.strip()), "(nothing)")
            raise SimicError(f"Prefect's server did not start; it last said: {last}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """`prefect server start`, until the parent closes the pipe, which its death does too."""

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.argv[1:] = ["server", "start", "--host", up.HOST, "--port", sys.argv[1], "--no-ui", "--no-services"]
    runpy.run_module("prefect", run_name="__main__")


if __name__ == "__main__":
    main()
