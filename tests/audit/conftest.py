"""The clean run of every test of the audit, and ways to damage it."""

import pytest

from .synthetic import Plant, clean_run


@pytest.fixture(scope="session")
def clean():
    """The defect-free run."""
    return clean_run()


@pytest.fixture
def plant(clean):
    """Ways to damage a copy of it."""
    return Plant(clean)
