"""``runtime.processes``: so many processes of this machine train together. This one leads and is the only one that
writes; the others are started here, follow it and end with it.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from simic import params as params_module
from simic.errors import SimicError
from simic.params import Params, Runtime
from simic.training import trainer
from simic.training.interrupts import Interrupted
from simic.training.ranks import ALONE, Ranks, joined
from simic.training.session import open_session

READY = "ready"
EXIT_PARTNER_LOST = 4
GRACE_SECONDS = 30  # for a follower to end after its leader
DYING_SECONDS = 2  # what is left of a process whose partners noticed that it has gone


@contextmanager
def gathered(
    params: Params, work_dir: Path, prepared_dir: Path, extensions: Path, fresh: bool = False
) -> Iterator[Ranks]:
    """This process as the first of ``runtime.processes``; the others train with the same params until it is done.

    SimicError when one of them is lost, with its last words; what was saved stays.
    """
    runtime = params.runtime
    if runtime.processes == 1:
        yield ALONE
        return
    if runtime.device != "cpu" and 0 < torch.cuda.device_count() < runtime.processes:
        found = torch.cuda.device_count()
        raise SimicError(f"runtime.processes = {runtime.processes}: must be at most the {found} GPUs of this machine")
    with tempfile.TemporaryDirectory() as folder, _shared_machine(runtime) as threads:
        meeting = {"SIMIC_MEETING": f"file://{folder}/meeting", "WORLD_SIZE": str(runtime.processes)}
        own = params.model_copy(update={"runtime": runtime.model_copy(update={"threads": threads})})
        order = {"params": own.model_dump(mode="json"), "extensions": str(extensions.resolve())}
        order |= {"work": str(work_dir.resolve()), "prepared": str(prepared_dir.resolve()), "fresh": fresh}
        followers = [Follower(rank, meeting, order, Path(folder)) for rank in range(1, runtime.processes)]
        try:
            for follower in followers:
                follower.wait_until_ready()
            with joined(runtime, meeting | {"RANK": "0", "LOCAL_RANK": "0"}) as ranks, _complete(followers):
                yield ranks
        finally:
            for follower in followers:
                follower.end()


@contextmanager
def _shared_machine(runtime: Runtime) -> Iterator[int]:
    """Threads of each process, an equal part of what there is unless params say otherwise; and since all processes are
    here, no other network interface is listened on.
    """
    threads, interface = torch.get_num_threads(), os.environ.get("GLOO_SOCKET_IFNAME")
    own = max(1, threads // runtime.processes) if runtime.threads == "auto" else runtime.threads
    torch.set_num_threads(own)
    os.environ["GLOO_SOCKET_IFNAME"] = interface or _loopback()
    try:
        yield own
    finally:
        torch.set_num_threads(threads)
        if interface is None:
            del os.environ["GLOO_SOCKET_IFNAME"]


def _loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


@contextmanager
def _complete(followers: list["Follower"]) -> Iterator[None]:
    """A follower that is gone is what torch's error was about."""
    try:
        yield
    except RuntimeError as error:
        lost = [follower for follower in followers if follower.last_words() is not None]
        if not lost:
            raise
        # Whoever lost a partner died of it: the first cause is one that did not.
        lost.sort(key=lambda follower: follower.lost_a_partner)
        raise SimicError(lost[0].last_words()) from error


class Follower:
    """Another process, in a session of its own: Ctrl-C reaches the leader alone, which tells it."""

    def __init__(self, rank: int, meeting: dict[str, str], order: dict[str, object], folder: Path) -> None:
        self.rank = rank
        self._said = (folder / f"said-{rank}").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "simic.training.team"],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # gone already: wait_until_ready says why
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()  # and left open: when it closes, the leader has gone

    def wait_until_ready(self) -> None:
        """SimicError when it ends before it could join: the leader would wait for it in vain."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise SimicError(self.last_words() or f"training process {self.rank}: ended before it began")

    @property
    def lost_a_partner(self) -> bool:
        """Whether it ended because another one had gone."""
        return self._process.returncode == EXIT_PARTNER_LOST

    def last_words(self) -> str | None:
        """Why it is gone; None if it is there, or ended as it should."""
        try:
            code = self._process.wait(DYING_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        if code == 0:
            return None
        self._said.seek(0)
        words = [line.strip() for line in self._said if line.strip()]
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"training process {self.rank} {how} ({words[-1] if words else 'no output'}); to resume: simic train"

    def end(self) -> None:
        """Wait for it, not for ever."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


def follow() -> None:
    """The whole life of a follower: its orders are a line of its standard input."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_leader, daemon=True).start()
    leader = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a user's code prints is no answer to the leader
    params = params_module.validate(order["params"], "params of the leader", Path(order["extensions"]))
    print(READY, file=leader, flush=True)
    with joined(params.runtime) as ranks:
        work, prepared = Path(order["work"]), Path(order["prepared"])
        with open_session(params, work, prepared, order["fresh"], ranks) as session:
            trainer.train(session)


def _end_with_the_leader() -> None:
    """A leader that was killed cannot say so."""
    sys.stdin.read()
    time.sleep(GRACE_SECONDS / 2)
    os._exit(1)


if __name__ == "__main__":
    try:
        follow()
    except Interrupted:
        pass  # so was the leader, which says it
    except SimicError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_PARTNER_LOST)
