"""`simic doctor`: are machine and checkout fit for a run, and is what is stored sound? One line per question."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from simic import params
from simic.errors import SimicError
from simic.pipeline import dvc_record, up
from simic.pipeline.answers import Answer
from simic.pipeline.paths import Workspace

FREE_GIB = 2.0


def examine(workspace: Workspace) -> list[Answer]:
    """Every answer, in the order in which to put things right."""
    questions = (_packages, _params, _dvc, _disk, _threads, _unfinished, _ports)
    return [question(workspace) for question in questions]


def stored(run: Path) -> list[Answer]:
    """What a project, or a folder of its .simic/work, has on disk; SimicError where it is neither."""
    from simic.pipeline import stored as storage

    return storage.examine(run)


def _packages(_: Workspace) -> Answer:
    def ask() -> str:
        versions = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", "prefect", "mlflow", "dvc"))
        try:
            return ", ".join((f"python {platform.python_version()}", *versions))
        except importlib.metadata.PackageNotFoundError as missing:
            raise SimicError(f"{missing.name} is not installed; pip install 'simic[pipeline]'") from None

    return _asked("packages", ask)


def _params(workspace: Workspace) -> Answer:
    return _asked("params.yaml", lambda: f"valid, rng_seed {params.load(workspace.params).rng_seed}")


def _dvc(workspace: Workspace) -> Answer:
    def ask() -> str:
        stale = dvc_record.is_stale(workspace.root, "prepare")
        return "prepare is out of date" if stale else "prepare is up to date"

    return _asked("dvc", ask)


def _disk(workspace: Workspace) -> Answer:
    free = shutil.disk_usage(workspace.root).free / 2**30
    writable = os.access(workspace.root, os.W_OK)
    return Answer("disk", writable and free >= FREE_GIB, f"{free:.1f} GiB free, {'' if writable else 'not '}writable")


def _threads(_: Workspace) -> Answer:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU (none is needed)"
    return Answer("compute", True, f"{os.cpu_count()} CPUs, {torch.get_num_threads()} torch threads, {device}")


def _unfinished(workspace: Workspace) -> Answer:
    def ask() -> str:
        from simic.pipeline import leftovers

        left = leftovers.found(workspace)
        return "; ".join("the next training goes on with it" if not e.changed else leftovers.told(e) for e in left)

    answer = _asked("unfinished training", ask)
    return answer if answer.seen else Answer(answer.question, answer.well, "none")


def _ports(workspace: Workspace) -> Answer:
    def ask() -> str:
        ports = (up.configured_port(workspace.root), up.MLFLOW_PORT)
        taken = [str(port) for port in ports if not up.is_free(port)]
        if taken:
            raise SimicError(f"taken: {', '.join(taken)}")
        return "free"

    return _asked("ports for simic up", ask)


def _asked(question: str, ask: Callable[[], str]) -> Answer:
    try:
        return Answer(question, True, ask())
    except SimicError as error:
        return Answer(question, False, str(error))
