"""The Connect protocol as far as clients of E2B use it: JSON, uncompressed, over HTTP/1.1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Send

from sandbox.errors import SandboxError
from sandbox.service.http.payloads.json_text import read_json
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem
from sandbox.service.wire.e2b.errors import JSON, SandboxGoneError, WireError, wire_error

STREAM = "application/connect+json"
MESSAGE, END = 0, 2
HEAD_BYTES: Final = 5
# Of one message: input for a command, or its variables.
MOST_BYTES = 8 << 20
KEEPALIVE_SECONDS = 90.0
_MOST_MS = 10**12


async def read_call(request: Request) -> dict[str, Any]:
    """Return the message of a call. Raises WireError, Problem."""
    _check_type(request, JSON)
    return read_json(await body_of(request, MOST_BYTES))


async def read_stream_call(request: Request) -> dict[str, Any]:
    """Return the one message of a call that is answered with a stream. Raises WireError, Problem."""
    _check_type(request, STREAM)
    data = await body_of(request, MOST_BYTES + HEAD_BYTES)
    if len(data) < HEAD_BYTES or int.from_bytes(data[1:HEAD_BYTES], "big") != len(data) - HEAD_BYTES:
        raise WireError("invalid_argument", "The body is not one message of the Connect protocol.")
    return _message(data[0], data[HEAD_BYTES:])


async def read_messages(request: Request) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the messages of a stream from the client. Raises WireError, Problem."""
    _check_type(request, STREAM)
    data = bytearray()
    async for part in request.stream():
        data += part
        while len(data) >= HEAD_BYTES:
            size = int.from_bytes(data[1:HEAD_BYTES], "big")
            if size > MOST_BYTES:
                raise WireError("resource_exhausted", f"A message has {size} bytes, and the limit is {MOST_BYTES}.")
            if len(data) < HEAD_BYTES + size:
                break
            flag, body = data[0], bytes(data[HEAD_BYTES : HEAD_BYTES + size])
            del data[: HEAD_BYTES + size]
            if flag == END:
                return
            yield _message(flag, body)


def _message(flag: int, data: bytes) -> dict[str, Any]:
    if flag != MESSAGE:
        raise WireError("unimplemented", "Messages cannot be compressed here.")
    return read_json(data)


def _check_type(request: Request, wanted: str) -> None:
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != wanted:
        raise WireError("invalid_argument", f"Content-Type is {found[:80]!r}: only {wanted} is supported.", 415)


def timeout_of(request: Request) -> float | None:
    """Return after how many seconds the client wants the call to end, None for no such time. Raises WireError."""
    text = request.headers.get("connect-timeout-ms")
    if text is None or text == "0":
        return None
    if not (text.isascii() and text.isdecimal() and int(text) <= _MOST_MS):
        raise WireError("invalid_argument", f"Connect-Timeout-Ms is {text[:40]!r}.")
    return int(text) / 1000


def keepalive_of(request: Request) -> float:
    """Return how many seconds a stream may be silent."""
    text = request.headers.get("keepalive-ping-interval", "")
    return max(1.0, min(float(text), 3600.0)) if text.isascii() and text.isdecimal() and len(text) < 9 else KEEPALIVE_SECONDS


def reply(data: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a call."""
    return Response(json.dumps(data).encode(), media_type=JSON, headers=dict(headers or {}))


def frame(data: Mapping[str, Any], flag: int = MESSAGE) -> bytes:
    """Return one message of a stream."""
    text = json.dumps(data).encode()
    return b"".join((bytes((flag,)), len(text).to_bytes(4, "big"), text))


class _Stream(StreamingResponse):
    """A stream whose connection is cut if the sandbox ends: clients then ask whether it runs, and report that it does not."""

    media_type = STREAM

    async def stream_response(self, send: Send) -> None:
        """See the base class; an answer without its end makes the server close the connection."""
        try:
            await super().stream_response(send)
        except SandboxGoneError:
            return


def stream(messages: AsyncGenerator[Mapping[str, Any], None], sandbox: str) -> Response:
    """Return messages as a stream; what they raise is its end."""
    return _Stream(_frames(messages, sandbox), headers={"Cache-Control": "no-store"})


def failed_stream(error: WireError) -> Response:
    """Return a stream of nothing but an error: streams are answered 200."""
    return Response(frame({"error": error.data()}, END), media_type=STREAM)


async def _frames(messages: AsyncGenerator[Mapping[str, Any], None], sandbox: str) -> AsyncIterator[bytes]:
    try:
        async with aclosing(messages):
            async for message in messages:
                yield frame(message)
    except (WireError, SandboxError, Problem) as error:
        wrong = error if isinstance(error, WireError) else wire_error(error, sandbox)
        if isinstance(wrong, SandboxGoneError):
            raise wrong from error
        yield frame({"error": wrong.data()}, END)
    else:
        yield frame({}, END)


async def kept_alive(
    messages: AsyncGenerator[Mapping[str, Any], None], seconds: float, keepalive: Mapping[str, Any]
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the messages, and ``keepalive`` where none comes for so long."""
    waiting: asyncio.Task[Mapping[str, Any] | None] | None = None
    try:
        while True:
            waiting = waiting or asyncio.create_task(_next(messages))
            await asyncio.wait([waiting], timeout=seconds)
            if not waiting.done():
                yield keepalive
                continue
            message, waiting = waiting.result(), None
            if message is None:
                return
            yield message
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await messages.aclose()


async def _next(messages: AsyncGenerator[Mapping[str, Any], None]) -> Mapping[str, Any] | None:
    return await anext(messages, None)
