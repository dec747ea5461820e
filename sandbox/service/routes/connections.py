"""The connections that a sandbox has made, or has tried, in the order in which they ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.network.connections import Connection
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.house import User, house_of, sandbox_of
from sandbox.service.http.event_stream import COMMENT, COMMENT_SECONDS, EventStream, event
from sandbox.service.http.payloads.reading import offset_of, wants_events

router = APIRouter(tags=["connections"])
# How often it is looked for others while somebody listens.
LOOK_SECONDS = 0.25


@router.get("/v1/sandboxes/{sandbox_id}/connections")
async def list_connections(request: Request, caller: User, sandbox_id: str) -> Response:
    """List the last 1,000 connections, or stream those that end from now on, or after Last-Event-ID."""
    live = sandbox_of(request, caller, sandbox_id)
    asked = offset_of(request)
    count, last = _log(await live.ready())
    if not wants_events(request):
        items = [_data(number, each) for number, each in _after(0, count, last)]
        return JSONResponse({"items": items, "next_cursor": None})
    # A service that was restarted counts anew.
    start = count if asked is None else asked if asked <= count else 0
    keys = house_of(request).keys
    return EventStream(_events(live, start, lambda: keys.is_valid(caller) and not house_of(request).draining))


async def _events(live: LiveSandbox, at: int, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    yield COMMENT
    quiet = 0.0
    while is_allowed() and not live.is_over:
        # Only if there is news: a tenant may have thousands of these streams.
        if live.environment is not None and _inner(live.environment).connection_count != at:
            count, last = _log(live.environment)
            at = min(at, count)
            for number, each in _after(at, count, last):
                at, quiet = number, 0.0
                yield event("connection", _data(number, each), number)
        await asyncio.sleep(LOOK_SECONDS)
        quiet += LOOK_SECONDS
        if quiet >= COMMENT_SECONDS:
            quiet = 0.0
            yield COMMENT


def _log(environment: Any) -> tuple[int, tuple[Connection, ...]]:
    inner = _inner(environment)
    while True:
        count, last = inner.connection_count, inner.connections
        if inner.connection_count == count:  # else one has ended meanwhile, and the numbers would be wrong
            return count, last


def _inner(environment: Any) -> SandboxedEnvironment:
    inner = environment.environment
    assert isinstance(inner, SandboxedEnvironment)  # noqa: S101  # the fleet makes no other
    return inner


def _after(at: int, count: int, last: tuple[Connection, ...]) -> list[tuple[int, Connection]]:
    """Return the connections after the one with that number, with their own, which grow by one."""
    numbered = list(enumerate(last, max(0, count - len(last)) + 1))
    return [(number, each) for number, each in numbered if number > at]


def _data(number: int, connection: Connection) -> dict[str, Any]:
    return {"id": number, **connection.to_dict()}
