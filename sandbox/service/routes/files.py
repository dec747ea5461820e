"""Files as bytes and folders as tars, streamed both ways: no body is ever held whole."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.responses import StreamingResponse
from starlette.types import Send

from sandbox import operations as op
from sandbox.aio import AsyncEnvironment
from sandbox.envelope import Envelope, Failure, Success
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations.wire import envelope_data
from sandbox.service.house import House, User, house_of, sandbox_of
from sandbox.service.http.bodies import Body, read_body
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode, problem_of

log = logging.getLogger(__name__)
router = APIRouter(tags=["files"])
CHUNKS = "application/vnd.gamebox.chunks"
BODY_BYTES = 1 << 16
# Pieces of a download that wait for its client; each is at most 256 KiB.
PIECES_AHEAD = 4
# What programs in a sandbox wrote is no page of ours.
HOSTILE = {
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class DownloadBody(Body):
    """What is to be downloaded."""

    path: str = Field(min_length=1, max_length=4096)
    without: tuple[str, ...] = Field((), max_length=20)


@router.put("/v1/sandboxes/{sandbox_id}/files")
async def put_file(request: Request, caller: User, sandbox_id: str, path: str, mode: str | None = None) -> Response:
    """Write a file with the body's bytes; 200 with the envelope of ``upload``. ``mode`` is octal, as in 755."""
    if mode is not None and not re.fullmatch(r"[0-7]{1,4}", mode):
        raise Problem(422, ProblemCode.invalid_query, f"mode is {mode!r:.20}, which is not octal.", "Give octal digits, as in 755.")
    live = sandbox_of(request, caller, sandbox_id)
    number = None if mode is None else int(mode, 8)
    return _envelope(await _upload(request, caller.tenant, live.ready(), "file", path, number, initial=False))


@router.put("/v1/sandboxes/{sandbox_id}/trees")
async def put_tree(request: Request, caller: User, sandbox_id: str, path: str, initial: bool = False) -> Response:
    """Unpack the body, a tar, into a folder; 200 with the envelope of ``upload``. ``initial``: changes are compared with it."""
    live = sandbox_of(request, caller, sandbox_id)
    return _envelope(await _upload(request, caller.tenant, live.ready(), "tree", path, None, initial=initial))


@router.get("/v1/sandboxes/{sandbox_id}/files")
async def get_file(request: Request, caller: User, sandbox_id: str, path: str) -> Response:
    """Return the bytes of a file, or of a Range of it."""
    environment = await sandbox_of(request, caller, sandbox_id).ready()
    found = (await _unwrapped(environment.execute("stat", {"path": path}))).model_dump()
    if found.get("type") != "file":
        error = SandboxError(ErrorCode.not_a_regular_file, f"{path[:300]!r} is not a file.", "Use GET .../trees.")
        raise problem_of(error)
    size = int(found["size_bytes"])
    first, last = range_of(request, size)
    headers = {**HOSTILE, "Accept-Ranges": "bytes", "Content-Length": str(last + 1 - first)}
    status = 200
    if "range" in request.headers:
        status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{size}"
    pieces = await begun(cut(pieces_of(house_of(request), caller.tenant, environment, path), first, last + 1))
    return Download(pieces, status, headers, "application/octet-stream")


@router.get("/v1/sandboxes/{sandbox_id}/trees")
async def get_tree(request: Request, caller: User, sandbox_id: str, path: str) -> Response:
    """Return a folder as a tar. A tar without its last two blocks of zeros was cut off."""
    environment = await sandbox_of(request, caller, sandbox_id).ready()
    found = (await _unwrapped(environment.execute("stat", {"path": path}))).model_dump()
    if found.get("type") != "directory":
        raise problem_of(SandboxError(ErrorCode.not_a_directory, f"{path[:300]!r} is not a folder.", "Use GET .../files."))
    pieces = await begun(pieces_of(house_of(request), caller.tenant, environment, path))
    return Download(pieces, 200, HOSTILE, "application/x-tar")


@router.post("/v1/sandboxes/{sandbox_id}/download")
async def download(request: Request, caller: User, sandbox_id: str) -> Response:
    """Return a file, or a folder as a tar, in chunks, and then the envelope."""
    body = read_body(DownloadBody, await body_of(request, BODY_BYTES))
    live = sandbox_of(request, caller, sandbox_id)
    try:
        environment = await live.ready()
    except SandboxError as error:
        return _envelope(Failure.of(error))
    return StreamingResponse(_chunks(request, caller.tenant, environment, body), 200, HOSTILE, CHUNKS)


async def _upload(
    request: Request,
    tenant: str,
    ready: Awaitable[AsyncEnvironment],
    kind: Literal["file", "tree"],
    path: str,
    mode: int | None,
    *,
    initial: bool,
) -> Envelope[Any]:
    try:
        inner = inner_of(await ready)
        async with house_of(request).fleet.workers.moving.turn(tenant):
            return await inner.upload_awaited(kind, request.stream(), path, mode=mode, initial=initial)
    except SandboxError as error:
        return Failure.of(error)


