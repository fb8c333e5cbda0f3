"""Small tensors: more threads only wait for each other."""

import pytest
import torch
from tiny import tiny_suite


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """For this folder's tests, and put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def bank(tmp_path_factory):
    """A tiny suite, prepared."""
    return tiny_suite(tmp_path_factory.mktemp("tiny"))
