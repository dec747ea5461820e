"""A real browser without a window, driven by its own protocol: opens a page, presses keys, and says what it complained of."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


class Browser:
    """One page. ``events`` are what the browser told of: console messages, exceptions, requests."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol; its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message: dict[str, Any] = json.loads(self._connection.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, page: Path) -> None:
        """Load a page and wait until it is there."""
        for domain in ("Page", "Runtime", "Log", "Network", "Security"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + 120
        while self.value("document.readyState") != "complete" or not self.value("location.href").startswith("file"):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What an expression is worth in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, gone after the block."""
    assert PROGRAM is not None
    command = [
        PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 120
        while not found.exists() or len(found.read_text().split()) < 2:
            assert process.poll() is None, "the browser ended"
            assert time.monotonic() < deadline, "the browser does not answer"
            time.sleep(0.05)
        port, path = found.read_text().split()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as whole:
            target = Browser(whole).call("Target.createTarget", url="about:blank")["targetId"]
        with connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=None, proxy=None) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait(timeout=20)
