"""What is set for the whole process."""

import subprocess
import sys

import pytest
import torch

from simic.params import Runtime
from simic.training.machine import configure, keep_freed_memory

# Blocks above what glibc would learn to keep by itself (32 MiB).
SCRIPT = """
import resource, sys, torch
from simic.training.machine import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(12 * 2**20)
before = faults()
for _ in range(8):
    torch.ones(12 * 2**20)
print(faults() - before)
"""


def test_an_operation_with_other_results_each_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    configure(Runtime(device="cpu", threads=1))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.slow
def test_freed_memory_is_kept_for_the_next_allocation():
    if not keep_freed_memory():
        pytest.skip("this C library has no mallopt")
    faults = {
        how: int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True).stdout)
        for how in ("kept", "as it is")
    }
    assert faults["kept"] < 0.5 * faults["as it is"]
