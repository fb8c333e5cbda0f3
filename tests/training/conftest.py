"""Small real runs: real digits, real hosts, real policy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_runs import small_params

from simic.data.prepare import prepare
from simic.params import Prepare
from simic.training.session import open_session
from simic.training.trainer import train


@pytest.fixture(autouse=True)
def process_settings() -> Iterator[None]:
    """A session sets threads and determinism for the process; other tests must not inherit that."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "prepared"
    prepare(Prepare(), 1, folder, folder.parent)
    return folder


@pytest.fixture(scope="session")
def finished(prepared, tmp_path_factory) -> Path:
    """The work directory of an uninterrupted run; read only."""
    work = tmp_path_factory.mktemp("finished")
    with open_session(small_params(), work, prepared) as session:
        train(session)
    return work


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """One that may be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "work"))
