"""Carry out operations: the answer is the envelope, as JSON or at the end of a stream of events."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import Scope

from sandbox.operations import OPERATIONS
from sandbox.operations.base import Transfer
from sandbox.operations.wire import STATE_METHODS
from sandbox.service.fleet.live_sandbox import is_repeatable
from sandbox.service.house import Reader, User, house_of, sandbox_of, user
from sandbox.service.http.bodies import checked_arguments
from sandbox.service.http.event_stream import COMMENT, COMMENT_SECONDS, EventStream, event
from sandbox.service.http.payloads.large_json import read_large_json
from sandbox.service.http.payloads.reading import has_header, is_request_id, offset_of, request_id, wants_events
from sandbox.service.http.problems import Problem, ProblemCode, not_allowed
from sandbox.service.http.route_table import OPERATION_PATH, methods_of
from sandbox.service.keys import Caller
from sandbox.service.operators.facts import note
from sandbox.service.requests.answers import Answer
from sandbox.service.requests.bridges import BrokenOffError
from sandbox.service.requests.output import OutputGoneError, OutputLog
from sandbox.service.requests.under_way import Requests, RequestUnderWay, unknown_request
from sandbox.service.settings import Settings

router = APIRouter(tags=["operations"])
NAMES = (*(name for name, kind in OPERATIONS.items() if not issubclass(kind, Transfer)), *STATE_METHODS)
# The client of a request that reads may be a moment before the request itself.
BEGIN_SECONDS, LOOK_SECONDS = 10.0, 0.02
STOP_SECONDS = 30.0
# Of operations with a text of a file, and of those with an input, as escapes: 8 MiB, 1 MiB and more. ``body_bytes`` may be less.
_BODY_BYTES = {"write": 1 << 30, "edit": 1 << 30, "run": 64 << 20, "send": 8 << 20}
_OTHER_BODY_BYTES = 1 << 20


@router.post("/v1/sandboxes/{sandbox_id}/{operation}")
async def operate(request: Request, caller: User, sandbox_id: str, operation: str) -> Response:
    """Carry out an operation. 200 with the envelope, also for what the action could not do."""
    if operation in NAMES:  # else it is not for logs and audits to repeat
        note(request.scope, operation=operation, changes=not is_repeatable(operation))
    live = sandbox_of(request, caller, sandbox_id)
    if operation not in NAMES:
        if methods := methods_of(request.app, request.scope["path"], NAMES):
            raise not_allowed(request.method, request.scope["path"], methods)
        raise Problem(
            404,
            ProblemCode.unknown_operation,
            f"There is no operation {operation!r:.80}.",
            f"Use one of: {', '.join(NAMES)}; files and folders are sent with PUT .../files and .../trees.",
        )
    house = house_of(request)
    offset = offset_of(request)
    reads = has_header(request, "X-Gamebox-Stdin", "stream")
    async with house.bodies.body(request, _most_bytes(operation, house.settings), caller.tenant) as body:
        args = await read_large_json(body.data)
        if (refused := checked_arguments(operation, args)) is not None:
            raise Problem(
                422, ProblemCode.invalid_body, f"{operation} does not accept {refused} over HTTP.", f"Leave out {refused}."
            )
        ident = _ident(request, args)
        sent = await live.send(house.database, operation, args, ident, streams=wants_events(request), reads=reads)
        if sent.task is not None:
            body.keep_for(sent.task)
    return await _answered(request, caller, sent, offset)


class OperationRoute(Route):
    """The way to ``operate`` for the operations that there are: tried before all other routes, and without FastAPI.

    Its dependencies and the search through some sixty routes took half a millisecond of each request.
    """

    tags = ("operations",)

    def __init__(self) -> None:
        super().__init__(OPERATION_PATH, self._operate, methods=["POST"], name=operate.__name__)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a known operation; the others are left to the route that refuses them."""
        match, more = super().matches(scope)
        if match is not Match.FULL or more["path_params"]["operation"] not in NAMES:
            return Match.NONE, {}
        return match, {**more, "route": self}

    async def _operate(self, request: Request) -> Response:
        return await operate(request, await user(request), **request.path_params)


