"""A server at an address: streamable HTTP, from the host. Only for addresses that the user named."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.auth import OAuthFlowError
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from sandbox.errors import ErrorCode, OperationError

from .declaration import shown_address
from .inbound import Inbound, Streams, failed
from .messages import MAX_MESSAGE_BYTES, HttpStatusError, Message, decoded, encoded, gone, is_answer, nonsense

if TYPE_CHECKING:
    from .oauth import SignIn

CONNECT_SECONDS = 10.0
WRITE_SECONDS = 30.0
# For ending the session, whatever the server answers.
CLOSE_SECONDS = 2.0
# Questions of the server that are answered while one answer is awaited: each reply is a request of its own.
MAX_REPLIES = 20
MAX_ERROR_BYTES = 64 << 10
WAITING_MESSAGES = 100
SESSION, VERSION = "mcp-session-id", "mcp-protocol-version"

Incoming = MemoryObjectSendStream[SessionMessage | Exception]


class HttpWire:
    """Requests to ``url``, each answered in its response, as JSON or as a stream of events.

    Redirects are not followed and compressed bodies are refused; a message is limited in size, and the time for an answer is the
    session's. ``headers`` go with each request (a token, for example) and nowhere else; ``sign_in`` adds the access token of OAuth.
    No stream is opened for what the server may want to send later. Raises OperationError ``invalid_url``.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, sign_in: SignIn | None = None) -> None:
        self._end = ""
        self._requests: Requests | None = None
        if not url.startswith(("http://", "https://")):
            raise OperationError(
                ErrorCode.invalid_url, f"{url[:200]!r} is not the address of a server.", "Use http(s)://..."
            )
        self._url = url
        self._sign_in = sign_in
        self._headers = {
            **(headers or {}),
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",
        }

    @property
    def ended(self) -> str:
        return self._end or (self._requests.ended if self._requests is not None else "")

    @asynccontextmanager
    async def streams(self, inbound: Inbound) -> AsyncIterator[Streams]:
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](WAITING_MESSAGES)
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, write=WRITE_SECONDS)
        auth = self._sign_in.auth if self._sign_in is not None else None
        hooks = self._sign_in.hooks if self._sign_in is not None else {}
        async with httpx2.AsyncClient(follow_redirects=False, timeout=timeout, auth=auth, event_hooks=hooks) as client:
            requests = self._requests = Requests(client, self._url, self._headers, self._sign_in)
            sender = _Sender(requests, inbound, to_session)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(sender.send_all, from_session)
                    yield incoming, outgoing
                    tasks.cancel_scope.cancel()
            finally:
                await requests.end_session()
                self._end = requests.ended or "it was closed."
                for stream in (to_session, incoming, outgoing, from_session):
                    stream.close()


