"""The log: a line for each event, as text or JSON, on standard error. A reader that stops reading delays nothing.

A line never has a key, a value of ``env``, a secret or a body: a request is logged with the fields of ``facts``, an exception by
its type and its place, and whatever looks like a key is masked in every line.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Any, Literal

from sandbox.errors import SandboxError
from sandbox.service.clock import iso

from .facts import mask_keys

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
# Lines that wait for a reader of standard error; what comes then is dropped, and counted in a line of its own.
MOST_WAITING = 10_000
CLOSE_SECONDS = 2.0
MOST_CHARS = 2000
# Lines that come within this time are written together: a thread that wakes for each would hold up the next request.
TOGETHER_SECONDS = 0.02
# The request on whose behalf something is logged; tasks that it starts keep it.
current_request: ContextVar[Mapping[str, Any] | None] = ContextVar("current_request", default=None)
_PLAIN = re.compile(r"[!#-\[\]-~]+")
# Exceptions whose messages are of the system or our own. Those of others, such as of a validation, may quote a body.
_KNOWN = (OSError, sqlite3.Error, SandboxError)
# Of other libraries and of the core, which speaks of what is in sandboxes, only what an operator has to know.
_QUIET = {"": logging.WARNING, "sandbox": logging.WARNING, "sandbox.service": logging.INFO}


def log_event(logger: logging.Logger, level: int, message: str, /, **fields: Any) -> None:
    """Log a message with fields of its own."""
    logger.log(level, message, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """One JSON object for each record."""

    def __init__(self, *, with_messages: bool = False) -> None:
        super().__init__()
        self._with_messages = with_messages

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return mask_keys(json.dumps(_data(record, self._with_messages), default=str))


class TextFormatter(JsonFormatter):
    """One line for people: time, level, message, and fields as NAME=VALUE. Control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        data = _data(record, self._with_messages)
        at, level, message = (data.pop(name) for name in ("at", "level", "message"))
        data.pop("logger", None)
        words = [at, f"{level.upper():7}", json.dumps(message)[1:-1], *(f"{name}={_shown(each)}" for name, each in data.items())]
        return mask_keys(" ".join(words))


def _data(record: logging.LogRecord, with_messages: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "at": iso(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage()[:MOST_CHARS],
    }
    fields: Mapping[str, Any] = getattr(record, "fields", None) or {}
    request = current_request.get()
    if request is not None and "request_id" not in fields and "request_id" in request:
        data["request_id"] = request["request_id"]
    data |= {name: value for name, value in fields.items() if value not in (None, "")}
    if record.exc_info is not None and record.exc_info[1] is not None:
        data |= _of_error(record.exc_info[1], with_messages)
    return data


def _of_error(error: BaseException, with_messages: bool) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    says = f": {error}" if with_messages or isinstance(error, _KNOWN) else ""
    return {
        "error": f"{type(error).__name__}{says}"[:MOST_CHARS],
        "traceback": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class LineHandler(logging.Handler):
    """Writes lines in a thread of its own. Nothing waits for it: neither the loop nor, for long, the end of the process."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="gamebox-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have the record written."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        except Exception:  # noqa: BLE001  # as logging.Handler asks for
            self.handleError(record)

    def finish(self) -> None:
        """Write what waits, and end; gives up if nobody reads it."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=CLOSE_SECONDS)
            except queue.Full:
                return
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            time.sleep(TOGETHER_SECONDS)
            lines = [line]
            ended = False
            while not ended and len(lines) < MOST_WAITING:
                try:
                    more = self._lines.get_nowait()
                except queue.Empty:
                    break
                ended = more is None
                lines += [] if more is None else [more]
            dropped, self._dropped = self._dropped, 0
            if dropped:
                record = logging.LogRecord(__name__, logging.WARNING, "", 0, "lines of the log were dropped", None, None)
                record.fields = {"count": dropped}
                lines.append(self.format(record))
            try:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass  # nobody is there to read it
            if ended:
                return


@contextmanager
def logging_to(stream: IO[str] | None, form: Format, level: Level) -> Iterator[None]:
    """Have everything that is logged during the block written to ``stream``, by default standard error."""
    root = logging.getLogger()
    handler = LineHandler(stream or sys.stderr)
    with_messages = level == "debug"
    handler.setFormatter((JsonFormatter if form == "json" else TextFormatter)(with_messages=with_messages))
    loggers = {name: logging.getLogger(name) for name in _QUIET}
    before = {name: logger.level for name, logger in loggers.items()}
    handlers = root.handlers[:]
    root.handlers[:] = [handler]
    wanted = logging.getLevelName(level.upper())
    for name, logger in loggers.items():
        logger.setLevel(wanted if name == "sandbox.service" or with_messages else max(_QUIET[name], wanted))
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for name, logger in loggers.items():
            logger.setLevel(before[name])
        handler.finish()


