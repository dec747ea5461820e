"""A WebSocket of the service whose client takes nothing, or is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect

from sandbox.service.connections import BEHIND, ENDED, FAILED, KEY_GONE, RESTART, Ending
from sandbox.service.http import sockets
from sandbox.service.http.sockets import Socket


class Stalled:
    """A WebSocket whose client takes nothing until ``taken``. ``closed`` has what it was closed with, ``aborted`` if it was cut."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.closed: list[tuple[int, str]] = []
        self.aborted = False
        self.scope = {"state": {"transport": self}}

    async def send_bytes(self, _: bytes) -> None:
        await self.taken.wait()

    async def close(self, code: int, reason: str) -> None:
        await self.taken.wait()
        self.closed.append((code, reason))

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(sockets, "LOOK_SECONDS", 0.01)


def ended(work: Any, stalled: Stalled, is_allowed: Any = lambda: None) -> Any:
    """Run ``work(socket)`` and close; return the ending."""

    async def run() -> Ending | None:
        wire = Socket(stalled)  # type: ignore[arg-type]
        ending = await wire.run(work(wire), is_allowed=is_allowed)
        await wire.close(ending)
        return ending

    return run()


def test_a_reader_that_is_far_behind_is_cut() -> None:
    async def check() -> tuple[int, bool]:
        asked, stalled = 0, Stalled()

        async def is_behind() -> bool:
            nonlocal asked
            asked += 1
            return asked == 3

        async def send(wire: Socket) -> Ending:
            await wire.send(b"x", is_behind)
            return ENDED

        assert await ended(send, stalled) is BEHIND
        assert not stalled.closed
        return asked, stalled.aborted

    assert asyncio.run(check()) == (3, True)


def test_one_that_takes_its_time_is_waited_for() -> None:
    async def check() -> list[tuple[int, str]]:
        stalled = Stalled()

        async def is_behind() -> bool:
            stalled.taken.set()
            return False

        async def send(wire: Socket) -> Ending:
            await wire.send(b"x", is_behind)
            return ENDED

        assert await ended(send, stalled) is ENDED
        return stalled.closed

    assert asyncio.run(check()) == [(1000, "ended")]


def test_one_that_cannot_be_told_of_the_end_is_cut() -> None:
    async def check() -> bool:
        async def work(_: Socket) -> Ending:
            return ENDED

        stalled = Stalled()
        await ended(work, stalled)
        return stalled.aborted and not stalled.closed

    assert asyncio.run(check())


def test_a_key_that_expires_and_a_service_that_ends() -> None:
    async def check() -> None:
        async def wait(_: Socket) -> Ending:
            await asyncio.Event().wait()
            return ENDED

        async def end(wire: Socket) -> Ending:
            wire.end(RESTART)
            wire.end(KEY_GONE)  # the first one holds
            return await wait(wire)

        first, second = Stalled(), Stalled()
        first.taken.set()
        second.taken.set()
        assert await ended(wait, first, lambda: KEY_GONE) is KEY_GONE
        assert await ended(end, second) is RESTART

    asyncio.run(check())


def test_a_client_that_is_gone_and_a_bug() -> None:
    async def check() -> None:
        async def gone(wire: Socket) -> Ending:
            await wire.send(b"x")
            return ENDED

        async def bug(_: Socket) -> Ending:
            raise ValueError

        class Gone(Stalled):
            async def send_bytes(self, _: bytes) -> None:
                raise WebSocketDisconnect(1006)

        stalled = Gone()
        stalled.taken.set()
        assert await ended(gone, stalled) is None
        assert await ended(bug, stalled) is FAILED

    asyncio.run(check())
