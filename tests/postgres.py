"""A real Postgres, of the machine's packages, in a folder of its own that goes with it."""

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import free_port

BIN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


@dataclass(frozen=True)
class Postgres:
    """A cluster in a folder; only root can start it, as the user whose name the packages use."""

    folder: Path
    port: int

    def uri(self, scheme: str = "postgresql") -> str:
        return f"{scheme}://postgres@127.0.0.1:{self.port}/postgres"

    def control(self, *arguments: str) -> None:
        log = self.folder.with_name("postgres.log")
        command = [str(BIN[0] / "pg_ctl"), "-D", str(self.folder), "-l", str(log), "-w", *arguments]
        subprocess.run(["runuser", "-u", "postgres", "--", *command], check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        # The cluster is thrown away: what it has said is written need not survive the machine.
        self.control("-o", f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -F", "start")


@contextlib.contextmanager
def a_postgres() -> Iterator[Postgres]:
    """A running one; the test is skipped where there can be none."""
    if not BIN or os.geteuid() != 0:
        pytest.skip("needs a Postgres of the machine's packages, and root to start it as its user")
    port = free_port()
    folder = Path("/tmp") / f"simic-postgres-{port}"  # pytest's own folders are closed to other users
    folder.mkdir()
    shutil.chown(folder, "postgres", pwd.getpwnam("postgres").pw_gid)
    found = Postgres(folder / "data", port)
    try:
        found.control("-o", "-A trust -U postgres", "init")
        found.start()
        yield found
        found.control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
