"""The sessions of MCP clients: each belongs to a key, and ends with it, by the client, or when it is not used."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sandbox.envelope import Envelope, Failure
from sandbox.mcp.server import Context, make_server
from sandbox.mcp.session import Session
from sandbox.mcp.tools import Tool
from sandbox.service.connections import Ending, OpenConnection
from sandbox.service.house import House
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller
from sandbox.service.operators.facts import note

from .options import Options, read_options
from .place import ServiceSandbox

SESSION_HEADER, VERSION_HEADER = "mcp-session-id", "mcp-protocol-version"
# How long a session may be without a request or an open stream.
IDLE_SECONDS = 1800.0
LOOK_SECONDS = 5.0
MOST_SESSIONS, MOST_OF_TENANT = 2000, 200
BODY_BYTES = 4 << 20
_KEY = "gamebox.mcp"


@dataclass(eq=False)
class HttpSession:
    """One session, and what is under way in it."""

    caller: Caller
    options: Options
    place: ServiceSandbox
    session: Session
    requests: int = 0
    used_at: float = field(default_factory=time.monotonic)


class Sessions:
    """All sessions, by the ids that the SDK gives them. ``run`` is entered while the service runs."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._by_id: dict[str, HttpSession] = {}
        server: Server[Any] = make_server(lambda ctx: _of(ctx).session, lambda ctx: _of(ctx).options.tools, note=_note)
        self._manager = StreamableHTTPSessionManager(
            server,
            # The gate checks Host, and ``routes`` Origin.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=MOST_SESSIONS,
            max_request_body_size=BODY_BYTES,
        )

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve during the block; at its end all sessions end."""
        async with self._manager.run():
            looking = asyncio.create_task(self._look())
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.gather(*(each.place.close() for each in self._by_id.values()), return_exceptions=True)
                self._by_id.clear()

    def response(self, request: Request, caller: Caller) -> Response:
        """Return what answers a request of this caller. Raises Problem."""
        ident = request.headers.get(SESSION_HEADER)
        if ident is not None:
            found = self._by_id.get(ident)
            if found is None or found.caller.key != caller.key:
                raise Problem(
                    404,
                    ProblemCode.request_not_found,
                    f"There is no session {ident!r:.80}.",
                    "Begin another one with initialize: this one has ended, with its sandbox if it had one of its own.",
                )
            return _Passed(self, found, ident)
        if request.method != "POST":
            raise Problem(
                400,
                ProblemCode.invalid_request,
                "The request names no session.",
                f"Send the {SESSION_HEADER} that initialize answered.",
            )
        version = request.headers.get(VERSION_HEADER)
        found = self._new(request, caller)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS and found.options.sandbox is None:
            raise Problem(
                400,
                ProblemCode.invalid_request,
                f"The protocol version {version!r:.40} has no sessions, which a sandbox could belong to.",
                f"Use a version up to {HANDSHAKE_PROTOCOL_VERSIONS[-1]}, or name an existing sandbox: /mcp?sandbox=ID.",
            )
        return _Passed(self, found, None)

    def _new(self, request: Request, caller: Caller) -> HttpSession:
        options = read_options(request.query_params)
        if options.sandbox is not None:
            self._house.fleet.find(caller.tenant, options.sandbox)
        count = sum(each.caller.tenant == caller.tenant for each in self._by_id.values())
        if count >= MOST_OF_TENANT:
            raise Problem(
                429,
                ProblemCode.quota_exceeded,
                f"Your tenant has {count} MCP sessions, of {MOST_OF_TENANT} at once.",
                "End some of them with DELETE /mcp, or wait until they end by themselves.",
                retryable=True,
                headers={"Retry-After": "60"},
                quota="mcp_sessions",
                limit=MOST_OF_TENANT,
                used=count,
            )
        place = ServiceSandbox(self._house, caller, options, (request.scope["scheme"], request.headers.get("host", "")))
        return HttpSession(caller, options, place, Session(place, asks=options.asks))

    async def pass_on(self, found: HttpSession, ident: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the SDK answer a request of a session, or one that may begin a session."""
        scope[_KEY] = found
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._note_new(found, ident, scope, message)
            await send(message)

        cut = _Cut(receive, watched)
        opened = OpenConnection(
            f"mcp {ident or id(found)}", found.caller.tenant, found.caller.key, cut.end, is_request=scope["method"] == "POST"
        )
        found.requests += 1
        try:
            with self._house.connections.open(opened):
                await cut.run(self._manager.handle_request, scope)
        finally:
            found.requests -= 1
            found.used_at = time.monotonic()
        if ident is not None and scope["method"] == "DELETE" and status == 200:
            await self._end(ident)

    def _note_new(self, found: HttpSession, ident: str | None, scope: Scope, message: Message) -> None:
        """Remember a session that has begun."""
        made = next((value.decode() for name, value in message["headers"] if name.lower() == SESSION_HEADER.encode()), None)
        if ident is None and made is not None and message["status"] == 200 and scope["method"] == "POST":
            self._by_id[made] = found

    async def _end(self, ident: str) -> None:
        found = self._by_id.pop(ident, None)
        if found is not None:
            await found.place.close()

    async def _look(self) -> None:
        """End the sessions that nobody uses any more, and those whose key is not valid any more."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for ident, each in tuple(self._by_id.items()):
                idle = not each.requests and time.monotonic() - each.used_at > IDLE_SECONDS
                if idle or not self._house.keys.is_valid(each.caller):
                    self._house.fleet.spawn(self._end(ident))


class _Passed(Response):
    """A response that the SDK sends."""

    def __init__(self, sessions: Sessions, found: HttpSession, ident: str | None) -> None:
        super().__init__()
        self._sessions, self._found, self._ident = sessions, found, ident

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await self._sessions.pass_on(self._found, self._ident, scope, receive, send)


class _Cut:
    """A request that the service can end: the SDK then sees that its client has left, and the client that the answer has ended."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._ended = asyncio.Event()
        self._begun = self._whole = False

    def end(self, ending: Ending) -> None:  # noqa: ARG002
        """End it."""
        self._ended.set()

    async def run(self, app: Any, scope: Scope) -> None:
        """Have ``app`` answer the request."""
        await app(scope, self._received, self._sent)
        if self._ended.is_set() and self._begun and not self._whole:
            with contextlib.suppress(OSError):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _received(self) -> Message:
        receiving, ending = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([receiving, ending], return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else {"type": "http.disconnect"}
        finally:
            receiving.cancel()
            ending.cancel()

    async def _sent(self, message: Message) -> None:
        self._begun = True
        self._whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)


def _of(ctx: Context) -> HttpSession:
    """Return the session of a request: it is beside the request that brought it."""
    found: HttpSession = ctx.request.scope[_KEY] if ctx.request is not None else _missing()
    return found


def _missing() -> Any:
    raise LookupError("the request came without its HTTP request")


def _note(ctx: Context, tool: Tool, answer: Envelope[Any]) -> None:
    """Note for log and audit what was called, in which sandbox, and how it failed."""
    if ctx.request is None:
        return
    known: Mapping[str, Any] = {"operation": tool.name, "changes": tool.changes, "target": _of(ctx).place.ident}
    note(ctx.request.scope, **known, **({"code": str(answer.code)} if isinstance(answer, Failure) else {}))
