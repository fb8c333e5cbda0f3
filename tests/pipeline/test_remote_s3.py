"""Results in an object store: what was pushed comes back byte for byte. Needs `pip install dvc-s3 'moto[server]'`."""

import importlib.util
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from simic import durable
from tests.helpers import free_port
from tests.pipeline.dvc_project import Project

MISSING = [name for name in ("dvc_s3", "moto") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.prove,
    pytest.mark.usefixtures("in_git"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of this machine that speaks S3, with an empty bucket named results."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, **quiet) as server:
        try:
            make_bucket(f"{url}/results")
            yield url
        finally:
            server.terminate()


def make_bucket(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5):
                return
        except urllib.error.URLError:
            assert time.monotonic() < deadline, "the server never answered"
            time.sleep(0.2)


def files(folder: Path) -> dict[str, str]:
    return {path.name: durable.sha256(path) for path in sorted(folder.iterdir())}


def test_what_was_pushed_to_s3_comes_back_byte_for_byte(tmp_path: Path, endpoint: str) -> None:
    project = Project(tmp_path, f"{sys.executable} train.py")
    project.dvc("remote", "add", "-d", "results", "s3://results/simic")
    project.dvc("remote", "modify", "results", "endpointurl", endpoint)
    project.dvc("repro", "-q")
    project.commit()
    made = files(tmp_path / "telemetry")
    assert set(made) == {"curves.csv", "metrics.json"}
    assert project.dvc("push").strip() == "3 files pushed"  # and the list of the folder
    for place in ("telemetry", ".dvc/cache"):
        shutil.rmtree(tmp_path / place)
    assert not (tmp_path / "telemetry").exists()
    project.dvc("pull", "-q")
    assert files(tmp_path / "telemetry") == made
    assert project.dvc("status").strip() == "Data and pipelines are up to date."
