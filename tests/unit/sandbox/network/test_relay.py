"""One connection on the host: how much is read of the far end, and in what order it goes to the sandbox."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from sandbox.guest.protocol.wire import MAX_PAYLOAD, TUNNEL_WINDOW, Kind
from sandbox.network.relay import Relay, open_served_relay
from tests.leaks import descriptors, left_open


class Told:
    """What went to the sandbox."""

    def __init__(self) -> None:
        self.data = b""
        self.kinds: list[int] = []
        self.largest = 0

    def __call__(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        self.kinds.append(kind)
        self.data += bytes(payload)
        self.largest = max(self.largest, len(payload))


async def _until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came to that")


async def _relayed(told: Told, early: bytes = b"") -> tuple[Relay, socket.socket]:
    far, near = socket.socketpair()
    far.setblocking(False)
    loop = asyncio.get_running_loop()
    _, relay = await loop.create_connection(lambda: Relay(1, told), sock=near)
    if early:
        relay.data_received(early)
    return relay, far


def test_a_relay_that_cannot_be_made_leaves_no_socket() -> None:
    """The package cache left both of a pair open, and its task waiting (review of the sandbox, 5.7)."""

    def fails() -> Relay:
        raise OSError("no more of it")

    async def go() -> None:
        await asyncio.sleep(0)
        before = descriptors()
        for _ in range(5):
            with pytest.raises(OSError, match="no more of it"):
                await open_served_relay(fails)
        await asyncio.sleep(0.01)
        assert left_open(before, 30) == []

    asyncio.run(go())


def test_no_more_is_read_than_the_sandbox_has_credit_for() -> None:
    async def go() -> None:
        told, whole = Told(), bytes(range(256)) * (3 * TUNNEL_WINDOW // 256)
        relay, far = await _relayed(told)
        loop = asyncio.get_running_loop()
        sending = loop.create_task(loop.sock_sendall(far, whole))
        await asyncio.sleep(0.1)
        assert told.data == b""  # it has not begun
        relay.begin()
        credit = TUNNEL_WINDOW
        for more in (1, 1000, TUNNEL_WINDOW):
            await _until(lambda: len(told.data) >= credit)  # noqa: B023  it is awaited here
            await asyncio.sleep(0.3)
            assert len(told.data) == credit
            relay.credit(more)
            credit += more
        async with asyncio.timeout(10):
            while not sending.done() or len(told.data) < len(whole):
                relay.credit(TUNNEL_WINDOW)
                await asyncio.sleep(0.01)
        far.shutdown(socket.SHUT_WR)
        await _until(lambda: told.kinds[-1] == Kind.END)
        assert told.data == whole
        assert told.largest <= MAX_PAYLOAD
        assert relay.received_bytes == len(whole)
        relay.abort("")
        far.close()

    asyncio.run(go())


def test_what_came_before_it_began_comes_first_and_counts() -> None:
    async def go() -> None:
        told, early = Told(), b"220 ready\r\n" * 20_000
        relay, far = await _relayed(told, early)
        far.send(b"more")
        await asyncio.sleep(0.1)
        assert told.kinds == []
        relay.begin()
        await _until(lambda: len(told.data) == len(early) + 4)
        assert told.data == early + b"more"
        assert told.largest <= MAX_PAYLOAD
        assert relay.received_bytes == len(early) + 4
        relay.abort("")
        far.close()

    asyncio.run(go())


def test_a_cut_is_no_orderly_end() -> None:
    async def go() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            loop = asyncio.get_running_loop()
            _, relay = await loop.create_connection(lambda: Relay(1, Told()), *server.getsockname())
            far, _ = server.accept()
            relay.begin()
            relay.abort("the rules were changed")
            await asyncio.sleep(0)  # transports close in the next round
            far.settimeout(5)
            with far, pytest.raises(ConnectionResetError):
                far.recv(1)

    asyncio.run(go())