@router.put("/v1/sandboxes/{sandbox_id}/requests/{request_id}/stdin", status_code=204)
async def feed(request: Request, caller: User, sandbox_id: str, request_id: str) -> Response:
    """Stream the standard input of a command, no faster than it reads; if the body breaks off, the command is stopped."""
    requests = sandbox_of(request, caller, sandbox_id).requests
    if not is_request_id(request_id):  # none will come
        raise unknown_request(request_id)
    sent = await _begun(requests, request_id)
    if sent.stdin is None:
        raise Problem(
            409,
            ProblemCode.wrong_state,
            "This request does not read a stream.",
            "Send run with the header 'X-Gamebox-Stdin: stream'.",
        )
    try:
        async for data in request.stream():
            await sent.stdin.write(data)
        sent.stdin.finish()
    except BrokenOffError:
        pass  # it reads no more
    except ClientDisconnect:
        sent.cancel.cancel()
        raise
    return Response(status_code=204)


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
    return await _answered(request, caller, sent, offset_of(request))


@router.delete("/v1/sandboxes/{sandbox_id}/requests/{request_id}", status_code=204)
async def cancel_request(request: Request, caller: User, sandbox_id: str, request_id: str) -> Response:
    """Stop a request, and answer when nothing of it runs any more. Its own answer is the failure ``cancelled``.

    Only commands and waiting can be stopped; others are waited for.
    """
    await sandbox_of(request, caller, sandbox_id).requests.stop(request_id, STOP_SECONDS)
    return Response(status_code=204)


def _most_bytes(operation: str, settings: Settings) -> int:
    """Return how large the body of an operation may be."""
    return min(settings.body_bytes, _BODY_BYTES.get(operation, _OTHER_BODY_BYTES))


async def _begun(requests: Requests, ident: str) -> RequestUnderWay:
    until = asyncio.get_running_loop().time() + BEGIN_SECONDS
    while True:
        try:
            return requests.find(ident)
        except Problem:
            if asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(LOOK_SECONDS)


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


async def _answered(request: Request, caller: Caller, sent: RequestUnderWay, offset: int | None) -> Response:
    with_bytes = has_header(request, "X-Gamebox-Bytes", "base64")
    if not wants_events(request):
        answer = await sent.wait()
        _note_failure(request, answer)
        return Response(
            answer.json(with_bytes=with_bytes), media_type="application/json", headers={"X-Request-Id": sent.id}
        )
    start = offset or 0
    if _is_gone(sent, offset):
        raise Problem(
            410,
            ProblemCode.output_gone,
            f"The output from byte {start} on is no longer kept.",
            "Send the request again without 'Accept: text/event-stream', and read the output with logs, by the id of the command.",
        )
    keys = house_of(request).keys
    return EventStream(_events(request, sent, start, lambda: keys.is_valid(caller), with_bytes=with_bytes))


def _note_failure(request: Request, answer: Answer) -> None:
    """Note for log and audit what an operation came to."""
    if answer.code:
        note(request.scope, code=answer.code)


def _is_gone(sent: RequestUnderWay, offset: int | None) -> bool:
    """Return whether the output from there on cannot be streamed: the service that had it is dead, or it was dropped."""
    if sent.output is None:
        return sent.resent and offset is not None
    try:
        sent.output.after(offset or 0)
    except OutputGoneError:
        return True
    return False


async def _events(
    request: Request, sent: RequestUnderWay, offset: int, is_allowed: Callable[[], bool], *, with_bytes: bool
) -> AsyncIterator[bytes]:
    """Yield output as it comes, then notices and the envelope. A reader that is too far behind, or not allowed any more, is cut."""
    if sent.output is not None:
        try:
            async with aclosing(_output(sent.output, offset, is_allowed)) as lines:
                async for line in lines:
                    yield line
        except OutputGoneError:
            return
        offset = sent.output.end
    task = sent.task
    while task is not None and not task.done():
        await asyncio.wait([task], timeout=COMMENT_SECONDS)
        if not task.done():
            yield COMMENT
        if not is_allowed():
            return
    answer = await sent.wait()
    _note_failure(request, answer)
    for notice in answer.notices:
        yield event("notice", notice.to_dict(), offset)
    yield event("envelope", answer.json(with_bytes=with_bytes), offset)


async def _output(output: OutputLog, offset: int, is_allowed: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """Yield the output from ``offset`` to its end. Raises OutputGoneError."""
    with output.reading(offset) as note:
        while is_allowed():
            pieces = output.after(offset)
            for piece in pieces:
                data = {"stream": piece.stream, "offset": piece.offset, "data_base64": b64encode(piece.data).decode()}
                yield event("output", data, piece.end)
                offset = piece.end
                note(offset)
            if not pieces and output.ended:
                return
            if not pieces and not await output.wait(offset, COMMENT_SECONDS):
                yield COMMENT
    raise OutputGoneError