class _Sender:
    """Sends what the session wants to send, and passes the answers on to it."""

    def __init__(self, requests: Requests, inbound: Inbound, to_session: Incoming) -> None:
        self._requests = requests
        self._inbound = inbound
        self._to_session = to_session
        self._in_flight: dict[Any, anyio.CancelScope] = {}

    async def send_all(self, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send each message: requests at the same time, notifications in their order."""
        async with anyio.create_task_group() as tasks:
            async for each in messages:
                message = each.message
                headers = (each.metadata.headers if isinstance(each.metadata, ClientMessageMetadata) else None) or {}
                self._requests.remember_version(message, headers)
                if isinstance(message, JSONRPCRequest):
                    self._inbound.expect(message)
                    scope = self._in_flight[message.id] = anyio.CancelScope()
                    tasks.start_soon(self._request, message, headers, scope)
                elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                    self._cancel((message.params or {}).get("requestId"))
                    # From 2026-07-28 on, the end of the request's connection is what cancels it.
                    if not self._requests.is_modern:
                        tasks.start_soon(self._requests.notify, _content(message), headers)
                else:
                    await self._requests.notify(_content(message), headers)

    def _cancel(self, ident: Any) -> None:
        self._inbound.forget(ident)
        if ident in self._in_flight:
            self._in_flight[ident].cancel()

    async def _request(self, message: JSONRPCRequest, headers: Mapping[str, str], scope: anyio.CancelScope) -> None:
        """Send a request, and pass its answer on to the session; a failure is an answer, too."""
        answer: SessionMessage | None = None
        try:
            with scope:
                answer = await self._answer(message, headers)
        except OperationError as fault:
            self._inbound.forget(message.id)
            answer = failed(message.id, fault)
        finally:
            self._in_flight.pop(message.id, None)
        if answer is not None:
            try:
                self._to_session.send_nowait(answer)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the session ended meanwhile

    async def _answer(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> SessionMessage | None:
        replies = 0
        begins = message.method == "initialize"
        async with aclosing(self._requests.exchange(_content(message), headers, begins=begins)) as messages:
            async for each in messages:
                reply = self._inbound.reply_to(each)
                if reply is not None:
                    replies += 1
                    if replies <= MAX_REPLIES:
                        await self._requests.notify(reply, {})
                    continue
                answer = self._inbound.accept(each)
                if is_answer(each) and each.get("id") == message.id:
                    return answer
        raise nonsense("a response that does not answer the request")


class Requests:
    """Single requests to a server, with what its session adds to their headers. ``ended`` says why the session is gone."""

    def __init__(
        self, client: httpx2.AsyncClient, url: str, headers: Mapping[str, str], sign_in: SignIn | None
    ) -> None:
        self.ended = ""
        self._client = client
        self._url = url
        self._headers = dict(headers)
        self._sign_in = sign_in

    @property
    def is_modern(self) -> bool:
        """Whether the session has version 2026-07-28 or a later one."""
        return self._headers.get(VERSION) in MODERN_PROTOCOL_VERSIONS

    def remember_version(self, message: Any, headers: Mapping[str, str]) -> None:
        """Keep the version for requests that the session does not make: replies, and the end."""
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._headers.pop(VERSION, None)
        for name, value in headers.items():
            if name.lower() == VERSION:
                self._headers[VERSION] = value

    async def notify(self, content: Message, headers: Mapping[str, str]) -> None:
        """Send what needs no answer; the next request notices that it failed."""
        with anyio.move_on_after(CONNECT_SECONDS):
            try:
                async with aclosing(self.exchange(content, headers)) as messages:
                    await anext(messages, None)
            except OperationError:
                pass

    async def exchange(
        self, content: Message, headers: Mapping[str, str], *, begins: bool = False
    ) -> AsyncGenerator[Message, None]:
        """Post ``content``, and yield the messages of the response. Raises OperationError."""
        if self.ended:
            raise gone(self.ended)
        body = encoded(content).encode()
        sent = {**self._headers, **headers, "content-type": "application/json"}
        try:
            async with self._client.stream("POST", self._url, content=body, headers=sent) as response:
                refusal = await self._check(response, begins)
                if refusal is not None:  # some servers do not say which request they refuse
                    yield {**refusal, "id": content.get("id")}
                    return
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                decoder: Events | Whole = Events() if kind == "text/event-stream" else Whole()
                async for piece in response.aiter_raw():
                    for message in decoder.feed(piece):
                        yield self._masked(message)
                for message in decoder.end():
                    yield self._masked(message)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
            raise self._unreachable(error) from error
        except (OAuthFlowError, ValueError) as error:  # the latter also for a header that cannot be sent
            raise (self._unreachable(error) if self._sign_in is None else self._sign_in.failure(error)) from None

    async def end_session(self) -> None:
        """Tell the server that its session is over, without waiting for long."""
        if SESSION not in self._headers or self.ended:
            return
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            try:
                async with self._client.stream("DELETE", self._url, headers=self._headers):
                    pass  # what it answers is not read
            except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, OperationError):
                pass  # the server will forget the session by itself

    def _masked(self, message: Message) -> Message:
        return message if self._sign_in is None else self._sign_in.masked(message)

    def _unreachable(self, error: Exception) -> OperationError:
        # These quote what could not be sent: the address with its query, or a header.
        quotes = isinstance(error, (httpx2.LocalProtocolError, httpx2.InvalidURL, ValueError))
        why = type(error).__name__ if quotes else f"{type(error).__name__}: {error}"
        return OperationError(
            ErrorCode.connection_failed,
            f"The MCP server at {shown_address(self._url)} cannot be reached: {why}"[:500],
            "Do without it, or ask the user whether it is running.",
            effects="unknown",
        )

    async def _check(self, response: httpx2.Response, begins: bool) -> Message | None:
        """Take the session over from a response that begins one, and return the error of JSON-RPC that comes with a status.

        Raises OperationError for a response that answers nothing.
        """
        if response.headers.get("content-encoding", "identity") != "identity":
            raise nonsense("a compressed response, which was not requested")
        session = response.headers.get(SESSION)
        if begins and session and response.status_code < 300:
            self._headers[SESSION] = session[:1024]
        status = response.status_code
        if status == 404 and SESSION in self._headers:
            self.ended = "it has forgotten the session."
            raise gone(self.ended)
        if status < 300:
            return None
        refusal = await _error_in(response)
        if refusal is None:
            hint = "Tell the user."
            if status in (401, 403):
                hint = f"The user must sign in first: gamebox mcp login {shown_address(self._url)} (or give a header with a token)."
            raise HttpStatusError(shown_address(self._url), status, hint)
        return refusal


def _content(message: Any) -> Message:
    content: Message = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return content


async def _error_in(response: httpx2.Response) -> Message | None:
    """Return the error of JSON-RPC in a response with the status of one, which must be short."""
    if not 400 <= response.status_code < 500 or response.status_code in (401, 403):
        return None
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_ERROR_BYTES:
            return None
    message = decoded(bytes(body))
    return message if message is not None and "error" in message and "method" not in message else None


class Whole:
    """Decodes a response that is one message."""

    def __init__(self) -> None:
        self._body = bytearray()

    def feed(self, piece: bytes) -> Iterator[Message]:
        """Take a piece of the body. Raises OperationError if it becomes too long."""
        self._body += piece
        if len(self._body) > MAX_MESSAGE_BYTES:
            raise nonsense(f"a response of more than {MAX_MESSAGE_BYTES >> 20} MiB")
        return iter(())

    def end(self) -> Iterator[Message]:
        """Return the message, if there is a body. Raises OperationError."""
        if self._body.strip():
            message = decoded(bytes(self._body))
            if message is None:
                raise nonsense("a response that is not a message")
            yield message


class Events:
    """Decodes a stream of events, however it is cut: the data lines of each event, joined, are a message."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._ends_in_cr = False

    def feed(self, piece: bytes) -> Iterator[Message]:
        """Take a piece of the stream, and yield the messages that it completes. Raises OperationError."""
        if not piece:
            return
        whole = piece.removeprefix(b"\n") if self._ends_in_cr else piece  # the second half of a line end
        self._ends_in_cr = piece.endswith(b"\r")
        self._pending += whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = self._pending.split(b"\n")
        for line in lines:
            yield from self._line(bytes(line))
        self._pending = bytearray(rest)
        if self._size + len(self._pending) > MAX_MESSAGE_BYTES:
            raise nonsense(f"an event of more than {MAX_MESSAGE_BYTES >> 20} MiB")

    def _line(self, line: bytes) -> Iterator[Message]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._size += len(line)
        elif not line and self._data:
            message = decoded(b"\n".join(self._data))
            self._data, self._size = [], 0
            if message is not None:
                yield message

    def end(self) -> Iterator[Message]:
        """Return nothing: an event that was not ended does not count."""
        return iter(())
