"""The endpoints of envd over plain HTTP: files up and down, health, metrics, variables."""

from __future__ import annotations

import asyncio
import json
import posixpath
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from sandbox.service.operators.facts import note
from sandbox.service.routes import files as moving
from sandbox.service.wire.e2b.errors import JSON, EnvdRoute, WireError, unwrapped
from sandbox.service.wire.e2b.sandboxes import usage_of

from .access import EnvdFilesUser, EnvdUser, Session
from .entries import METADATA, entry_at
from .filesystem import own_user_only, path_in
from .multipart import parts_of
from .parents import make_writable

router = APIRouter(tags=["e2b"], route_class=EnvdRoute)
METADATA_HEADER = "x-metadata-"
MOST_KEY_BYTES, MOST_METADATA_BYTES = 246, 4096
MOST_FILES = 1000
# Compressed and not: a body of zeros becomes a thousand times as large.
UNZIP_BYTES = 256 << 10
# A file is compressed if that saves a tenth of its beginning, and if there is something to be saved.
SAMPLE_BYTES, LEAST_ZIPPED_BYTES, WORTH_IT = 4 << 10, 1 << 10, 0.9
_WEIGHT = re.compile(r"[01](\.[0-9]{0,3})?")
_KEY = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(r"[ -~]*")


@router.get("/health", status_code=204)
async def health(session: EnvdUser) -> Response:
    """Say that the sandbox runs."""
    await session.live.ready()
    return Response(status_code=204)


@router.get("/envd/metrics")
async def metrics(session: EnvdUser) -> Response:
    """Return what the kernel counts for the sandbox."""
    found = await usage_of(session.house, session.live)
    data = {
        "ts": found["timestampUnix"],
        "cpu_count": found["cpuCount"],
        "cpu_used_pct": found["cpuUsedPct"],
        "mem_total": found["memTotal"],
        "mem_used": found["memUsed"],
        "mem_cache": found["memCache"],
        "mem_total_mib": found["memTotal"] >> 20,
        "mem_used_mib": found["memUsed"] >> 20,
        "disk_used": found["diskUsed"],
        "disk_total": found["diskTotal"],
    }
    return _json(data)


@router.get("/envs")
async def variables(session: EnvdUser) -> Response:
    """Return the variables that commands get."""
    environment = await session.live.ready()
    answer = await environment.execute("run", {"argv": ["env", "-0"], "session": None, "timeout_seconds": 10})
    result = unwrapped(answer, session.sandbox)
    pairs = (each.partition("=") for each in result.stdout.split("\0") if "=" in each)
    return _json({name: value for name, _, value in pairs})


@router.post("/init")
async def init(session: EnvdUser) -> Response:  # noqa: ARG001
    """Refuse what only E2B's own orchestrator calls."""
    raise WireError("not_found", "There is no such endpoint.")


@router.get("/files")
async def get_file(request: Request, session: EnvdFilesUser) -> Response:
    """Return the bytes of a file, or of a Range of it; compressed if the client accepts gzip and that makes it smaller."""
    own_user_only(session)
    path = path_in(request.query_params)
    note(request.scope, operation="download", changes=True)
    entry = await entry_at(session, path)
    if entry.get("type") == "FILE_TYPE_DIRECTORY":
        raise WireError("invalid_argument", f"path '{path}' is a directory")
    if entry.get("type") != "FILE_TYPE_FILE":
        raise WireError("invalid_argument", f"path '{path}' is not a regular file")
    environment, size = await session.live.ready(), int(entry["size"])
    first_piece, pieces = await _begun(moving.pieces_of(session.house, session.caller.tenant, environment, path))
    headers = {**moving.HOSTILE, "Vary": "Accept-Encoding"}
    if "range" not in request.headers and is_zipped(request.headers.get("accept-encoding", ""), size, first_piece):
        return StreamingResponse(_zipped(pieces), 200, {**headers, "Content-Encoding": "gzip"}, "application/octet-stream")
    if size == 0:  # files of /proc say so, too
        return StreamingResponse(pieces, 200, headers, "application/octet-stream")
    first, last = moving.range_of(request, size)
    headers |= {"Accept-Ranges": "bytes", "Content-Length": str(last + 1 - first)}
    status = 200
    if "range" in request.headers:
        status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{size}"
    return StreamingResponse(moving.cut(pieces, first, last + 1), status, headers, "application/octet-stream")


async def _begun(
    pieces: AsyncGenerator[bytes | memoryview, None],
) -> tuple[bytes | memoryview, AsyncGenerator[bytes | memoryview, None]]:
    """Return the first piece, and all of them: what cannot be read is known before the answer begins."""
    first = await anext(pieces, b"")

    async def work() -> AsyncGenerator[bytes | memoryview, None]:
        async with aclosing(pieces):
            if first:
                yield first
            async for piece in pieces:
                yield piece

    return first, work()


