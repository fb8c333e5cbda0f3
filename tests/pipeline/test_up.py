"""`simic up` around its children: ports, order of stopping, leftovers. With its real children: tests/flows."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simic import durable
from simic.cli import app
from simic.errors import SimicError
from simic.pipeline import up
from simic.pipeline.paths import UI_VARIABLE
from tests.helpers import ROOT


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which something that is not Prefect listens."""
    with socket.socket() as listener:
        listener.bind((up.HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


def project(folder: Path) -> Path:
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return folder


def test_taken_port_is_named_and_how_to_change_it(taken: int, tmp_path: Path) -> None:
    with pytest.raises(SimicError, match=f"port {taken} for Prefect is taken by another program.*--port {taken + 1}"):
        up.run(project(tmp_path), taken, 5999)
    assert not (tmp_path / ".prefect" / "up.children").exists()


@pytest.mark.parametrize("port", ["99999", "0", "abc"])
def test_a_port_that_is_none_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, ["up", "--port", port]).exit_code == 2
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
    if port != "0":  # which is no port, so the usual one
        with pytest.raises(SimicError, match=r"^PREFECT_API_URL = 'http://127.0.0.1:.*; must be as http://"):
            up.configured_port(ROOT)


def test_second_supervisor_of_a_checkout_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / ".prefect" / "up.lock"
    with durable.locked(lock, "runs simic up"), pytest.raises(SimicError, match="which runs simic up"):
        up.run(project(tmp_path), None, 5999)


def test_port_is_the_one_that_commands_talk_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert up.configured_port(ROOT) == 4200
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4321/api")
    assert up.configured_port(ROOT) == 4321
    with pytest.raises(SimicError, match=r"run from the project's root"):
        up.configured_port(tmp_path)


CHILD = """
import signal, sys, time
from pathlib import Path
def stop(*_):
    time.sleep(0.2)
    with Path("ended").open("a") as file: file.write(sys.argv[1] + " ")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
Path("ready." + sys.argv[1]).touch()
time.sleep(60)
"""


def test_death_of_a_child_is_noticed_and_the_runner_ends_before_the_server_it_reports_to(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    supervised = up.Supervisor(tmp_path, 4200, 5100)
    assert supervised._environment()[UI_VARIABLE] == "http://127.0.0.1:5100"
    for name in ("server", "mlflow", "runner"):
        child = supervised._spawn(name, "child", name)
        supervised._await(child, (tmp_path / f"ready.{name}").exists)
    os.kill(supervised.children[1].pid, signal.SIGKILL)
    died = supervised.watch()
    supervised.stop()
    assert died is not None and died.name == "mlflow"
    assert (tmp_path / "ended").read_text() == "runner server "
    assert not (tmp_path / ".prefect" / "up.children").exists()


def test_child_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(up, "_command", lambda pid: "")  # as for a moment after its start
    (tmp_path / "child.py").write_text("raise SystemExit('no such luck')")
    supervised = up.Supervisor(tmp_path, 4200, 5000)
    child = supervised._spawn("server", "child")
    with pytest.raises(SimicError, match=r"the server did not start; its log .*server\.log ends with: no such luck"):
        supervised._await(child, lambda: False)


def test_children_of_a_killed_supervisor_are_stopped_and_strangers_are_not(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").touch()
    (tmp_path / "flows" / "serve.py").write_text(CHILD)
    command = [sys.executable, "-m", "flows.serve", "runner"]
    left = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    reaper = threading.Thread(target=left.wait)  # as init does for orphans
    reaper.start()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        (tmp_path / ".prefect").mkdir()
        (tmp_path / ".prefect" / "up.children").write_text(f"{stranger.pid} server\n{left.pid} runner")
        while not (tmp_path / "ready.runner").exists():
            time.sleep(0.02)
        up.stop_leftovers(tmp_path)
        assert stranger.poll() is None
        stranger.kill()
    reaper.join(timeout=5)
    assert (tmp_path / "ended").read_text() == "runner "
    assert not (tmp_path / ".prefect" / "up.children").exists()
