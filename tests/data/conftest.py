"""Builders of raw files, and a server that publishes them."""

import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from raw_files import digits_like, idx_bytes


@pytest.fixture(scope="session")
def mnist_files() -> dict[str, bytes]:
    """The four files of a small MNIST: 60 training and 40 test images of 6×6 pixels."""
    files = {}
    for part, n in (("train", 60), ("t10k", 40)):
        images, labels = digits_like(n, seed=n)
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx_bytes(images), mtime=0)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx_bytes(labels), mtime=0)
    return files


@dataclass
class Official:
    """A web server on this machine; ``asked`` lists the names that were requested, in order."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    missing_bytes: int = 0  # of every answer: the connection ends that much too early
    silent: threading.Event | None = None  # no answer at all until it is set
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Iterator[Official]:
    """The official site, for the time of a test."""
    monkeypatch.setenv("no_proxy", "*")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            site.asked.append(name)
            if site.silent is not None:
                site.silent.wait(30)
            elif name in site.files:
                content = site.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) - site.missing_bytes])
            else:
                self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Official(f"http://127.0.0.1:{server.server_address[1]}/")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield site
        if site.silent is not None:
            site.silent.set()
        server.shutdown()
        thread.join()
