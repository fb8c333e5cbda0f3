"""What is set for the whole process."""

import pytest
import torch

from simic.params import Runtime
from simic.training.machine import configure


def test_an_operation_with_other_results_each_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    configure(Runtime(device="cpu", threads=1))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
