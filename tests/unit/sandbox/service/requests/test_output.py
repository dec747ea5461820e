"""The output of a request that is streamed: a command waits for readers, and not for those that have stopped reading."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandbox.service.requests import output as module
from sandbox.service.requests.output import OutputGoneError, OutputLog, Piece
from sandbox.service.requests.spill import Spill, SpillRoom

PIECE = b"x" * 1000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 4000)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 60.0)


Print = Callable[[OutputLog, int], Awaitable[float]]


async def print_in_a_thread(log: OutputLog, pieces: int) -> float:
    """Return the seconds that it takes to print them, in a thread as a pipe does."""

    def work() -> float:
        began = time.monotonic()
        for _ in range(pieces):
            log.append("stdout", PIECE)
        return time.monotonic() - began

    return await asyncio.to_thread(work)


async def print_in_the_loop(log: OutputLog, pieces: int) -> float:
    """Return the seconds that it takes to print them in the loop."""
    began = time.monotonic()
    for _ in range(pieces):
        await log.room(len(PIECE))
        log.add("stdout", PIECE)
    return time.monotonic() - began


@pytest.fixture(params=[print_in_a_thread, print_in_the_loop])
def printed(request: pytest.FixtureRequest) -> Print:
    found: Print = request.param
    return found


def test_a_command_waits_for_a_slow_reader(printed: Print) -> None:
    async def main() -> None:
        log, read = OutputLog(), 0
        printing = asyncio.ensure_future(printed(log, 40))
        with log.reading(0) as note:
            while read < 40 * len(PIECE):
                await asyncio.sleep(0.01)
                for piece in log.after(read):
                    read = piece.end
                    note(read)
                assert log.end - read <= 4000
        assert await printing >= 0.05

    asyncio.run(main())


def test_it_waits_for_the_first_reader_who_comes_a_moment_later(printed: Print) -> None:
    async def main() -> None:
        log = OutputLog()
        printing = asyncio.ensure_future(printed(log, 8))
        while log.end < 4000:  # noqa: ASYNC110  # printed by another thread
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        with log.reading(0):
            assert sum(len(piece.data) for piece in log.after(0)) == 4000
        await printing

    asyncio.run(main())


def test_nobody_waits_for_a_reader_who_takes_nothing_or_has_left(printed: Print, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)

    async def main() -> None:
        log = OutputLog()
        with log.reading(0):
            assert await printed(log, 40) >= 0.3
            with pytest.raises(OutputGoneError):
                log.after(0)
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 60.0)
        assert await printed(log, 400) < 30

    asyncio.run(main())


def test_a_command_that_is_stopped_waits_for_nobody(printed: Print) -> None:
    async def main() -> None:
        stopped: list[bool] = []
        log = OutputLog(lambda: bool(stopped))
        with log.reading(0):
            printing = asyncio.ensure_future(printed(log, 40))
            await asyncio.sleep(0.05)
            stopped.append(True)
            assert await printing < 30

    asyncio.run(main())


def test_a_piece_that_is_larger_than_all_that_is_kept() -> None:
    async def main() -> None:
        log = OutputLog()
        with log.reading(0) as note:
            note(0)
            await asyncio.to_thread(log.append, "stderr", b"y" * 9000)
            assert log.end == 9000

    asyncio.run(main())


async def read_all(log: OutputLog, offset: int) -> list[Piece]:
    found: list[Piece] = []
    while pieces := log.after(offset):
        found += pieces
        offset = pieces[-1].end
    return found


def test_what_is_older_is_read_from_the_spill(tmp_path: Path) -> None:
    async def main() -> None:
        log = OutputLog(lambda: True, Spill(SpillRoom(tmp_path / "output")))
        whole = b""
        for n in range(100):
            data = bytes([n]) * 300
            log.append("stderr" if n % 7 == 0 else "stdout", data)
            whole += data
        for start in (0, 1, 299, 300, 2100, 26_000, 29_999):
            found = await read_all(log, start)
            assert b"".join(piece.data for piece in found) == whole[start:]
            for piece in found:
                assert {piece.stream} == {"stderr" if byte % 7 == 0 else "stdout" for byte in piece.data}
        assert list((tmp_path / "output").iterdir()) == [], "a kill leaves no file"
        log.forget_spill()
        with pytest.raises(OutputGoneError):
            log.after(0)
        assert b"".join(piece.data for piece in await read_all(log, 26_100)) == whole[26_100:]

    asyncio.run(main())


def test_what_has_no_room_is_gone_and_room_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        room = SpillRoom(tmp_path / "output", most=10_000)
        log = OutputLog(lambda: True, Spill(room))
        for _ in range(20):
            log.append("stdout", PIECE)
        assert log.after(9_000)
        with pytest.raises(OutputGoneError):
            log.after(10_500)
        assert log.after(17_000)
        assert not room.take(1)
        log.forget_spill()
        assert room.take(10_000)

    asyncio.run(main())
