"""A guest in this process, at the far end of a socket pair, scripted by a test to answer late, in pieces, too much, or nonsense."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from sandbox.frozen import dataclass
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind


class SocketStream:
    """A ByteStream over a connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._room = select.poll()
        self._room.register(connected, select.POLLOUT)

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        return self._socket.send(data, socket.MSG_DONTWAIT) if self._room.poll(timeout_seconds * 1000) else 0

    def has_room(self, timeout_seconds: float) -> bool:
        room = select.poll()  # its own poll, since another thread may be in ``send``
        room.register(self._socket, select.POLLOUT)
        return bool(room.poll(timeout_seconds * 1000))

    def descriptors(self) -> tuple[int, ...]:
        """See ``WatchedStream``."""
        return (self._socket.fileno(),)

    buffered = 0

    def ready(self, timeout_seconds: float) -> bool:
        """See ``WatchedStream``."""
        return bool(self._poll.poll(timeout_seconds * 1000))

    def receive_into(self, view: memoryview) -> int | None:
        """See ``WatchedStream``."""
        try:
            return self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def receive(self, timeout_seconds: float) -> bytes | None:
        return self._socket.recv(1 << 20) if self.ready(timeout_seconds) else None

    def finish(self) -> None:
        """See ``WatchedStream``."""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed by the other side already
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the descriptor."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class GuestRequest:
    """A request as the guest receives it."""

    channel: int
    operation: str
    args: dict[str, Any]
    blob: bytes


Script = Callable[["ScriptedGuest", GuestRequest], None]


class ScriptedGuest:
    """Serves ``stream`` in a thread: answers the greeting, then calls ``script(guest, request)`` for each request.

    The script answers with ``reply``, ``frame`` or ``raw``, at once or later. ``heard`` collects every other frame as (kind,
    channel, payload). Use the guest as a context manager.
    """

    def __init__(self, script: Script, hello: dict[str, Any] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.stream = SocketStream(ours)
        self.heard: list[tuple[int, int, bytes]] = []
        self.nonce = b""
        self.sequence = 0
        self._hello = {"protocol": wire.PROTOCOL} if hello is None else hello
        self._script = script
        self._socket = theirs
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="scripted-guest", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.hang_up()
        self._thread.join(timeout=10)
        self._socket.close()
        self.stream.release()

    def reply(self, request: GuestRequest, result: Any = None, blob: bytes = b"", **fields: Any) -> None:
        """Send a complete reply with ``result`` and further fields."""
        message = wire.pack_message({"result": result, **fields}, blob)
        for kind, payload in wire.split_message(Kind.REPLY, message):
            self.frame(kind, request.channel, payload)

    def notice(self, request: GuestRequest, event: str) -> None:
        """Send the notice that the request is "queued" or "started"."""
        self.frame(Kind.NOTICE, request.channel, wire.pack_message({"event": event}))

    def frame(
        self, kind: int, channel: int, payload: bytes | memoryview = b"", *, nonce: bytes | None = None, skip: int = 0
    ) -> None:
        """Send one frame, with another ``nonce`` or a sequence number that is off by ``skip`` if these are given."""
        with self._lock:
            data = wire.frame(self.nonce if nonce is None else nonce, self.sequence + skip, kind, channel, payload)
            self.sequence += 1
            self._send(data)

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        with self._lock:
            self._send(data)

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the host has hung up
            self._socket.sendall(data)

    def hang_up(self) -> None:
        """End the pipe."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait_for(self, kind: int, seconds: float = 5.0) -> list[bytes]:
        """Wait for a frame of ``kind``; return the payloads of all of them so far, [] if none came in time."""
        found: list[bytes] = []

        def there() -> bool:
            found[:] = [payload for k, _, payload in self.heard if k == kind]
            return bool(found)

        with self._changed:
            self._changed.wait_for(there, seconds)
        return found

    def _serve(self) -> None:
        decoder, assembler = wire.Decoder(None), wire.Assembler()
        with contextlib.suppress(OSError):
            while data := self._socket.recv(1 << 20):
                for kind, channel, payload in decoder.feed(data):
                    self.nonce = decoder.nonce or b""
                    if kind == Kind.HELLO:
                        self.frame(Kind.HELLO, 0, wire.pack_message(self._hello))
                    elif kind == Kind.PART:
                        assembler.add(channel, payload)
                    elif kind == Kind.REQUEST:
                        fields, blob = wire.unpack_message(assembler.finish(channel, payload), exact=True)
                        self._script(self, GuestRequest(channel, fields["operation"], fields["args"], blob))
                    else:
                        with self._changed:
                            self.heard.append((kind, channel, payload))
                            self._changed.notify_all()
