"""The connections of clients: uvicorn's, with a bound on how many there are and deadlines for those that are slow.

uvicorn itself waits for ever for the rest of a request's head, for a body that nobody wants any more, and for a client that does
not read its answer. What is not HTTP is answered with a problem, too.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import h11
from h11._readers import ContentLengthReader, maybe_read_from_IDLE_client
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from .heads import HEAD_BYTES
from .payloads.reading import new_request_id
from .problems import Problem, ProblemCode

if TYPE_CHECKING:
    from sandbox.service.listener import Listener  # which answers with problems

# From the start of a connection, or the first byte of a later request, to the end of the request's head.
HEAD_SECONDS = 15.0
# A client that takes nothing of what waits for it for that long is cut; at most 64 KiB wait for it.
TAKE_SECONDS = 60.0
# What follows an answer that was given before the end of the request's body is read and dropped for so long.
DROP_SECONDS = 2.0
# And so much of it: a client that reads its answer stops to send long before.
DROP_BYTES = 16 << 20
# Of a body, what may wait for the application: asyncio reads 256 KiB at once.
BODY_BYTES = 256 << 10
# A client whose host has vanished says nothing any more.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    ),
)


class Connection(H11Protocol):
    """One connection. The numbers belong to the class, so that tests can have others. ``listener`` is where it was accepted."""

    conn: _Parser
    head_seconds = HEAD_SECONDS
    take_seconds = TAKE_SECONDS
    drop_seconds = DROP_SECONDS
    listener: Listener | None = None
    _refused = False
    _dropped = 0
    # Runs while a request's head, or the rest of a body that is dropped, is awaited.
    _timer: asyncio.TimerHandle | None = None
    _take_timer: asyncio.TimerHandle | None = None

    def __init__(self, config: Config, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        size = config.h11_max_incomplete_event_size or HEAD_BYTES
        self.conn = _Parser(size, lambda: self.loop.call_soon(self._send_head))
        self._application, self.app = self.app, self._serve
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or refuse one connection too many."""
        super().connection_made(transport)
        if (own := transport.get_extra_info("socket")) is not None:
            for level, name, value in _KEEPALIVE:
                own.setsockopt(level, name, value)
        problem = None if own is None or self.listener is None else self.listener.refusal(own.fileno())
        if problem is not None:
            self._refuse(problem)
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_timer()
        self._stop_take_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came. A request that has begun is to have its whole head soon."""
        if not self._refused and not self.transport.is_closing() and not self._take_body(data):
            super().data_received(data)
            self._set_timer()
            if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE:
                self._dropped += len(data)
                if self._dropped > DROP_BYTES:
                    self.transport.close()

    def _take_body(self, data: bytes) -> bool:
        """Take bytes from the middle of a body of known length past h11, which copies each four times; return whether they are.

        The beginning and the end of every body, and all that is not simple, goes through h11.
        """
        conn, cycle = self.conn, self.cycle
        reader: Any = conn._reader  # noqa: SLF001
        simple = (
            isinstance(reader, ContentLengthReader)
            and conn.their_state is h11.SEND_BODY
            and conn.our_state is not h11.DONE
            and not conn._receive_buffer  # noqa: SLF001
            and not conn.they_are_waiting_for_100_continue
        )
        if not simple or len(data) >= reader._remaining:  # noqa: SLF001
            return False
        reader._remaining -= len(data)  # noqa: SLF001
        if cycle.body:  # it comes first
            cycle.body += data
        else:
            self._pieces.append(data)
            self._size += len(data)
        if self._size + len(cycle.body) > BODY_BYTES:
            self.flow.pause_reading()
        cycle.message_event.set()
        return True

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application receive the pieces of a body as they came, and not from the buffer that copies them twice."""
        after: Message | None = None

        async def receive_piece() -> Message:
            nonlocal after
            if after is not None and not self._pieces:
                message, after = after, None
                return message
            if not self._pieces:
                message = await receive()
                if not self._pieces:
                    return message
                if message.get("body") or not message.get("more_body"):
                    after = message  # what h11 has parsed is the end
            return {"type": "http.request", "body": self._taken(), "more_body": True}

        await self._application(scope, receive_piece, send)

    def _taken(self) -> bytes:
        """Return the next piece, or several small ones."""
        data = self._pieces.popleft()
        if self._pieces and self._size <= BODY_BYTES:
            data = b"".join((data, *self._pieces))
            self._pieces.clear()
        self._size -= len(data)
        if self._size <= BODY_BYTES:
            self.flow.resume_reading()
        return data

    def _send_head(self) -> None:
        if (head := self.conn.take_head()) and not self.transport.is_closing():
            self.transport.write(head)

    def on_response_complete(self) -> None:
        """Go on with the next request, some of which may be here already."""
        self._dropped = self._size = 0
        self._pieces.clear()
        super().on_response_complete()
        if not self._refused:
            self._set_timer()

    def pause_writing(self) -> None:
        """Wait until the client has taken what was written, but not for ever."""
        super().pause_writing()
        self._stop_take_timer()
        self._take_timer = self.loop.call_later(self.take_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on to write."""
        self._stop_take_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # it says no more than that the request is invalid
        """Refuse what is not HTTP, as uvicorn has found."""
        self._refuse(
            Problem(
                400,
                ProblemCode.invalid_request,
                f"The request is not valid HTTP/1.1, or its head is larger than {HEAD_BYTES} bytes.",
                "Send a request line, each header once, and a body with its Content-Length or in chunks.",
            )
        )

    def shutdown(self) -> None:
        """End when the answer that is under way was written, at once if there is none.

        A client of TLS has to agree to the end, and one that is idle may not do so for 30 s: it is told, and not waited for.
        """
        super().shutdown()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.loop.call_soon(self.transport.abort)

    def _set_timer(self) -> None:
        theirs, ours = self.conn.their_state, self.conn.our_state
        if self not in self.connections or self.transport.is_closing():  # it is that of a WebSocket now, or over
            self._stop_timer()
        elif theirs is h11.SEND_BODY and ours is h11.DONE:
            if self._timer is None:
                self._timer = self.loop.call_later(self.drop_seconds, self.transport.close)
        elif theirs is not h11.IDLE:
            self._stop_timer()
        elif self.conn.trailing_data[0]:
            self._await_head()

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._refuse, _late(self.head_seconds))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_take_timer(self) -> None:
        if self._take_timer is not None:
            self._take_timer.cancel()
            self._take_timer = None

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem, unless an answer has begun, and close."""
        self._stop_timer()
        self._refused = True
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # what works on that request learns that it can answer nothing
            cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        ident = new_request_id()
        response = problem.response(ident)
        headers = [*response.raw_headers, (b"x-request-id", ident.encode()), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=response.status_code, headers=headers),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            # Closed at once, with bytes of the request unread, the connection would be reset, and the answer lost.
            self.transport.write_eof()
            self._timer = self.loop.call_later(self.drop_seconds, self.transport.close)
        else:
            self.transport.close()


class _Parser(h11.Connection):
    """Reads and writes as h11 does, but for two things.

    It refuses folded headers: what was before us may have taken a folded line for a header. And it keeps the head of an answer
    for what follows it: sent alone, it costs each end a system call and a wake-up. ``kept`` is called then; unless something
    follows at once, ``take_head`` is to be called.
    """

    def __init__(self, most_bytes: int, kept: Callable[[], object]) -> None:
        super().__init__(h11.SERVER, most_bytes)
        self._kept, self._head = kept, b""

    def _get_io_object(self, role: Any, event: Any, io_dict: Any) -> Any:
        found = super()._get_io_object(role, event, io_dict)
        return _read_head if found is maybe_read_from_IDLE_client else found

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """See the base class, whose ``send`` calls this."""
        data = super().send_with_data_passthrough(event)
        if isinstance(event, h11.Response) and data:
            self._head = b"".join(data)
            self._kept()
            return []
        return [self.take_head(), *data] if self._head and data is not None else data

    def take_head(self) -> bytes:
        """Return the head that is kept, if there is one."""
        head, self._head = self._head, b""
        return head


class _Unfolded:
    """A buffer of h11 whose head has no folded lines."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def maybe_extract_lines(self) -> Any:
        """Return the lines of a head, or None if it has not come to its end. Raises h11.LocalProtocolError."""
        lines = self._buffer.maybe_extract_lines()
        if any(line[:1] in (b" ", b"\t") for line in lines or ()):
            raise h11.LocalProtocolError("a header is folded")  # h11 makes it the peer's
        return lines

    def is_next_line_obviously_invalid_request_line(self) -> bool:
        """Return what the buffer says."""
        return bool(self._buffer.is_next_line_obviously_invalid_request_line())


def _read_head(buffer: Any) -> Any:
    unfolded: Any = _Unfolded(buffer)
    return maybe_read_from_IDLE_client(unfolded)


def _late(seconds: float) -> Problem:
    return Problem(
        408,
        ProblemCode.request_timeout,
        f"The head of the request did not arrive within {seconds:g} s.",
        "Connect again, and send the request at once.",
        retryable=True,
    )
