"""Small real runs: real digits, real hosts, real policy."""

import shutil
from pathlib import Path

import pytest

from simic.data.prepare import prepare
from tests.standard import Prepare
from tests.training.small_runs import run


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "prepared"
    prepare(Prepare(samples=800), 1, folder, folder.parent)
    return folder


@pytest.fixture(scope="session")
def finished(prepared, tmp_path_factory) -> Path:
    """The work directory of an uninterrupted run; read only."""
    work = tmp_path_factory.mktemp("finished")
    run(work, prepared)
    return work


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """One that may be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "work"))
