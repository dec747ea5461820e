"""One MCP session: the SDK's ``ClientSession`` on a thread of its own, with calls from any thread and a limit on every wait."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any, Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    DiscoverResult,
    Implementation,
    PaginatedRequestParams,
)
from mcp.types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from sandbox.errors import ErrorCode, OperationError

from .inbound import Inbound, Streams
from .messages import MAX_WORDS, HttpStatusError, encoded, gone, late, nonsense
from .tools import Tool

START_SECONDS = 30.0
# Servers before 2026-07-28 refuse the first question for the version at once; this is for those that ignore it.
PROBE_SECONDS = 3.0
MAX_PAGES = 50
END_SECONDS = 10.0

# What servers of older versions do with a first question that they do not know: refuse it, ignore it, or drop the connection.
_REFUSALS = {ErrorCode.tool_error, ErrorCode.invalid_arguments, ErrorCode.timeout, ErrorCode.connection_failed}

T = TypeVar("T")


class Wire(Protocol):
    """The way to one server."""

    @property
    def ended(self) -> str:
        """Why the connection is gone; empty while it is not."""

    def streams(self, inbound: Inbound) -> AbstractAsyncContextManager[Streams]:
        """Connect, and return the two streams of an SDK session.

        Messages pass ``inbound`` before the session sees them. The connection ends with the context, and so does a server that was
        started for it. Raises OperationError if the server cannot be reached.
        """


class McpClient:
    """A session with one server over ``wire``. Without ``probe`` the server is not asked for version 2026-07-28."""

    def __init__(self, wire: Wire, *, probe: bool = True) -> None:
        self.wire = wire
        self.inbound = Inbound()
        self.version = ""
        self.ended_by_probe = False
        self._probe = probe
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._session: ClientSession | None = None
        self._served: concurrent.futures.Future[None] | None = None
        self._closing: anyio.Event | None = None
        self._lock = threading.Lock()

    @property
    def is_handshake(self) -> bool:
        """Whether the session has a version before 2026-07-28."""
        return self.version not in MODERN_PROTOCOL_VERSIONS

    @property
    def changed(self) -> threading.Event:
        """Set when the server says that its tools changed."""
        return self.inbound.changed

    @property
    def problems(self) -> list[str]:
        """Which tools the last listing left out, and why."""
        return self.inbound.problems

    def connect(self) -> None:
        """Open the wire and agree on a version. Raises OperationError; nothing is left open then."""
        try:
            self._portal = self._stack.enter_context(start_blocking_portal())
            self._served, started = self._portal.start_task(self._serve, name="mcp session")
        except BaseException:
            self.close()
            raise
        if isinstance(started, OperationError):
            self.close()
            raise started
        self._session = started

    def tools(self) -> list[Tool]:
        """Return the tools of the server by name; ``problems`` says what was left out. Raises OperationError."""
        return self._run(self._list_tools, START_SECONDS)

    def call(self, tool: str, args: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Call a tool. Returns ``content``, maybe ``structuredContent`` and ``isError``; raises OperationError."""
        encoded(args)  # what JSON cannot represent is refused before it is sent
        params = CallToolRequestParams(name=tool, arguments=dict(args))

        async def ask(session: ClientSession) -> dict[str, Any]:
            # Not session.call_tool(): it validates against a schema of the server, which may keep the host busy for ever.
            result = await session.send_request(CallToolRequest(params=params), CallToolResult)
            return result.model_dump(by_alias=True, mode="json", exclude_none=True)

        return self._run(lambda session: _answer("tools/call", self.wire, ask(session), seconds), seconds)

    def close(self) -> None:
        """End the session; may be called more than once, from any thread."""
        with self._lock:
            portal, self._portal = self._portal, None
            if portal is None:
                return
            if self._closing is not None:
                portal.call(self._closing.set)
            if self._served is not None:
                concurrent.futures.wait([self._served], END_SECONDS)
            portal.call(portal.stop, True)
            self._stack.close()

    def _run(self, ask: Callable[[ClientSession], Awaitable[T]], seconds: float) -> T:
        """Await ``ask(session)`` on the thread of the session, and stop waiting when its own limit failed."""
        portal, session = self._portal, self._session
        if portal is None or session is None:
            raise gone(self.wire.ended or "it was closed.")
        try:
            future: concurrent.futures.Future[T] = portal.start_task_soon(ask, session)
        except RuntimeError as error:
            raise gone(self.wire.ended or "it was closed.") from error
        try:
            return future.result(seconds + END_SECONDS)
        except concurrent.futures.CancelledError as error:
            raise gone(self.wire.ended or "it was closed.") from error
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise late(seconds) from error
        except BaseException:
            future.cancel()  # Ctrl-C: the session must not wait on for nobody
            raise

    # --- on the thread of the session ----------------------------------------------------
    async def _serve(self, *, task_status: anyio.abc.TaskStatus[ClientSession | OperationError]) -> None:
        """Hold the session open until ``close``. An exception would come out wrapped in groups, so it is handed over instead."""
        self._closing = anyio.Event()
        info = Implementation(name="gamebox", version="1")
        async with self.wire.streams(self.inbound) as streams, ClientSession(*streams, client_info=info) as session:
            try:
                await self._negotiate(session)
            except OperationError as error:
                task_status.started(error)
                return
            task_status.started(session)
            await self._closing.wait()

    async def _negotiate(self, session: ClientSession) -> None:
        """Agree on 2026-07-28, or on an older version by its handshake. Raises OperationError."""
        until = time.monotonic() + START_SECONDS
        seconds = min(PROBE_SECONDS, START_SECONDS / 2)
        if self._probe:
            try:
                if await self._discovered(session, seconds):
                    return
            except OperationError as error:
                self.ended_by_probe = error.code is ErrorCode.command_ended
                raise
        try:
            left = until - time.monotonic()
            await _answer("initialize", self.wire, session.initialize(), left, total=START_SECONDS)
        except _UnsupportedVersionError as error:
            # The server took the probe, but later than that was waited for: it will not speak an older version any more.
            if not await self._discovered(session, until - time.monotonic()):
                raise error.failure from error
        self.version = session.protocol_version or ""

    async def _discovered(self, session: ClientSession, seconds: float) -> bool:
        """Return whether the server speaks 2026-07-28. Raises OperationError if it cannot be reached."""
        try:
            raw = await _answer("server/discover", self.wire, session.send_discover(LATEST_MODERN_VERSION), seconds)
        except _UnsupportedVersionError:
            return False
        except HttpStatusError as error:
            if error.status in (401, 403):
                raise
            return False
        except OperationError as error:
            if error.code in _REFUSALS:
                return False
            raise
        found = DiscoverResult.model_validate(raw)
        if not any(version in MODERN_PROTOCOL_VERSIONS for version in found.supported_versions):
            return False
        session.adopt(found)
        self.version = session.protocol_version or ""
        return True

    async def _list_tools(self, session: ClientSession) -> list[Tool]:
        self.inbound.begin_listing()
        found: dict[str, Tool] = {}
        cursor: str | None = None
        until = time.monotonic() + START_SECONDS  # for all pages together
        for _ in range(MAX_PAGES):
            params = PaginatedRequestParams(cursor=cursor) if cursor else None
            left = max(until - time.monotonic(), 0.1)
            page = await _answer("tools/list", self.wire, session.list_tools(params=params), left, total=START_SECONDS)
            for tool in page.tools:
                found[tool.name] = Tool(tool.name, tool.description or "", tool.input_schema)
            cursor = page.next_cursor
            if not cursor:
                break
        return [found[name] for name in sorted(found)]


