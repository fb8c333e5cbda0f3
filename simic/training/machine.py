"""Set and describe what numbers depend on beside the params: device, threads, versions; in every checkpoint."""

import ctypes
import os
import platform
from importlib.metadata import version

import torch
from pydantic import BaseModel, ConfigDict

from simic import threads
from simic.errors import SimicError
from simic.params import Runtime

M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
M_MMAP_THRESHOLD = -3
ADOPTED = ("group", "cores")  # a resume takes over the groups, and cores change nothing
LIBRARIES = ("torch", "numpy", "safetensors", "gymnasium", "pydantic")


class Machine(BaseModel):
    """What the bits of a training depend on; a difference makes a resume inexact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    python: str
    libraries: dict[str, str]
    cpu_capability: str  # the vector instructions torch uses
    threads: int
    device: str
    tf32: bool
    backend: str  # of the population, as asked for
    group: int  # hosts that are computed together, in each process of torchrun
    ranks: int = 1  # processes of torchrun
    cores: int = 1  # that work at once in a rank: no difference to the result

    def differences(self, later: "Machine") -> dict[str, str]:
        """List the fields that differ, each as "old → new"."""
        # Libraries beside the fields, so that a difference names the one that changed.
        old, new = (
            {**machine.libraries, **machine.model_dump(exclude={"libraries"})}
            for machine in (self, later)
        )
        names = [
            name for name in old | new if old.get(name) != new.get(name) and name not in ADOPTED
        ]
        return {name: f"{old.get(name)} → {new.get(name)}" for name in names}


def configure(runtime: Runtime) -> torch.device:
    """Set threads, deterministic algorithms and float32 precision of the process; return the device to train on."""
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise SimicError("runtime.device = 'cuda': torch sees no CUDA device; use cpu or auto")
    # The device; then what every number depends on, set once for the process.
    name = (
        ("cuda" if torch.cuda.is_available() else "cpu")
        if runtime.device == "auto"
        else runtime.device
    )
    _keep_freed_memory()
    if runtime.threads != "auto":
        torch.set_num_threads(runtime.threads)
    # Read by cuBLAS when its first handle is made; deterministic algorithms demand it.
    # Equal runs must give equal bits: operations without a fixed order are refused.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Not use_deterministic_algorithms: that imports inductor, which nothing here uses and which takes 2 seconds.
    torch.set_deterministic_debug_mode("error")
    # It would write NaN into every new buffer to show reads before writes: memory traffic without effect on results.
    # setattr: a property that torch puts on its module when it is imported, unknown to type checkers.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    # The older of torch's two interfaces: after the newer one (fp32_precision) torch.export refuses to run.
    torch.backends.cuda.matmul.allow_tf32 = runtime.tf32
    torch.backends.cudnn.allow_tf32 = runtime.tf32
    return torch.device(name)


def _keep_freed_memory() -> None:
    """Let the C library keep what was freed for the next allocation, where it has such a setting (glibc).

    By default glibc returns large blocks to the system, which hands them out again page by page, zeroed: a quarter of a
    minibatch of small hosts (docs/history/experiments.md).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    # Older versions of glibc refuse more than half of a thread's heap.
    if not mallopt(M_MMAP_THRESHOLD, 2**30):
        mallopt(M_MMAP_THRESHOLD, 2**25)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def describe(runtime: Runtime, device: torch.device, group: int, ranks: int = 1) -> Machine:
    """Describe the machine as ``configure`` and ``worker_layout.hosts_together`` left it.

    Args:
        runtime: Settings of this machine.
        device: The device of training.
        group: Hosts that are computed together.
        ranks: Processes of torchrun.
    """
    return Machine(
        python=platform.python_version(),
        libraries={name: version(name) for name in LIBRARIES},
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        tf32=runtime.tf32,
        backend=runtime.backend,
        group=group,
        ranks=ranks,
        cores=threads.count(),
    )
