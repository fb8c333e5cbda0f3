"""A Chromium without a window, told what to do by its DevTools protocol (https://chromedevtools.github.io)."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
QUIET = ("disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update",
         "disable-sync", "no-sandbox", "remote-debugging-port=0")  # fmt: skip
TOLD = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.requestWillBeSent")
SECONDS = 60


class Tab:
    """One page; ``events`` are what it logged, printed, threw and asked for."""

    def __init__(self, socket: ClientConnection):
        self._socket, self._calls, self.events = socket, 0, list[dict[str, Any]]()
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": params}))
        return self._until(lambda message: message.get("id") == self._calls)["result"]

    def _until(self, wanted: Any) -> dict[str, Any]:
        while True:
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if message.get("method") in TOLD:
                self.events.append(message)
            if wanted(message):
                return message

    def open(self, page: Path, width: int, scheme: str = "light", medium: str = "screen") -> None:
        """Loads it anew in a window of so many pixels."""
        self.events.clear()
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", media=medium, features=[feature])
        self._call("Page.navigate", url=page.as_uri())
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    @property
    def asked_for(self) -> list[str]:
        """Addresses of all requests."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """What it logged, printed or threw."""
        return [event["params"] for event in self.events if event["method"] != "Network.requestWillBeSent"]


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A browser with a new profile there, which is ended afterwards."""
    command = [PROGRAM, "--headless", f"--user-data-dir={profile}", *(f"--{word}" for word in QUIET), "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(m[1] for line in process.stderr if (m := re.search(r"listening on ws://([^/]+)/", line)))
            with urllib.request.urlopen(f"http://{address}/json", timeout=SECONDS) as answer:
                pages = [each for each in json.load(answer) if each["type"] == "page"]
            with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
