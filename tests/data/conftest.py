"""A site that publishes files, and a small MNIST."""

import gzip
import http.client
import io
from dataclasses import dataclass, field
from email.message import Message
from urllib.error import HTTPError

import pytest
from raw_files import digits_like, idx_bytes


@pytest.fixture(scope="session")
def mnist_files() -> dict[str, bytes]:
    """The four files of a small MNIST: 60 training and 40 test images of 6×6 pixels."""
    files = {}
    for part, n in (("train", 60), ("t10k", 40)):
        for name, array in zip(("images-idx3", "labels-idx1"), digits_like(n, seed=n), strict=True):
            files[f"{part}-{name}-ubyte.gz"] = gzip.compress(idx_bytes(array), mtime=0)
    return files


@dataclass
class Official:
    """The official site; ``asked`` lists the names that were requested, in order."""

    url: str = "http://official/"
    files: dict[str, bytes] = field(default_factory=dict)
    fault: http.client.HTTPException | OSError | None = None
    asked: list[str] = field(default_factory=list)

    def open(self, url: str, timeout: float) -> io.BytesIO:
        name = url.removeprefix(self.url)
        self.asked.append(name)
        if self.fault is not None:
            raise self.fault
        if name not in self.files:
            raise HTTPError(url, 404, "Not Found", Message(), None)
        return io.BytesIO(self.files[name])


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Official:
    site = Official()
    monkeypatch.setattr("urllib.request.urlopen", site.open)
    return site
