"""Connections that ask for a WebSocket: the service speaks it itself, but for those to ports, whose bytes are passed through.

uvicorn hands a connection over when it has read the head of such a request.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.utils import get_remote_addr, is_ssl
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from sandbox.errors import SandboxError
from sandbox.network.services.peer_port import PortStream
from sandbox.service.connections import OpenConnection
from sandbox.service.house import House
from sandbox.service.http.hosts import Host, PortName, parse_host, parse_port_name
from sandbox.service.http.problems import Problem, ProblemCode, draining, problem_of
from sandbox.service.tenants.account import Account

from .access import READ_BYTES, PortRequest, account_of, admit, connect, key_place, worded
from .headers import as_written, request_headers, response_headers, text_of, without_token
from .proxy import CLOSE_SECONDS, HEAD_BYTES, close_soon, refusal
from .traffic import masked_host

# A peer that sends and does not read what it is answered, such as pongs, is cut.
MOST_UNREAD_BYTES = 2 << 20
# Parts of one message. Empty ones cost nothing to send, and each takes memory here.
MOST_FRAGMENTS = 1024
# A server in a sandbox has this long to answer a handshake.
HANDSHAKE_SECONDS = 60.0
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))
_SWITCH = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]


class Upgrades(asyncio.Protocol):
    """The protocol of one such connection, as uvicorn makes it: chooses by the Host, and bounds what a peer may cost."""

    def __init__(
        self,
        house: House,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._house, self._config, self._server_state, self._app_state = house, config, server_state, app_state
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``. The first piece is the head of the request, which uvicorn has read."""
        transport = self._transport
        if transport is None:
            return
        if self._inner is None:
            self._inner = self._chosen(transport, data)
            return
        self._inner.data_received(data)
        fragments = getattr(self._inner, "frames", ())
        if transport.get_write_buffer_size() > MOST_UNREAD_BYTES or len(fragments) > MOST_FRAGMENTS:
            transport.abort()

    def _chosen(self, transport: asyncio.Transport, head: bytes) -> asyncio.Protocol:
        server = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        server.receive_data(head)
        event = server.next_event()
        assert isinstance(event, h11.Request)  # noqa: S101  # uvicorn has made it from one
        host = parse_host(text_of(event.headers, "host") or "")
        name = None if host is None else parse_port_name(host.name, self._house.settings.domain)
        if host is None or name is None:
            # With the transport, those that cannot be told any more can be cut.
            state = {**self._app_state, "transport": transport}
            service = WebSocketsSansIOProtocol(self._config, self._server_state, state)
            service.connection_made(transport)
            service.data_received(head)
            return service
        reader = asyncio.StreamReader(READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        protocol.connection_made(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        passage = Passage(self._house, reader, writer, server)
        task = asyncio.ensure_future(passage.run(event, host, name))
        self._server_state.tasks.add(task)
        task.add_done_callback(self._server_state.tasks.discard)
        return protocol

    def eof_received(self) -> bool | None:
        """See ``asyncio.Protocol``."""
        return None if self._inner is None else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        if self._inner is not None:
            self._inner.resume_writing()


class Passage:
    """A request for a WebSocket to a port: its handshake is passed on, then the bytes of both sides as they are."""

    def __init__(
        self, house: House, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: h11.Connection
    ) -> None:
        self._house, self._reader, self._writer, self._client = house, reader, writer, server

    async def run(self, event: h11.Request, host: Host, name: PortName) -> None:
        """Carry it out to its end. Raises nothing."""
        try:
            await self._carry_out(await self._request(event, host, name))
        except (OSError, h11.ProtocolError):  # one side is gone
            self._writer.transport.abort()
        except SandboxError as error:
            self._refuse(worded(self._house, name, problem_of(error)))
        except Problem as problem:
            self._refuse(worded(self._house, name, problem))
        finally:
            self._writer.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._writer.transport.abort)

    async def _request(self, event: h11.Request, host: Host, name: PortName) -> PortRequest:
        """Return the head of the request, with the client and scheme that are believed."""
        transport = cast("asyncio.Transport", self._writer.transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, seconds)
        headers = [(bytes(key), bytes(value)) for key, value in event.headers]
        scope: Any = {
            "type": "http",
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
            "headers": headers,
        }
        if proxies := self._house.settings.behind_proxy:
            await ProxyHeadersMiddleware(cast("Any", _do_nothing), list(proxies))(scope, cast("Any", None), cast("Any", None))
        path, _, query = bytes(event.target).partition(b"?")
        client = (scope["client"] or ("",))[0]
        return PortRequest(name, host, event.method.decode("ascii"), path, query, headers, client, scope["scheme"])

    async def _carry_out(self, request: PortRequest) -> None:
        if self._house.draining:
            raise draining()
        if not request.path.startswith(b"/"):
            raise Problem(400, ProblemCode.invalid_query, "The target of the request is not a path.", "Send a path, as in GET /.")
        if not isinstance(self._client.next_event(), h11.EndOfMessage):
            raise Problem(400, ProblemCode.invalid_query, "A request for a WebSocket cannot have a body.", "Leave it out.")
        admission = admit(self._house, request)
        account = account_of(self._house, admission)
        connection = OpenConnection(
            request.name.sandbox, account.id, admission.key, lambda _: self._writer.transport.abort()
        )
        with (
            self._house.client_place(request.client),
            key_place(self._house, admission),
            self._house.connections.open(connection),
        ):
            stream = await connect(self._house, admission.live, request.name.port)
            try:
                await self._pass(stream, request, account, masked_host(admission.live.record, request.name.port))
            except BaseException:
                stream.abort("the client has left")
                raise
            close_soon(stream)

    async def _pass(self, stream: PortStream, request: PortRequest, account: Account, masked: bytes | None) -> None:
        query = without_token(request.query)
        headers = request_headers(
            request.headers,
            client=request.client,
            scheme=request.scheme,
            host=request.host_text,
            masked=masked,
            upgrade=True,
        )
        server = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        target = request.path + (b"?" + query if query else b"")
        asked = h11.Request(method=request.method, target=target, headers=as_written(headers))
        stream.writer.write(server.send(asked) or b"")
        server.send(h11.EndOfMessage())
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                answer = await _next(server, stream.reader)
        except (TimeoutError, h11.RemoteProtocolError) as error:
            problem = f"The server at port {request.name.port} of the sandbox did not answer the handshake: {error}."
            raise Problem(502, ProblemCode.port_failed, problem, "Check the log of the server.") from error
        if answer.status_code != 101:
            await self._pass_refusal(server, stream, answer)
            return
        kept = [*response_headers(list(answer.headers)), *_SWITCH]
        self._send(h11.InformationalResponse(status_code=101, headers=kept, reason=b"Switching Protocols"))
        if early := server.trailing_data[0]:
            self._writer.write(early)
        if early := self._client.trailing_data[0]:
            stream.writer.write(early)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(self._reader, stream.writer, account))
                both.create_task(_copy(stream.reader, self._writer, account))
        except ExceptionGroup as cut:  # one side was cut: so is the other
            raise ConnectionResetError("it was cut") from cut

    async def _pass_refusal(self, server: h11.Connection, stream: PortStream, answer: Any) -> None:
        """Pass on an answer that is no agreement."""
        headers = [*response_headers(list(answer.headers)), (b"connection", b"close")]
        self._send(h11.Response(status_code=answer.status_code, headers=headers))
        while not isinstance(event := await _next(server, stream.reader), h11.EndOfMessage):
            self._send(h11.Data(data=bytes(event.data)))
            await self._writer.drain()
        self._send(h11.EndOfMessage())

    def _refuse(self, problem: Problem) -> None:
        if self._client.our_state not in (h11.SEND_RESPONSE, h11.IDLE):
            self._writer.transport.abort()
            return
        answer = refusal(problem)
        self._send(h11.Response(status_code=answer.status_code, headers=[*answer.raw_headers, (b"connection", b"close")]))
        self._send(h11.Data(data=bytes(answer.body)))
        self._send(h11.EndOfMessage())

    def _send(self, event: Any) -> None:
        if data := self._client.send(event):
            self._writer.write(data)


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    """Return the next event that is no 100 Continue or the like. Raises h11.RemoteProtocolError, OSError."""
    while True:
        event: Any = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise h11.RemoteProtocolError("the connection was closed")
        elif not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
            return event


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, account: Account) -> None:
    """Pass bytes on until their end, and then the end. Raises OSError."""
    while data := await reader.read(READ_BYTES):
        if account.transfer(len(data)) is not None:
            raise ConnectionResetError("the quota of transfers is used up")
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:  # TLS has no half-closed connections
        writer.close()


async def _do_nothing(*_: Any) -> None:
    """Stand in for an application."""
