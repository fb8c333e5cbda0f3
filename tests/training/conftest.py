"""Small real runs: real digits, real hosts, real policy."""

import shutil
from pathlib import Path

import pytest

from simic.data.prepare import prepare
from tests.helpers import made_once
from tests.standard import Prepare
from tests.training.small_runs import run


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    def make(folder: Path) -> None:
        prepare(Prepare(samples=800), 1, folder / "prepared", folder)

    return made_once(tmp_path_factory, "digits", make) / "prepared"


@pytest.fixture(scope="session")
def finished(prepared, tmp_path_factory) -> Path:
    """The work directory of an uninterrupted run; read only."""
    return made_once(tmp_path_factory, "finished", lambda work: run(work, prepared))


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """One that may be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "work"))
