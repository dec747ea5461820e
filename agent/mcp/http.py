"""A server at an address: streamable HTTP, from the host. Only for addresses that the user has named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from sandbox.errors import ErrorCode, OperationError

from .deadline import Deadline
from .wire import MAX_MESSAGE_BYTES, Message, decoded, encoded, gone, is_answer, late, nonsense

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
# For giving up the session at the end, whatever the server does with that.
CLOSE_SECONDS = 2.0
# Of the questions that come while an answer is waited for, as many are answered: each is a request of its own.
MOST_REPLIES = 20
SESSION, VERSION = "mcp-session-id", "mcp-protocol-version"


class HttpWire:
    """Requests to ``url``, each answered in its response, as JSON or as a stream of events.

    Redirects are not followed and packed bodies not taken; what is read of an answer is bounded in size, and the time is that for
    the answer, whatever else comes meanwhile. Each request has a connection of its own, so that it can be cut when its time is
    over. ``headers`` go with each request (a token, for example) and nowhere else. Raises OperationError ``invalid_url``.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        import httpx

        self.ended = ""
        self._url = url
        if not url.startswith(("http://", "https://")):
            raise OperationError(
                ErrorCode.invalid_url, f"{url[:200]!r} is no address of a server.", "Use http(s)://..."
            )
        self._headers = {
            **(headers or {}), "accept": "application/json, text/event-stream", "accept-encoding": "identity",
        }  # fmt: skip
        self._client = httpx.Client(
            follow_redirects=False, timeout=CONNECT_SECONDS, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._asking = threading.local()
        self._on_message: Callable[[Message], None] = lambda _: None

    def open(self, on_message: Callable[[Message], None]) -> None:
        """See ``Wire``."""
        self._on_message = on_message

    def ask(self, message: Message, seconds: float) -> Message:
        """See ``Wire``."""
        self._asking.until, replies = time.monotonic() + seconds, 0
        try:
            for answer in self._post(message, seconds):
                if is_answer(answer) and answer.get("id") == message["id"]:
                    version = answer.get("result", {}) if message.get("method") == "initialize" else {}
                    if isinstance(version, dict) and isinstance(version.get("protocolVersion"), str):
                        self._headers[VERSION] = version["protocolVersion"][:40]
                    return answer
                replies += answer.get("id") is not None
                if "method" in answer and (answer.get("id") is None or replies <= MOST_REPLIES):
                    self._on_message(answer)
                if time.monotonic() > self._asking.until:
                    raise late(seconds)
        finally:
            self._asking.until = None
        raise nonsense("a response that does not answer the request")

    def tell(self, message: Message) -> None:
        """See ``Wire``. While an answer is waited for in the same thread, it takes no longer than there is time for that."""
        until = getattr(self._asking, "until", None)
        left = CONNECT_SECONDS if until is None else min(CONNECT_SECONDS, until - time.monotonic())
        if left <= 0:
            raise late(0)
        for _ in self._post(message, left):
            break

    def close(self) -> None:
        """See ``Wire``."""
        import httpx

        if SESSION in self._headers and not self._client.is_closed:
            # What it answers is not waited for in full, and not read.
            with Deadline(CLOSE_SECONDS) as deadline:
                watched = {"trace": deadline.trace}
                try:
                    with self._client.stream(
                        "DELETE", self._url, headers=self._headers, timeout=CLOSE_SECONDS, extensions=watched
                    ):
                        pass
                except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError):
                    pass  # it forgets the session by itself, some day
        self.ended = self.ended or "it was closed."
        self._client.close()

    def _post(self, message: Message, seconds: float) -> Iterator[Message]:
        """The messages of the response. Raises OperationError."""
        import httpx

        if self.ended:
            raise gone(self.ended)
        body = encoded(message).encode()
        headers = {**self._headers, "content-type": "application/json"}
        timeout = httpx.Timeout(max(seconds, 0.1), connect=min(CONNECT_SECONDS, max(seconds, 0.1)))
        with Deadline(seconds) as deadline:
            watched = {"trace": deadline.trace}
            try:
                with self._client.stream(
                    "POST", self._url, content=body, headers=headers, timeout=timeout, extensions=watched
                ) as response:
                    self._check(response)
                    is_stream = response.headers.get("content-type", "").partition(";")[0].strip() == "text/event-stream"
                    read = _events if is_stream else _whole
                    yield from read(response.iter_raw())
                if deadline.is_over:  # the end of the body is that of the connection, which was cut
                    raise late(seconds)
            except httpx.TimeoutException as error:
                raise late(seconds) from error
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
                if deadline.is_over:
                    raise late(seconds) from error
                raise OperationError(
                    ErrorCode.connection_failed,
                    f"The MCP server at {self._url} cannot be reached: {type(error).__name__}: {error}"[:500],
                    "Do without it, or ask the user whether it runs.",
                    effects="unknown",
                ) from error

    def _check(self, response: httpx.Response) -> None:
        """Take over the session, and raise for a response that answers nothing."""
        session = response.headers.get(SESSION)
        if session and SESSION not in self._headers:
            self._headers[SESSION] = session[:1024]
        if response.headers.get("content-encoding", "identity") != "identity":
            raise nonsense("a packed response, which was not asked for")
        status = response.status_code
        if status == 404 and SESSION in self._headers:
            self.ended = "it has forgotten the session."
            raise gone(self.ended)
        if status >= 300:
            hint = "Its headers lack what it asks for; tell the user." if status in (401, 403) else "Tell the user."
            words = f"The MCP server at {self._url} answered with the status {status}."
            raise OperationError(ErrorCode.connection_failed, words, hint)


def _whole(pieces: Iterator[bytes]) -> Iterator[Message]:
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise nonsense(f"a response of more than {MAX_MESSAGE_BYTES >> 20} MiB")
    if body.strip():
        message = decoded(bytes(body))
        if message is None:
            raise nonsense("a response that is no message")
        yield message


def _events(pieces: Iterator[bytes]) -> Iterator[Message]:
    """The messages of a stream of events: the data lines of each, joined."""
    pending, data, size, is_cut = bytearray(), [], 0, False
    for piece in filter(None, pieces):
        whole = piece.removeprefix(b"\n") if is_cut else piece  # the other half of a line end that is done with
        is_cut = piece.endswith(b"\r")
        pending += whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data.append(bytes(line[5:]).removeprefix(b" "))
                size += len(line)
            elif not line and data:
                message = decoded(b"\n".join(data))
                data, size = [], 0
                if message is not None:
                    yield message
        pending = bytearray(rest)
        if size + len(pending) > MAX_MESSAGE_BYTES:
            raise nonsense(f"an event of more than {MAX_MESSAGE_BYTES >> 20} MiB")
