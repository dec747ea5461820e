"""The program itself: its first line on standard input is the setting, and each further one a request.

It answers the setting with {"ready": true, "confined": bool}, or {"failed": why}, and each request with one line. It ends when its
input ends, and with it the browser.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
from typing import Any

from .chromium import Chromium, find_program, make_folder
from .confinement import confine, protect_from_others
from .devtools import BrowserLostError, LateError, RefusedError
from .session import Session


def main() -> int:
    """Start the browser and answer requests until there are no more."""
    protect_from_others()
    lines = Lines(sys.stdin.fileno())
    setting = lines.next_line(None)
    if setting is None:
        return 0
    folder = make_folder(setting["base"])
    os.chdir(folder)
    program = find_program()
    confined = confine(folder, tuple(setting["readable"]))
    browser: Chromium | None = None
    try:
        if program is None:
            say({"failed": "there is no Chromium"})
            return 1
        browser = Chromium(program, folder, setting["proxy"], setting["direct"])
        try:
            session = Session(browser, folder)
            say({"ready": True, "confined": confined})
            while (request := lines.next_line(session)) is not None:
                say(session.handle(request))
        except (BrowserLostError, LateError, RefusedError) as error:
            say({"failed": str(error) or type(error).__name__, "log": browser.log_tail()})
            return 1
        return 0
    finally:
        if browser is not None:
            browser.end()
        shutil.rmtree(folder, ignore_errors=True)


class Lines:
    """Lines of JSON from a descriptor. While none is there, the browser's events are handled."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()

    def next_line(self, session: Session | None) -> dict[str, Any] | None:
        """Return the next line, or None at the end. Raises BrowserLostError."""
        while b"\n" not in self._buffer:
            watched = [self._fd] if session is None else [self._fd, session.tabs.tools.fd]
            ready = select.select(watched, [], [])[0]
            if session is not None and session.tabs.tools.fd in ready:
                session.tabs.tools.handle_events()
            if self._fd in ready:
                data = os.read(self._fd, 1 << 18)
                if not data:
                    return None
                self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        found: dict[str, Any] = json.loads(line)
        return found


def say(answer: dict[str, Any]) -> None:
    """Write an answer."""
    data = memoryview(json.dumps(answer).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main())
