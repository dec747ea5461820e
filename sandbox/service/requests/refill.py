"""The output of a run that another service sent, from the sandbox, which keeps it: for those who follow it by its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sandbox.aio import AsyncEnvironment
from sandbox.errors import ErrorCode, SandboxError

from .output import OutputLog

# What a sandbox says of the streams of its output; of much that changes often, or from an older one, it is not known.
STREAMS = {1: "stdout", 2: "stderr"}
UNKNOWN = "output"
# As many as one answer tells.
MOST_STREAMS = 256
PIECE_BYTES = 256 << 10
# How long one request to the sandbox waits for more; a run that waits for its session is looked for as often.
WAIT_SECONDS, LOOK_SECONDS = 10.0, 0.1


async def refill(environment: AsyncEnvironment, request_id: str, output: OutputLog, is_answered: Callable[[], bool]) -> None:
    """Append all output of the run with that request id to ``output``, until it has ended or was answered.

    What the sandbox does not keep any more is left out: those who are to read it get an OutputGoneError.
    """
    while True:
        options: dict[str, Any] = {"offset": output.end, "max_bytes": PIECE_BYTES, "follow": True}
        answered = is_answered()
        try:
            logs = await environment.logs(request_id, **options, wait_seconds=0.0 if answered else WAIT_SECONDS)
        except SandboxError:  # the run is answered so, too
            return
        if not logs.ok:
            if answered or logs.code is not ErrorCode.unknown_command:
                return
            await asyncio.sleep(LOOK_SECONDS)  # it was not started yet
            continue
        found = logs.result
        if found.offset > output.end:
            output.skip_to(found.offset)
        if found.content_bytes:
            for stream, part in by_stream(found.content_bytes, found.streams):
                await output.room(len(part))
                output.add(stream, part)
        elif answered or not found.running:
            return


def by_stream(data: bytes, streams: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of output with the stream of each; the rest is left out if one answer could tell no more of them."""
    at = 0
    for stream, length in streams:
        if part := data[at : at + length]:
            yield STREAMS[stream], part
        at += length
    if len(streams) < MOST_STREAMS and (rest := data[at:]):
        yield UNKNOWN, rest
