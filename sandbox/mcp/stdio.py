"""Serve one client on standard input and output, until it closes them or a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping

from mcp.server.stdio import stdio_server

from .place import OwnSandbox
from .server import make_server
from .session import Session
from .tools import Tool

log = logging.getLogger(__name__)

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOK_SECONDS = 1.0
CLOSE_SECONDS = 20.0


def serve(place: OwnSandbox, tools: Mapping[str, Tool], *, asks: bool = False, idle_seconds: float | None = None) -> None:
    """Serve the sandbox until the client is gone. Nothing but messages is written to standard output.

    The sandbox ends when no call was made for ``idle_seconds``; the next call starts another one.
    """
    asyncio.run(_serve(place, tools, asks=asks, idle_seconds=idle_seconds))


async def _serve(place: OwnSandbox, tools: Mapping[str, Tool], *, asks: bool, idle_seconds: float | None) -> None:
    session = Session(place, asks=asks)
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    def end(number: int) -> None:
        ending.append(asyncio.create_task(_end(place, number)))

    for number in _ENDS:
        loop.add_signal_handler(number, end, number)
    watching = None if idle_seconds is None else asyncio.create_task(_end_idle(place, session, idle_seconds))
    server = make_server(lambda _: session, lambda _: tools)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        if watching is not None:
            watching.cancel()
        if ending:
            await ending[0]
        await _close(place)


async def _end_idle(place: OwnSandbox, session: Session, seconds: float) -> None:
    while True:
        await asyncio.sleep(min(LOOK_SECONDS, seconds / 4))
        if not session.under_way and time.monotonic() - session.worked_at > seconds:
            await _close(place)


async def _end(place: OwnSandbox, number: int) -> None:
    """End at once: a thread that reads standard input cannot be interrupted."""
    await _close(place)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(128 + number)


async def _close(place: OwnSandbox) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await place.close()
    except TimeoutError:
        log.warning("the sandbox did not end within %g seconds; it ends with this process", CLOSE_SECONDS)
