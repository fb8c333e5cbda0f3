"""The clean run of every test of the audit, and ways to damage it."""

import pytest

from .synthetic import Plant, clean_run, publish_run


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Publish the tables of the defect-free run; read only."""
    return publish_run(tmp_path_factory.mktemp("synthetic"))


@pytest.fixture(scope="session")
def clean(published):
    """Return the defect-free run."""
    return clean_run(published)


@pytest.fixture
def plant(clean):
    """Return ways to damage a copy of the clean run."""
    return Plant(clean)