def is_zipped(accepted: str, size: int, first_piece: bytes | memoryview) -> bool:
    """Return whether a file is sent compressed to a client that accepts these encodings.

    One that accepts nothing else gets every file so; others get what becomes smaller, as its beginning does, and is not tiny.
    """
    weights: dict[str, float] = {}
    for each in accepted.lower().split(","):
        name, _, parameters = each.partition(";")
        weight = parameters.replace(" ", "").removeprefix("q=")
        weights[name.strip()] = float(weight) if _WEIGHT.fullmatch(weight) else 1.0
    gzip = weights.get("gzip", weights.get("*", 0.0))
    if gzip <= 0 or gzip < weights.get("identity", 0.0):
        return False
    if weights.keys() == {"gzip"} or weights.get("identity") == 0:
        return True
    sample = bytes(first_piece[:SAMPLE_BYTES])
    return size >= LEAST_ZIPPED_BYTES and len(zlib.compress(sample, 1)) < len(sample) * WORTH_IT


async def _zipped(pieces: AsyncGenerator[bytes | memoryview, None]) -> AsyncIterator[bytes]:
    packing = zlib.compressobj(1, wbits=31)
    async with aclosing(pieces):
        async for piece in pieces:
            if packed := await asyncio.to_thread(packing.compress, piece):
                yield packed
    yield packing.flush()


@router.post("/files")
async def post_files(request: Request, session: EnvdFilesUser) -> Response:
    """Write files: those of a form, whose names are paths, or one with the bytes of the body."""
    own_user_only(session)
    note(request.scope, operation="upload", changes=True)
    metadata = _metadata(request)
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    query = request.query_params
    body = _unzipped(request)
    if kind.strip().lower() == "multipart/form-data":
        written: list[dict[str, Any]] = []
        async for name, data in parts_of(body, rest):
            if len(written) == MOST_FILES:
                raise WireError("invalid_argument", f"The form has more than {MOST_FILES} files.")
            path = path_in({"path": query["path"] if not written and query.get("path") else name})
            written.append(await _write(session, path, data, metadata))
        if not written:
            raise WireError("invalid_argument", "The form has no part named 'file'.")
        return _json(written)
    if kind.strip().lower() not in ("application/octet-stream", ""):
        raise WireError("invalid_argument", f"Content-Type is {kind[:80]!r}: send multipart/form-data or application/octet-stream.")
    if not query.get("path"):
        raise WireError("invalid_argument", "The query has no path.")
    return _json([await _write(session, path_in(query), body, metadata)])


async def _write(session: Session, path: str, data: AsyncIterator[bytes], metadata: dict[str, str]) -> dict[str, Any]:
    attributes = {f"{METADATA}{name}": value for name, value in metadata.items()}
    inner = moving.inner_of(await session.live.ready())
    await make_writable(session, path)
    async with session.house.fleet.workers.moving.turn(session.caller.tenant):
        unwrapped(await inner.upload_awaited("file", data, path, attributes=attributes), session.sandbox)
    answer: dict[str, Any] = {"path": path, "name": posixpath.basename(path), "type": "file"}
    return {**answer, "metadata": metadata} if metadata else answer


def _metadata(request: Request) -> dict[str, str]:
    """Return the metadata in the headers of an upload. Raises WireError."""
    found = {
        name.removeprefix(METADATA_HEADER): value
        for name, value in request.headers.items()
        if name.startswith(METADATA_HEADER)
    }
    for name, value in found.items():
        if not _KEY.fullmatch(name) or len(name) > MOST_KEY_BYTES or not _VALUE.fullmatch(value):
            raise WireError("invalid_argument", f"The metadata {name[:80]!r} is not valid: use printable ASCII.")
    if sum(len(name) + len(value) for name, value in found.items()) > MOST_METADATA_BYTES:
        raise WireError("invalid_argument", f"The metadata has more than {MOST_METADATA_BYTES} bytes.")
    return found


async def _unzipped(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the body, in pieces that are never large. Raises WireError."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        async for piece in request.stream():
            yield piece
        return
    if coding != "gzip":
        raise WireError("invalid_argument", f"Content-Encoding is {coding[:40]!r}: only gzip is supported.", 415)
    unpacking = zlib.decompressobj(wbits=31)
    try:
        async for piece in request.stream():
            waiting = piece
            while waiting:
                yield unpacking.decompress(waiting, UNZIP_BYTES)
                waiting = unpacking.unconsumed_tail
    except zlib.error as error:
        raise WireError("invalid_argument", f"The body is not gzip: {error}.") from error
    if not unpacking.eof:
        raise WireError("invalid_argument", "The body ends before its gzip does.")


def _json(data: Any) -> Response:
    return Response(json.dumps(data).encode(), media_type=JSON)
