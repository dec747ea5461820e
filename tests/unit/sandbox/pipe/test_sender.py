"""Frames out to a guest: what goes first where the pipe is full."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.docker.container.stream import AttachStream
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Decoder, Kind
from sandbox.local import ProcessStream
from sandbox.pipe.sender import FrameSender

NONCE = b"12345678"
BULK = bytes(wire.MAX_PAYLOAD)


@contextlib.contextmanager
def sender() -> Iterator[tuple[FrameSender, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(60)
        yield FrameSender(AttachStream(near), NONCE), far


def frames(far: socket.socket, count: int) -> list[tuple[int, int, bytes]]:
    decoder, found = Decoder(NONCE), list[tuple[int, int, bytes]]()
    while len(found) < count:
        found += decoder.feed(far.recv(1 << 16))
    return found


def test_only_an_answered_greeting_lets_what_follows_take_another_way() -> None:
    changed: list[int] = []
    with sender() as (out, _far):
        assert not out.reroute(lambda: changed.append(0))  # not greeted yet
        assert out.send(Kind.HELLO, 0, b"{}", time.monotonic() + 5)
        assert out.reroute(lambda: changed.append(1))
        assert out.send(Kind.PING, 0, b"", time.monotonic() + 5)
        assert not out.reroute(lambda: changed.append(2))  # the ping may be under way
    assert changed == [1]


def test_a_request_finds_room_beside_a_connection_that_waits_for_it() -> None:
    with sender() as (out, far):

        def flow() -> None:
            for _ in range(8):
                out.flow(Kind.DATA, 1, BULK)

        bulk = threading.Thread(target=flow)
        bulk.start()
        time.sleep(0.3)  # the pipe is full and nobody reads
        assert bulk.is_alive()
        assert out.send(Kind.REQUEST, 2, b"small", time.monotonic() + 5)  # it would wait for the reader
        found = frames(far, 9)
        bulk.join(60)
        assert [kind for kind, _, _ in found].index(Kind.REQUEST) < 4
        assert [payload for kind, _, payload in found if kind == Kind.DATA] == [BULK] * 8


@pytest.mark.parametrize("step", [1, 7, 24, 25, 1000, 1 << 20])
def test_a_streams_bytes_come_as_they_arrive_and_in_order_with_frames(step: int) -> None:
    taken: list[object] = []
    decoder = Decoder(NONCE, lambda channel: (lambda piece: taken.append(bytes(piece))) if channel == 5 else None)
    sent = [(Kind.DATA, 5, b"a" * 3000), (Kind.PING, 0, b""), (Kind.DATA, 6, b"whole"), (Kind.DATA, 5, b""), (Kind.DATA, 5, b"b")]
    data = b"".join(wire.frame(NONCE, n, kind, channel, payload) for n, (kind, channel, payload) in enumerate(sent))
    for at in range(0, len(data), step):
        for frame in decoder.feed(data[at : at + step]):
            taken.append(frame)
    whole: list[object] = []
    for one in taken:
        if isinstance(one, bytes) and whole and isinstance(whole[-1], bytes):
            whole[-1] += one
        else:
            whole.append(one)
    assert whole == [b"a" * 3000, (Kind.PING, 0, b""), (Kind.DATA, 6, b"whole"), (Kind.DATA, 5, b""), b"b"]
    assert decoder.buffered == 0


def test_what_is_sent_after_the_end_goes_into_no_file_that_has_the_number_since(tmp_path: Path) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stream = ProcessStream(process)
    assert process.stdin is not None
    number = process.stdin.fileno()
    stream.close()
    with (tmp_path / "other").open("wb") as other:
        taken = other.fileno() if other.fileno() == number else os.dup2(other.fileno(), number)
        try:
            with pytest.raises(BrokenPipeError):
                stream.send(memoryview(b"frames"), 1.0)
        finally:
            if taken != other.fileno():
                os.close(taken)
    assert (tmp_path / "other").read_bytes() == b""
    assert process.stdout is not None
    with process, process.stdout:
        assert stream.receive(60) == b""
