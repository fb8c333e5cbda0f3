"""`make serve` refuses files of Prefect that are damaged, in one line, before it starts anything."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows import up
from simic.errors import SimicError
from tests.helpers import ROOT


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (up.SETTINGS_FILE, b"[api"),
        (up.SETTINGS_FILE, b"\xff"),
        (up.PROFILES_FILE, b"active = "),
        (up.DATABASE, bytes(5000)),
    ],
    ids=["settings", "settings of bytes", "profiles", "database"],
)
def test_a_damaged_file_is_named(
    file: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    up._ensure_password()
    up._ensure_password()  # what it has written itself is good
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with pytest.raises(SimicError, match=f"{file.name}: .*; (repair or remove|move) it"):
        up._ensure_password()


@pytest.mark.parametrize("end", ["one of them ends", "SIGTERM", "SIGHUP"])
def test_what_a_procfile_names_runs_with_our_settings_and_ends_together(
    end: str, tmp_path: Path
) -> None:
    """What honcho is for, without the servers, which take a minute to start."""
    last = "until [ -e stop ]; do sleep 0.1; done; exit 3"
    lines = ("server: echo at $PREFECT_API_URL; exec sleep 100", f"runner: {last}")
    (tmp_path / "Procfile").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "flows.up"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PORT": "4321"}
    log = (tmp_path / "log").open("w+b")
    with log, subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log) as process:
        deadline = time.monotonic() + 60
        # Honcho stops those whose start it has heard of.
        while (tmp_path / "log").read_bytes().count(b" started (pid=") < len(lines):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        if end == "one of them ends":
            (tmp_path / "stop").touch()
        else:
            process.send_signal(signal.Signals[end])
        try:
            code = process.wait(30)
        finally:
            process.kill()
        log.seek(0)
        output = log.read()
    assert code == (3 if end == "one of them ends" else 143), output
    assert b"at http://127.0.0.1:4321/api" in output
    left = [item.pid for item in psutil.process_iter(["cwd"]) if item.info["cwd"] == str(tmp_path)]
    assert left == []
