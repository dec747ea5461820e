"""Requests to ports of sandboxes: passed on as they come, in both directions, and answered with what the server there answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import h11
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from sandbox.errors import SandboxError
from sandbox.network.services.peer_port import PortStream
from sandbox.service.connections import OpenConnection
from sandbox.service.house import House
from sandbox.service.http.hosts import Host, PortName
from sandbox.service.http.payloads.reading import new_request_id
from sandbox.service.http.problems import Problem, ProblemCode, draining, problem_of
from sandbox.service.operators.facts import PORT_ROUTE as ROUTE
from sandbox.service.operators.facts import note

from .access import READ_BYTES, Admission, PortRequest, account_of, admit, connect, key_place, worded
from .headers import COOKIE, as_written, request_headers, response_headers, text_of, without_token
from .traffic import masked_host

log = logging.getLogger(__name__)

# Of the head of a response.
HEAD_BYTES = 64 << 10
# A server that says nothing of "Expect: 100-continue" gets the body after this time.
EXPECT_SECONDS = 1.0
# A server that does not close when it is told to is cut after this time.
CLOSE_SECONDS = 5.0
# What uvicorn logs as errors: a response that was cut, a WebSocket that was refused. Others can have it do so at any rate.
_CUT = ("ASGI callable returned without completing response.", "ASGI callable returned without completing handshake.")


def ignore_cut_responses(record: logging.LogRecord) -> bool:
    """Filter for the log of uvicorn: what a server in a sandbox breaks off, or a client does wrong, is no error of the service."""
    return record.msg not in _CUT


async def pass_on(house: House, scope: Scope, receive: Receive, send: Send, name: PortName, host: Host) -> None:
    """Answer a request to a port, as an ASGI application."""
    note(scope, route=ROUTE, target=name.sandbox, changes=False)
    request = PortRequest(
        name=name,
        host=host,
        method=scope["method"],
        path=scope["raw_path"],
        query=scope["query_string"],
        headers=scope["headers"],
        client=(scope.get("client") or ("", 0))[0],
        scheme=scope["scheme"],
    )
    try:
        answer = await _answered(house, request, receive, send)
    except SandboxError as error:
        answer = refusal(worded(house, name, problem_of(error)))
    except Problem as problem:
        note(scope, code=problem.code.value)
        answer = refusal(worded(house, name, problem))
    if answer is not None:
        await answer(scope, receive, send)


def refusal(problem: Problem) -> Response:
    """Return the answer of the service itself to a request to a port."""
    problem.headers.setdefault("Cache-Control", "no-store")
    return problem.response(new_request_id())


async def _answered(house: House, request: PortRequest, receive: Receive, send: Send) -> Response | None:
    """Pass the request on; return an answer of our own, if there is one. Raises Problem, SandboxError."""
    if house.draining:
        raise draining()
    if not request.path.startswith(b"/") and request.path != b"*":
        raise Problem(400, ProblemCode.invalid_query, "The target of the request is not a path.", "Send a path, as in GET /.")
    admission = admit(house, request)
    if (redirect := _with_cookie(request, admission)) is not None:
        return redirect
    begun, account = False, account_of(house, admission)

    async def counted_receive() -> Message:
        message = await receive()
        if (over := account.transfer(len(message.get("body", b"")))) is not None:
            raise over
        return message

    async def tracked_send(message: Message) -> None:
        nonlocal begun
        begun = True
        if (over := account.transfer(len(message.get("body", b"")))) is not None and message.get("more_body"):
            raise over
        await send(message)

    connection = OpenConnection(
        request.name.sandbox, account.id, admission.key, lambda _: exchange.cancel(), is_request=True
    )
    with key_place(house, admission), house.connections.open(connection):
        # A task of its own: it can be ended without ending the server's.
        exchange = asyncio.ensure_future(_exchanged(house, request, admission, counted_receive, tracked_send))
        try:
            await asyncio.wait([exchange])
        finally:
            exchange.cancel()
    if exchange.cancelled():
        return None if begun else refusal(draining())
    return exchange.result()


def _with_cookie(request: PortRequest, admission: Admission) -> Response | None:
    """Return the answer that has a browser keep its token as a cookie and leave it out of the address; None for others."""
    accepts = text_of(request.headers, "accept") or ""
    if admission.token is None or request.method not in ("GET", "HEAD") or "text/html" not in accepts:
        return None
    query = without_token(request.query)
    target = (request.path + (b"?" + query if query else b"")).decode("latin-1")
    answer = RedirectResponse(f"{request.scheme}://{request.host_text}{target}", 303)
    answer.set_cookie(COOKIE, admission.token, secure=request.scheme == "https", httponly=True, samesite="lax")
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


async def _exchanged(house: House, request: PortRequest, admission: Admission, receive: Receive, send: Send) -> None:
    """Pass one request and its response on. Raises Problem, SandboxError, as long as no response was begun."""
    stream = await connect(house, admission.live, request.name.port)
    exchange = Exchange(stream, receive, send, masked_host(admission.live.record, request.name.port))
    try:
        await exchange.run(request)
    finally:
        close_soon(stream) if exchange.complete else stream.abort("the client has left")


def close_soon(stream: PortStream) -> None:
    """Close a connection whose response is complete; one that its server holds open is cut."""
    stream.writer.close()
    asyncio.get_running_loop().call_later(CLOSE_SECONDS, stream.abort, "it is done")


class Exchange:
    """One request over a connection of its own; ``complete`` says that all of the response was passed on.

    To open it takes about a third of a short request (0.9 of 2.7 ms). It is not used again: the server is written by a stranger,
    and what it says after a response, or instead of one, would be the answer to the request of somebody else.
    """

    def __init__(self, stream: PortStream, receive: Receive, send: Send, masked: bytes | None = None) -> None:
        self.complete = False
        self._masked = masked
        self._stream, self._receive, self._send = stream, receive, send
        self._server = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._begun = False
        self._may_send_body = asyncio.Event()

    async def run(self, request: PortRequest) -> None:
        """Pass the request and the response on. Raises Problem, as long as no response was begun."""
        query = without_token(request.query)
        headers = request_headers(
            request.headers, client=request.client, scheme=request.scheme, host=request.host_text, masked=self._masked
        )
        if not any(name == b"host" for name, _ in headers):
            headers.append((b"host", request.host_text.encode("latin-1")))
        expects = (text_of(headers, "expect") or "").lower() == "100-continue"
        body = asyncio.ensure_future(self._pass_body(expects))
        try:
            target = request.path + (b"?" + query if query else b"")
            self._write(h11.Request(method=request.method, target=target, headers=as_written(headers)))
            if not expects:
                self._may_send_body.set()
            response = asyncio.ensure_future(self._pass_response())
            try:
                await asyncio.wait([body, response], return_when=asyncio.FIRST_COMPLETED)
                if not response.done():
                    body.result()  # the client has left, unless it raises
                    return
                response.result()
            finally:
                response.cancel()
                await asyncio.wait([response])
        except (h11.LocalProtocolError, h11.RemoteProtocolError, OSError, Problem) as error:
            if self._begun:  # cut: the client sees that it is not whole
                return
            raise error if isinstance(error, Problem) else _no_http(request.name.port, error) from error
        finally:
            body.cancel()

    async def _pass_body(self, expects: bool) -> None:
        """Pass the body on as it comes, and return when the client has left."""
        if expects:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXPECT_SECONDS):
                    await self._may_send_body.wait()
        else:
            await self._may_send_body.wait()
        over = False
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if over:
                continue
            try:
                if data := message.get("body", b""):
                    self._write(h11.Data(data=data))
                    await self._stream.writer.drain()
                if not message.get("more_body", False):
                    self._write(h11.EndOfMessage())
                    over = True
            except OSError:  # it reads no more, and may have answered: the response says so, or is missing
                over = True

    async def _pass_response(self) -> None:
        while True:
            event: Any = self._server.next_event()
            if event is h11.NEED_DATA:
                data = await self._stream.reader.read(READ_BYTES)
                if not data and not self._begun:
                    raise h11.RemoteProtocolError("it closed the connection without one")
                self._server.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                if event.status_code == 100:
                    self._may_send_body.set()
            elif isinstance(event, h11.Response):
                self._begun = True
                headers = [each for each in response_headers(list(event.headers)) if each[0] != b"date"]  # uvicorn adds its own
                await self._send({"type": "http.response.start", "status": event.status_code, "headers": headers})
            elif isinstance(event, h11.Data):
                await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):  # its trailers are left out: the one before us may not take any
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                self.complete = True
                return
            else:
                raise h11.RemoteProtocolError("the connection was closed before the response")

    def _write(self, event: Any) -> None:
        if data := self._server.send(event):
            self._stream.writer.write(data)


def _no_http(port: int, error: Exception) -> Problem:
    return Problem(
        502,
        ProblemCode.port_failed,
        f"The server at port {port} of the sandbox did not answer in HTTP/1.1: {str(error)[:200] or type(error).__name__}.",
        "Check the log of the server. For other protocols, open a tunnel: WS /v1/sandboxes/{id}/ports/{port}/tunnel.",
    )
