"""What one execution puts out, on its way to the client: never more than a bound, and what is left out is said."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from typing import Any

# Of one execution, as the lines that clients read. The kernel is never stopped for a client that reads slowly, so this is kept.
MOST_BYTES = 32 << 20
_MIME_FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


class Outputs:
    """The lines for the client of one execution. ``errored`` says whether it has had an error; it gets one at most."""

    def __init__(self) -> None:
        self.errored = False
        self._lines: deque[bytes] = deque()
        self._room = MOST_BYTES
        self._left_out = 0
        self._closed = False
        self._change = asyncio.Event()

    def stream(self, name: str, text: str, timestamp: str) -> None:
        """Add text of stdout or stderr; what does not fit is left out."""
        if not self._room:
            self.leave_out(len(text.encode("utf-8", "replace")))
            return
        message = {"type": name, "text": text, "timestamp": timestamp}
        if len(line := _line(message)) > self._room:
            fits = text
            while fits and len(line) > self._room:
                fits = fits[: int(len(fits) * self._room / len(line) * 0.99)]
                line = _line({**message, "text": fits})
            self.leave_out(len(text[len(fits) :].encode("utf-8", "replace")))
            self._room = 0
            line = line if fits else b""
        self._room = max(0, self._room - len(line))
        if line:
            self._push(line)

    def leave_out(self, size: int) -> None:
        """Count bytes that were left out."""
        self._left_out += max(0, size)

    def result(self, data: dict[str, Any], *, is_main: bool) -> None:
        """Add a result, by the MIME types of the kernel; one that does not fit is left out whole."""
        found: dict[str, Any] = {"type": "result", "is_main_result": is_main}
        extra = {}
        for mime, value in data.items():
            if value is None or (value == {} and mime.startswith("e2b/")):
                continue
            if (name := _MIME_FIELDS.get(mime)) is None:
                extra[mime] = value
            else:
                found[name] = value
        text = found.get("text")
        if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            found["text"] = text[1:-1]
        line = _line({**found, "extra": extra})
        if len(line) > self._room:
            self.leave_out(len(line))
            return
        self._room -= len(line)
        self._push(line)

    def count(self, number: int) -> None:
        """Say how many executions the kernel has had."""
        self._add({"type": "number_of_executions", "execution_count": number})

    def error(self, name: str, value: str, traceback: str = "") -> None:
        """Add the error, if there was none yet."""
        if not self.errored:
            self.errored = True
            self._add({"type": "error", "name": name[:1000], "value": value[:100_000], "traceback": traceback[:1_000_000]})

    def close(self) -> None:
        """Say what was left out, and end."""
        if self._closed:
            return
        if self._left_out:
            note = f"\n[gamebox: {self._left_out} bytes of output were left out: one execution may have {MOST_BYTES >> 20} MiB]\n"
            self._add({"type": "stderr", "text": note, "timestamp": ""})
        self._add({"type": "end_of_execution"})
        self._closed = True
        self._change.set()

    async def take(self) -> bytes | None:
        """Return the next lines, None after the last ones."""
        while not self._lines:
            if self._closed:
                return None
            self._change.clear()
            await self._change.wait()
        taken = []
        size = 0
        while self._lines and size < 1 << 20:
            taken.append(self._lines.popleft())
            size += len(taken[-1])
        return b"".join(taken)

    def _add(self, message: dict[str, Any]) -> None:
        self._push(_line(message))

    def _push(self, line: bytes) -> None:
        if not self._closed:
            self._lines.append(line)
            self._change.set()


def _line(message: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(message, allow_nan=False)
    except ValueError:
        text = json.dumps(_plain(message))
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    """Return data without what is no JSON: NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
