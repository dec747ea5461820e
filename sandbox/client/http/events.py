"""Server-sent events, as a service sends the output of a command and the states of sandboxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandbox.errors import SandboxUnavailableError
from sandbox.frozen import dataclass

EVENTS = "text/event-stream"
# A service comments every 15 s on a stream of events: one that is silent for longer is asked again.
SILENT_SECONDS = 45.0
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
    parser = EventParser()
    for chunk in chunks:
        yield from parser.feed(chunk)


class EventParser:
    """Reads a stream of events, whose lines end with LF or CRLF, chunk by chunk."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._name, self._ident = "", ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that end in the next chunk. Raises SandboxUnavailableError for one that does not end."""
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            whole = b"".join([*self._held, line]).rstrip(b"\r").decode("utf-8", "replace")
            self._held, self._size = [], 0
            if (event := self._take(whole)) is not None:
                yield event
        self._held.append(rest)
        self._size += len(rest)
        if self._size > MOST_BYTES:
            raise SandboxUnavailableError("service_failed", "The service sent an event that is too long.")

    def _take(self, line: str) -> Event | None:
        """Return the event that the line ends, if it ends one."""
        if not line:
            name, data = self._name, self._data
            self._name, self._data = "", []
            return Event(name or "message", "\n".join(data), self._ident) if data else None
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            self._name = value
        elif key == "data":
            self._data.append(value)
        elif key == "id" and "\0" not in value:
            self._ident = value
        return None