class _UnsupportedVersionError(Exception):
    """The server speaks no version that it was offered."""

    def __init__(self, failure: OperationError) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def _answer(method: str, wire: Wire, asked: Awaitable[T], seconds: float, *, total: float | None = None) -> T:
    """Await the answer to a request for at most ``seconds``. Raises OperationError, which names ``total`` as the limit."""
    try:
        with anyio.fail_after(max(seconds, 0)):
            return await asked
    except TimeoutError:
        raise late(total or seconds) from None
    except MCPError as error:
        raise _failure_of(method, wire, error) from error
    except ValidationError as error:
        words = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise nonsense(f"an answer to {method} that is not valid: {words[:300]}") from None
    except RuntimeError as error:  # a version of the protocol that the SDK does not know, for example
        raise nonsense(f"an answer to {method} that cannot be used: {str(error)[:300]}") from error


def _failure_of(method: str, wire: Wire, error: MCPError) -> Exception:
    fault = error.error.data
    if isinstance(fault, OperationError):  # of our own side of the wire
        return fault
    if error.code == CONNECTION_CLOSED and wire.ended:
        return gone(wire.ended)
    words = f"The MCP server refused {method}: {error.message[:MAX_WORDS]}"
    if error.code == INVALID_PARAMS:
        return OperationError(ErrorCode.invalid_arguments, words, "Look at the parameters of the tool.")
    refused = OperationError(ErrorCode.tool_error, words, "Choose another way, or other arguments.", effects="unknown")
    is_version = error.code == UNSUPPORTED_PROTOCOL_VERSION and method in ("initialize", "server/discover")
    return _UnsupportedVersionError(refused) if is_version else refused
