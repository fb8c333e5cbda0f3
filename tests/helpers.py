"""Share helpers of several folders: rows, projects in a folder of their own, processes, a free port."""

import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from filelock import FileLock

from simic import seals
from simic.params import Params
from simic.pipeline import dvc_record
from simic.pipeline.paths import Workspace
from simic.telemetry.columns import COMPONENTS, STEPS, Columns, EventColumns
from simic.telemetry.recorder import Iteration
from simic.telemetry.rows import UpdateRow
from simic.training.observers import Observer

ROOT = Path(__file__).parents[1]
# Processes of this context fork from one that has imported these and computed nothing.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch._inductor.config",
        "torch.export",
        "simic.audit.replay",
        "simic.evaluation.headroom",
        "simic.pipeline.engine",
        "simic.pipeline.stages",
        "simic.pipeline.tracking",
        "simic.training.card",
        "simic.training.trainer",
    ]
)
OUTPUTS = ("data", "checkpoints", "models", "telemetry", "reports")
FOLDERS = ("simic", "flows", "extensions", "examples", ".dvc")
FILES = (".dvcignore", "Procfile", "params.yaml", "dvc.yaml", "pyproject.toml")
# Outputs of equal runs that differ: they say when a run was made, and how, or have the hash of what does.
DIFFER = {"timing.jsonl", "run.json", "train.json", "report.html", "report.md"}
_TOY_STAGE = (
    '  {0}: {{cmd: "exit 9", deps: [{1}], params: [{2}], outs: [{3}, reports/seals/{0}.json]}}'
)
DVC_YAML = "\n".join(
    (
        "stages:",
        _TOY_STAGE.format("prepare", "", "rng_seed, prepare", "data/prepared"),
        _TOY_STAGE.format("headroom", "data/prepared", "headroom", "reports/headroom.json"),
        _TOY_STAGE.format("train", "data/prepared", "rng_seed, train", "checkpoints"),
        _TOY_STAGE.format("evaluate", "checkpoints", "evaluate", "reports/evaluation.json"),
        _TOY_STAGE.format("audit", "checkpoints", "audit", "reports/report.md"),
    )
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _environment(processes: int) -> dict[str, str]:
    """Make what torchrun sets for every process."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(processes),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


@contextmanager
def started(
    command: list[str], folder: Path | None = None, processes: int = 2
) -> Iterator[list[subprocess.Popen]]:
    """Python processes as torchrun starts them, with the environment variables it sets; none is left at the end."""
    shared = _environment(processes)
    running = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.terminate()  # a launcher ends those it has started, within 30 seconds
        for process in running:
            try:
                process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def in_processes(folder: Path, *tasks: Callable[[], None]) -> str:
    """Do each task in a fresh process, which has nothing to import; return all that they print, into ``folder``."""
    logs = [folder / f"process-{number}.log" for number in range(len(tasks))]
    processes = [
        FORKING.Process(target=_printing, args=(log, task))
        for log, task in zip(logs, tasks, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
        process.kill()
        process.join()
    output = "".join(log.read_text() for log in logs)
    assert {process.exitcode for process in processes} == {0}, output
    return output


def _printing(log: Path, task: Callable[[], None]) -> None:
    print_to(log)
    task()


def in_two_ranks(folder: Path, task: Callable[[], None]) -> str:
    """Do a task in two processes as torchrun starts them; return all that they print, into ``folder``."""
    shared = _environment(2)
    return in_processes(folder, *(partial(_as_rank, rank, shared, task) for rank in range(2)))


def _as_rank(rank: int, shared: dict[str, str], task: Callable[[], None]) -> None:
    os.environ |= shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    task()


def print_to(file: Path) -> None:
    """Send all that this process prints to a file."""
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)


def some(cases: Sequence[Any], *quick: Any) -> list[Any]:
    """Cases of a test of which those ``kept`` are tried every time and the others by make test-slow."""
    assert all(case in cases for case in quick)
    values = [(case, case if isinstance(case, tuple) else (case,)) for case in cases]
    return [
        pytest.param(*value, marks=[] if case in quick else [pytest.mark.slow])
        for case, value in values
    ]


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Make a folder in one process of a test run, to be read by all; each folder of tests has names of its own."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    # By its file: pytest and an import give a conftest.py two module names.
    folder = shared / f"{Path(make.__code__.co_filename).parent.name}-{name}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            begun = folder.with_name(f"{folder.name}-begun")
            begun.mkdir()
            make(begun)
            begun.rename(folder)
    return folder


def dvc_in_process(patch: pytest.MonkeyPatch) -> None:
    """Let simic ask DVC in this process: every other one imports it anew."""
    from dvc.dependency import param
    from dvc.repo import Repo

    as_a_process, load = dvc_record._dvc, param.load_path

    def dvc(root: Path, *arguments: str, params: Path | None = None) -> str:
        if arguments[0] not in ("status", "commit"):
            return as_a_process(root, *arguments)
        with chdir(root), Repo(root) as repo:  # which looks for stages in the current folder
            if arguments[0] == "status":
                return json.dumps(repo.status(arguments[2:]))
            with pytest.MonkeyPatch.context() as loading:
                loading.setattr(param, "load_path", lambda _, fs, **options: load(str(params), fs))
                repo.commit(arguments[-1], force=True, relink=False)
        return ""

    patch.setattr(dvc_record, "_dvc", dvc)


def outputs(processes: list[subprocess.Popen], timeout: float = 120) -> list[str]:
    """Return what processes print until they end."""
    return [process.communicate(timeout=timeout)[0] for process in processes]


def copy_checkout(target: Path) -> None:
    """As from an unpacked archive: what runs the stages, without git."""
    ignore = shutil.ignore_patterns("tmp", "cache", "config.local")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, target)


def simic_command(folder: Path) -> None:
    """``bin/simic`` in a project, for a PATH, as an installation has it."""
    command = folder / "bin" / "simic"
    command.parent.mkdir()
    # Guarded, since a process that trains hosts imports it.
    guarded = "from simic.__main__ import main\nif __name__ == '__main__':\n    main()\n"
    command.write_text(f"#!{sys.executable}\n{guarded}")
    command.chmod(0o755)


def contents(root: Path, folders: Sequence[str] = OUTPUTS) -> dict[str, bytes]:
    """Every output that must not depend on who computed it, and when, by its place."""
    files = [file for folder in folders for file in (root / folder).rglob("*") if file.is_file()]
    return {
        str(file.relative_to(root)): file.read_bytes() for file in files if file.name not in DIFFER
    }


def toy_project(folder: Path) -> Workspace:
    """With the shipped params, and stages that DVC could not run."""
    (folder / ".dvc").mkdir()
    (folder / ".dvc" / "config").write_bytes((ROOT / ".dvc" / "config").read_bytes())
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    return Workspace(folder)


class Toys:
    """Stage functions with the interface of the real ones, which note that they ran."""

    MAKES: ClassVar = {
        "prepare": "data/prepared/x",
        "headroom": "reports/headroom.json",
        "train": "checkpoints/toy",
        "evaluate": "reports/evaluation.json",
        "audit": "reports/report.md",
    }

    def __init__(self) -> None:
        self.ran: list[str] = []

    def make(
        self,
        name: str,
        params: Params,
        workspace: Workspace,
        observers: Sequence[Observer] = (),
        stop: threading.Event | None = None,
        fresh: bool = False,
    ) -> None:
        """Write a file of a few bytes that a stage makes; training is given the last three."""
        self.ran.append(f"{name} fresh" if fresh else name)
        path = workspace.root / self.MAKES[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{params.rng_seed}")

    def stages(self, *names: str) -> dict[str, Callable[..., None]]:
        """Stage functions that seal what they made, by name."""

        def sealed(
            name: str, params: Params, workspace: Workspace, *observers: Any, **options: Any
        ) -> None:
            identity = seals.identify(workspace.root, name, params)
            self.make(name, params, workspace, *observers, **options)
            seals.write(workspace.root, identity)

        return {name: partial(sealed, name) for name in names}


def update(iteration: int, validation: float = float("nan")) -> UpdateRow:
    return UpdateRow(
        iteration=iteration, env_steps=10 * iteration, validation_accuracy=validation, best_iteration=None,
        state_chain="", metrics={"policy_loss": 1.0 / (iteration + 1), "grad_norm": float("nan")},
    )  # fmt: skip


def episode(committed: Sequence[float] = (40.0, float("nan"))) -> Columns:
    counted = (
        "params",
        "committed_params",
        "committed_flops",
        "germinated",
        "fossilized",
        "pruned",
    )
    counts = {key: np.array([1, 3]) for key in counted}
    norms = {
        "host_grad_norm": np.array([0.5, 0.7]),
        "seed_grad_norm": np.array([0.2, float("nan")]),
    }
    return {
        "env_id": np.array([0, 1]), "task": np.array([0, 0]), "return": np.array([1.0, 2.0]),
        "length": np.array([5, 5]), "panicked": np.array([False, True]), "committed_accuracy": np.array(committed),
        "score": np.array(committed), "live_accuracy": np.array([50.0, 60.0]), **counts, **norms,
    }  # fmt: skip


def steps(count: int = 3, hosts: int = 2, slots: int = 3) -> Columns:
    """Every column of the table, of numbers that tell step, host and slot apart."""
    host = np.arange(count)[:, None] + 10 * np.arange(hosts)
    slot = host[..., None] + 100 * np.arange(slots)
    described = {name: column for name, column in STEPS.items() if name != COMPONENTS}
    columns = {
        name: (host if column.axes == 2 else slot).astype(column.dtype)
        for name, column in described.items()
    }
    columns |= {
        name: values.astype(np.float32) / 3
        for name, values in columns.items()
        if described[name].dtype == "float"
    }
    return columns | {f"{COMPONENTS}/rent": -host / 7, f"{COMPONENTS}/death": host / 9}


def iteration(number: int, validated: bool = False, count: int = 3, hosts: int = 2) -> Iteration:
    """Return an iteration of two hosts, with one event."""
    place = {
        name: np.array([at]) for name, at in (("step", 1), ("env", 1), ("slot", 2), ("text", 0))
    }
    happened = EventColumns(place, [("germinated", "from DORMANT")])
    return Iteration(
        update(number), steps(count, hosts), episode(), episode() if validated else None, happened
    )