async def _chunks(
    request: Request, tenant: str, environment: AsyncEnvironment, body: DownloadBody
) -> AsyncIterator[bytes]:
    async with (
        house_of(request).fleet.workers.moving.turn(tenant),
        aclosing(_download(inner_of(environment), body.path, body.without)) as pieces,
    ):
        async for piece in pieces:
            if isinstance(piece, Success | Failure):
                yield bytes(4) + json.dumps(envelope_data(piece)).encode()
            else:
                yield b"".join((len(piece).to_bytes(4, "big"), piece))


async def pieces_of(
    house: House, tenant: str, environment: AsyncEnvironment, path: str
) -> AsyncGenerator[bytes | memoryview, None]:
    """Yield the bytes of a download. Raises SandboxError if it fails, which cuts the connection."""
    async with house.fleet.workers.moving.turn(tenant), aclosing(_download(inner_of(environment), path, ())) as pieces:
        async for piece in pieces:
            if isinstance(piece, Success | Failure):
                piece.unwrap()
            else:
                yield piece


async def _download(
    inner: SandboxedEnvironment, path: str, without: tuple[str, ...]
) -> AsyncGenerator[bytes | memoryview | Envelope[Any], None]:
    """Yield the bytes of a download as they come, and last its envelope. Few of them wait for a client that is slow."""
    pieces: asyncio.Queue[bytes | memoryview | Envelope[Any] | Exception] = asyncio.Queue(PIECES_AHEAD)

    async def work() -> None:
        try:
            await pieces.put(await inner.download_awaited(path, pieces.put, without=without))
        except SandboxError as error:
            await pieces.put(Failure.of(error))
        except Exception as error:  # noqa: BLE001  # raised where they are read
            await pieces.put(error)

    task = asyncio.create_task(work())
    try:
        while True:
            piece = await pieces.get()
            if isinstance(piece, Exception):
                raise piece
            yield piece
            if isinstance(piece, Success | Failure):
                return
    finally:
        task.cancel()


class Download(StreamingResponse):
    """A download that may fail after its first bytes: then its end is missing, by which its client knows that it was cut off."""

    async def stream_response(self, send: Send) -> None:
        """See the base class."""
        try:
            await super().stream_response(send)
        except SandboxError as error:
            log.info("a download was cut off: %s", error.code)


async def begun(
    pieces: AsyncGenerator[bytes | memoryview, None],
) -> AsyncGenerator[bytes | memoryview, None]:
    """Return the pieces when the first one is there. Raises SandboxError if there is none: it is not too late for a problem."""
    first = await anext(pieces, b"")

    async def both() -> AsyncGenerator[bytes | memoryview, None]:
        async with aclosing(pieces):
            if first:
                yield first
            async for piece in pieces:
                yield piece

    return both()


async def cut(
    pieces: AsyncGenerator[bytes | memoryview, None], start: int, end: int
) -> AsyncGenerator[bytes | memoryview, None]:
    """Yield the bytes from ``start`` to ``end``, and read no further. Raises SandboxError if there are not that many."""
    at = 0
    async with aclosing(pieces):
        async for data in pieces:
            part = data[max(0, start - at) : max(0, end - at)]
            at += len(data)
            if part:
                yield part
            if at >= end:
                return
    if at < end:
        raise SandboxError(
            ErrorCode.transfer_incomplete, "The file became shorter while it was read.", "Download it again.", retryable=True
        )


def range_of(request: Request, size: int) -> tuple[int, int]:
    """Return the first and the last byte that are asked for. Raises Problem."""
    header = request.headers.get("range")
    if header is None:
        return 0, size - 1
    found = _RANGE.fullmatch(header.strip())
    if found is None or found[0] == "bytes=-":
        raise _no_range(header, size)
    start, end = found.groups()
    if not start:  # the last bytes
        first, last = max(0, size - int(end)), size - 1
    else:
        first, last = int(start), min(int(end) if end else size - 1, size - 1)
    if first > last:
        raise _no_range(header, size)
    return first, last


def _no_range(header: str, size: int) -> Problem:
    return Problem(
        416,
        ProblemCode.range_not_satisfiable,
        f"The Range {header[:80]!r} is not within the file, which has {size} bytes.",
        "Ask for one range, as in 'bytes=0-1023'.",
        headers={"Content-Range": f"bytes */{size}"},
    )


async def _unwrapped(answer: Awaitable[Envelope[Any]]) -> op.Result:
    found: op.Result = (await answer).unwrap()
    return found


def inner_of(environment: AsyncEnvironment) -> SandboxedEnvironment:
    """Return the environment that is not asynchronous, which moves bytes."""
    inner = environment.environment
    assert isinstance(inner, SandboxedEnvironment)  # noqa: S101  # the fleet makes no other
    return inner


def _envelope(envelope: Envelope[Any]) -> Response:
    return Response(json.dumps(envelope_data(envelope)).encode(), media_type="application/json")


