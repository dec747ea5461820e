"""Server-sent events, as a service sends the output of a command and the states of sandboxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sandbox.errors import SandboxUnavailableError

# More than any event of a service has: the envelope of a command is one.
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """One event; ``id`` is what ``Last-Event-ID`` takes to go on after it, "" if the service gave none yet."""

    name: str
    data: str
    id: str


def parse_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of a stream; comments and an event that was cut off are dropped.

    Raises SandboxUnavailableError for an event that does not end.
    """
    name, data, ident = "", list[str](), ""
    for line in _lines(chunks):
        if not line:
            if data:
                yield Event(name or "message", "\n".join(data), ident)
            name, data = "", []
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            name = value
        elif key == "data":
            data.append(value)
        elif key == "id" and "\0" not in value:
            ident = value


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a stream whose lines end with LF or CRLF."""
    held, size = list[bytes](), 0
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield b"".join([*held, line]).rstrip(b"\r").decode("utf-8", "replace")
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > MOST_BYTES:
            raise SandboxUnavailableError("service_failed", "The service sent an event that is too long.")
