"""Carry out operations: the answer is the envelope, as JSON or at the end of a stream of events."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from sandbox.operations import OPERATIONS
from sandbox.operations.base import Transfer
from sandbox.service.bodies import checked_arguments, read_json
from sandbox.service.event_stream import COMMENT, COMMENT_SECONDS, EventStream, event
from sandbox.service.house import Reader, User, house_of, sandbox_of
from sandbox.service.output import OutputGoneError
from sandbox.service.problems import Problem, ProblemCode
from sandbox.service.reading import body_of, is_request_id, offset_of, request_id, wants_events
from sandbox.service.requests_under_way import RequestUnderWay

router = APIRouter(tags=["operations"])
NAMES = tuple(name for name, kind in OPERATIONS.items() if not issubclass(kind, Transfer))


@router.post("/v1/sandboxes/{sandbox_id}/{operation}")
async def operate(request: Request, caller: User, sandbox_id: str, operation: str) -> Response:
    """Carry out an operation. 200 with the envelope, also for what the action could not do."""
    live = sandbox_of(request, caller, sandbox_id)
    if operation not in NAMES:
        raise Problem(
            404,
            ProblemCode.unknown_operation,
            f"There is no operation {operation!r:.80}.",
            f"Use one of: {', '.join(NAMES)}; files and folders are sent with PUT .../files and .../trees.",
        )
    house = house_of(request)
    args = read_json(await body_of(request, house.settings.body_bytes))
    if (refused := checked_arguments(OPERATIONS[operation], args)) is not None:
        raise Problem(
            422, ProblemCode.invalid_body, f"{operation} takes no {refused} from a client.", f"Leave out {refused}."
        )
    ident = _ident(request, args)
    offset = offset_of(request)
    sent = await live.send(house.database, operation, args, ident, streams=wants_events(request))
    return await _answered(request, sent, offset)


@router.get("/v1/sandboxes/{sandbox_id}/requests")
async def list_requests(request: Request, caller: Reader, sandbox_id: str) -> dict[str, Any]:
    """List the requests that are under way."""
    live = sandbox_of(request, caller, sandbox_id)
    items = [{"id": each.id, "operation": each.operation} for each in live.requests.under_way()]
    return {"items": items, "next_cursor": None}


@router.get("/v1/sandboxes/{sandbox_id}/requests/{request_id}")
async def get_request(request: Request, caller: User, sandbox_id: str, request_id: str) -> Response:
    """Wait for the answer to a request that was sent before, or follow its output from Last-Event-ID on."""
    sent = sandbox_of(request, caller, sandbox_id).requests.find(request_id)
    return await _answered(request, sent, offset_of(request))


@router.delete("/v1/sandboxes/{sandbox_id}/requests/{request_id}", status_code=202)
async def cancel_request(request: Request, caller: User, sandbox_id: str, request_id: str) -> dict[str, str]:
    """Stop a request: the command and all it started are killed, and its answer is the failure ``cancelled``."""
    sent = sandbox_of(request, caller, sandbox_id).requests.find(request_id)
    sent.cancel.cancel()
    return {"id": sent.id, "operation": sent.operation}


def _ident(request: Request, args: dict[str, Any]) -> str:
    """Return the id of the request; the one in its arguments is the same, in another place."""
    ident, own = args.pop("request_id", None), request.headers.get("x-request-id")
    if ident is None:
        ident = request_id(request)
    if not is_request_id(ident) or (own is not None and own != ident):
        raise Problem(
            422,
            ProblemCode.invalid_query,
            "The request id is not valid." if own in (None, ident) else "X-Request-Id and request_id differ.",
            "Send one id of up to 64 letters, digits, '.', '_' and '-'.",
        )
    return str(ident)


async def _answered(request: Request, sent: RequestUnderWay, offset: int | None) -> Response:
    if not wants_events(request):
        return Response(await sent.wait(), media_type="application/json", headers={"X-Request-Id": sent.id})
    output, start = sent.output, offset or 0
    if output is not None:
        try:
            output.after(start)
        except OutputGoneError:
            raise Problem(
                410,
                ProblemCode.output_gone,
                f"The output from byte {start} on is not kept here any more.",
                "Read it with logs, by the id of the command.",
            ) from None
    return EventStream(_events(sent, start))


async def _events(sent: RequestUnderWay, offset: int) -> AsyncIterator[bytes]:
    """Yield output as it comes, then notices and the envelope. A reader that is too far behind is cut."""
    output = sent.output
    while output is not None:
        try:
            pieces = output.after(offset)
        except OutputGoneError:
            return
        for piece in pieces:
            data = {"stream": piece.stream, "offset": piece.offset, "data_base64": base64.b64encode(piece.data).decode()}
            yield event("output", data, piece.end)
            offset = piece.end
        if not pieces and output.ended:
            break
        if not pieces and not await output.wait(offset, COMMENT_SECONDS):
            yield COMMENT
    async for each in _last_events(sent, offset):
        yield each


async def _last_events(sent: RequestUnderWay, offset: int) -> AsyncIterator[bytes]:
    task = sent.task
    while task is not None and not task.done():
        await asyncio.wait([task], timeout=COMMENT_SECONDS)
        if not task.done():
            yield COMMENT
    answer = await sent.wait()
    for notice in json.loads(answer).get("notices", ()):
        yield event("notice", notice, offset)
    yield event("envelope", answer, offset)
