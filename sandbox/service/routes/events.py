"""What becomes of sandboxes, as server-sent events."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request

from sandbox.service.house import Reader, house_of, sandbox_of
from sandbox.service.http.event_stream import COMMENT, COMMENT_SECONDS, EventStream, event
from sandbox.service.http.payloads.reading import offset_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller
from sandbox.service.store.tables import sandboxes as rows
from sandbox.service.store.tables.sandboxes import Event

router = APIRouter(tags=["events"])
# After which the stream ends, for clients that look from time to time.
Seconds = Annotated[float | None, Query(ge=0, le=86400)]
# Events that are read from the store at once.
MOST_TOGETHER = 500


@router.get("/v1/events")
async def events(request: Request, caller: Reader, seconds: Seconds = None) -> EventStream:
    """Stream the states of all sandboxes of the tenant, from now on or after Last-Event-ID."""
    return await _stream(request, caller, None, seconds)


@router.get("/v1/sandboxes/{sandbox_id}/events")
async def events_of_sandbox(request: Request, caller: Reader, sandbox_id: str, seconds: Seconds = None) -> EventStream:
    """Stream the states of one sandbox, from now on or after Last-Event-ID."""
    return await _stream(request, caller, sandbox_of(request, caller, sandbox_id).record.id, seconds)


async def _stream(request: Request, caller: Caller, sandbox: str | None, seconds: float | None) -> EventStream:
    house, after = house_of(request), offset_of(request)
    past: list[Event] = []
    last = await house.database.call(lambda connection: rows.last_event(connection, caller.tenant)) if after is None else after
    watcher = house.broadcast.watch(caller.tenant, sandbox, caller.key)  # before the store is read, so that nothing is missed
    if after is not None:
        found = await house.database.call(
            lambda connection: rows.events_after(connection, caller.tenant, sandbox, after, MOST_TOGETHER)
        )
        if found is None:
            house.broadcast.leave(watcher)
            raise Problem(
                410,
                ProblemCode.events_gone,
                f"Some events after {after} are no longer kept.",
                "List the sandboxes, and ask for events without Last-Event-ID.",
            )
        past = found

    async def lines() -> AsyncIterator[bytes]:
        at, until = last, math.inf if seconds is None else time.monotonic() + seconds
        try:
            yield COMMENT
            for each in past:
                yield _line(each)
                at = each.id
            if len(past) == MOST_TOGETHER:  # there may be more: the client resumes
                return
            while not watcher.closed and house.keys.is_valid(caller):
                found = await watcher.next(max(0.0, min(COMMENT_SECONDS, until - time.monotonic())))
                if found is None and time.monotonic() >= until:
                    return
                if found is None:
                    yield COMMENT
                elif found.id > at:
                    at = found.id
                    yield _line(found)
        finally:
            house.broadcast.leave(watcher)

    return EventStream(lines())


def _line(found: Event) -> bytes:
    return event("state", found.data, found.id)
