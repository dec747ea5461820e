"""Bytes between a task and a thread: all of them, in order, in bounded memory, and neither side waits for one that has left."""

from __future__ import annotations

import asyncio
import random

import pytest

from sandbox.service.requests.bridges import BodyBridge, BrokenOffError

DATA = random.Random(1).randbytes(5_000_000)
PIECES = [DATA[at : at + 50_000] for at in range(0, len(DATA), 50_000)]


def test_a_thread_reads_all_that_a_task_writes() -> None:
    async def work() -> bytes:
        bridge = BodyBridge()
        reading = asyncio.create_task(asyncio.to_thread(lambda: b"".join(bridge)))
        for piece in PIECES:
            await bridge.write(piece)
        bridge.finish()
        return await reading

    assert asyncio.run(work()) == DATA


def test_a_task_that_writes_is_told_when_the_reader_leaves() -> None:
    async def work() -> None:
        bridge = BodyBridge()

        async def write() -> None:
            while True:
                await bridge.write(bytes(100_000))

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.1)
        bridge.break_off()
        with pytest.raises(BrokenOffError):
            await asyncio.wait_for(writing, 60)

    asyncio.run(work())


def test_a_reader_is_told_when_the_writer_leaves_before_the_end() -> None:
    async def work() -> None:
        bridge = BodyBridge()
        await bridge.write(b"begun")
        reading = asyncio.create_task(asyncio.to_thread(lambda: b"".join(bridge)))
        await asyncio.sleep(0.05)
        bridge.break_off()
        with pytest.raises(BrokenOffError):
            await asyncio.wait_for(reading, 60)

    asyncio.run(work())
