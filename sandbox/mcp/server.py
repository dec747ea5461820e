"""The server: lists the tools and carries out calls, with progress, cancellation and approvals."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations import ReadResult
from sandbox.pipe.watching import CancelToken
from sandbox.text.excerpt import last_part
from sandbox.text.plain_text import plain

from .answers import MOST_IMAGE_BYTES, clean, image_type, result_of
from .approvals import approval
from .hints import for_tools
from .resources import RESOURCES, TEMPLATES, read_resource
from .session import Session
from .tools import ANSWER_SECONDS, Tool

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
LINE_CHARS = 200
# Of the end of the output, for the line that is shown.
_TAIL_BYTES = 4096
INSTRUCTIONS = (
    "Tools to work in a sandbox, an isolated container. It starts with the first call and is the same for all calls of this "
    f"session. A call is answered within {ANSWER_SECONDS:g} seconds: a command that takes longer goes on, and the answer has "
    "its id, with which the other tools wait for it, show its output or end it."
)
Context = ServerRequestContext[Any, Any]


def make_server(
    session_of: Callable[[Context], Session],
    tools_of: Callable[[Context], Mapping[str, Tool]],
    *,
    note: Callable[[Context, Tool, Envelope[Any]], None] = lambda *_: None,
    more_instructions: str = "",
) -> Server[Any]:
    """Return a server. ``session_of`` and ``tools_of`` find what a request is about, and ``note`` is told of every answer."""

    async def list_tools(ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:  # noqa: ARG001
        return ListToolsResult(tools=[tool.definition for tool in tools_of(ctx).values()])

    async def call_tool(ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        session, tool = session_of(ctx), tools_of(ctx).get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {clean(params.name)[:100]!r}. Use: {', '.join(tools_of(ctx))}.")
        refused = await approval(session, ctx, tool, params)
        if isinstance(refused, InputRequiredResult):
            return refused
        answer = await _carried_out(session, ctx, tool, params.arguments or {}) if refused is None else refused
        note(ctx, tool, answer)
        answer = for_tools(answer, tools_of(ctx))
        return result_of(answer, await _images(session, answer))

    async def list_resources(ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:  # noqa: ARG001
        return ListResourcesResult(resources=RESOURCES)

    async def list_templates(ctx: Context, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:  # noqa: ARG001
        return ListResourceTemplatesResult(resource_templates=TEMPLATES)

    async def read(ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await read_resource(session_of(ctx).place, params.uri)

    return Server(
        "gamebox",
        version=version("gamebox"),
        title="Gamebox",
        instructions=f"{INSTRUCTIONS} {more_instructions}".strip(),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read,
    )


async def _carried_out(session: Session, ctx: Context, tool: Tool, args: Mapping[str, Any]) -> Envelope[Any]:
    """Carry out a call, and report its progress to a client that wants it. If the call is cancelled, its command is killed."""
    cancel, shown = CancelToken(), _LastLine()
    wants_progress = bool(ctx.meta and ctx.meta.get("progress_token") is not None)
    task = asyncio.create_task(session.carry_out(tool, args, cancel, shown.take if wants_progress else None))
    began = time.monotonic()
    try:
        while not (await asyncio.wait([task], timeout=PROGRESS_SECONDS))[0]:
            if wants_progress:
                seconds = round(time.monotonic() - began, 1)
                await ctx.session.report_progress(seconds, None, shown.text() or f"{tool.name}: {seconds:g} s")
        return task.result()
    except asyncio.CancelledError:
        task.cancel()  # it stops what it has begun
        raise
    except Exception:
        log.exception("a call of %s failed", tool.name)
        task.cancel()
        return Failure(
            ErrorCode.tool_error,
            f"{tool.name} failed in the server.",
            "This is a bug in Gamebox: tell the user that the log of the server has the details.",
            effects="unknown",
        )


async def _images(session: Session, answer: Envelope[Any]) -> list[tuple[bytes, str]]:
    """Return the image that a model wanted to read, if it was one."""
    found = answer.result
    if not (answer.ok and isinstance(found, ReadResult) and found.binary and found.offset is None):
        return []
    if not 0 < found.size_bytes <= MOST_IMAGE_BYTES:
        return []
    try:
        data = await session.place.fetch(found.path, MOST_IMAGE_BYTES)
    except SandboxError:
        return []
    kind = image_type(data)
    return [] if kind is None else [(data, kind)]


class _LastLine:
    """The last line that a command has printed. The output comes from another thread."""

    def __init__(self) -> None:
        self._tail = b""

    def take(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def text(self) -> str:
        lines = plain(self._tail.decode("utf-8", "replace")).split("\n")
        line = next((each for each in reversed(lines) if each.strip()), "")
        return str(clean(last_part(line.strip(), LINE_CHARS)))
