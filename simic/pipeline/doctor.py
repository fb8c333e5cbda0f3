"""`simic doctor`: check whether machine and checkout are fit for a run, and what is stored is whole."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from simic import params
from simic.errors import SimicError
from simic.pipeline import dvc_record, up
from simic.pipeline.paths import Workspace
from simic.pipeline.storage_checks import Answer

FREE_GIB = 2.0


def examine(workspace: Workspace) -> list[Answer]:
    """Every answer, in the order in which to put things right."""
    return [
        _asked("packages", _packages),
        _asked("params.yaml", lambda: f"valid, rng_seed {params.load(workspace.params).rng_seed}"),
        _asked("dvc", lambda: _dvc(workspace.root)),
        _disk(workspace.root),
        _compute(),
        _asked("unfinished training", lambda: _unfinished(workspace)),
        _asked("ports for simic up", lambda: _ports(workspace.root)),
    ]


def _asked(question: str, ask: Callable[[], str]) -> Answer:
    try:
        return Answer(question, True, ask())
    except SimicError as error:
        return Answer(question, False, str(error))


def _packages() -> str:
    try:
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "prefect", "mlflow", "dvc")]
    except importlib.metadata.PackageNotFoundError as missing:
        raise SimicError(f"{missing.name} is not installed; pip install 'simic-grow[pipeline]'") from None
    return ", ".join((f"python {platform.python_version()}", *versions))


def _dvc(root: Path) -> str:
    return "prepare is out of date" if dvc_record.is_stale(root, "prepare") else "prepare is up to date"


def _disk(root: Path) -> Answer:
    free, writable = shutil.disk_usage(root).free / 2**30, os.access(root, os.W_OK)
    return Answer("disk", writable and free >= FREE_GIB, f"{free:.1f} GiB free, {'' if writable else 'not '}writable")


def _compute() -> Answer:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU (none is needed)"
    return Answer("compute", True, f"{os.cpu_count()} CPUs, {torch.get_num_threads()} torch threads, {device}")


def _unfinished(workspace: Workspace) -> str:
    from simic.pipeline import stale_runs

    found = stale_runs.unfinished(workspace)
    return "; ".join(each.line() if each.stale else "the next training goes on with it" for each in found) or "none"


def _ports(root: Path) -> str:
    taken = [str(port) for port in (up.configured_port(root), up.MLFLOW_PORT) if not up.is_free(port)]
    if taken:
        raise SimicError(f"taken: {', '.join(taken)}")
    return "free"
