"""What does not fit into memory ends with one line that names what to lower."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from simic import memory
from simic.errors import EXIT_REFUSED, SimicError, exit_with_message
from simic.memory import GIB


@pytest.mark.parametrize("allocate", [lambda: torch.empty(1 << 52), lambda: np.empty(1 << 52)])
def test_an_error_of_memory_names_what_to_lower(
    allocate, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end, exit_with_message("simic"):
        allocate()
    assert end.value.code == EXIT_REFUSED
    [line] = capsys.readouterr().err.splitlines()
    assert (
        "out of memory" in line
        and "lower runtime.cores, train.envs, train.batch_size or train.host" in line
    )


def test_another_error_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="shapes"), exit_with_message("simic"):
        raise RuntimeError("shapes differ")


def test_what_is_larger_than_the_memory_is_refused() -> None:
    memory.refuse_too_much("table.csv", GIB // 1024, "its rows")
    with pytest.raises(SimicError, match=r"table\.csv: at least .* GiB of memory; lower its rows"):
        memory.refuse_too_much("table.csv", 1 << 60, "its rows")


def test_the_least_of_machine_container_and_limit_is_what_there_is() -> None:
    program = "from simic.memory import machine_bytes; print(machine_bytes())"
    limit = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({3 * GIB}, {3 * GIB})); "
        + program
    )
    output = subprocess.run(
        [sys.executable, "-c", limit], capture_output=True, text=True, check=True
    ).stdout
    assert int(output) <= 3 * GIB
    assert int(output) <= memory.machine_bytes()
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != 3 * GIB
