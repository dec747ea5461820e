"""The engine's attach stream: pieces with headers, cut anywhere, become the guest's bytes again."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.docker.stream import AttachStream


class Attached:
    """What docker-py's ``attach_socket`` answers: something that holds the socket."""

    def __init__(self, ours: socket.socket) -> None:
        self._sock = ours
        self.closed = False

    def close(self) -> None:
        self.closed = True


@contextlib.contextmanager
def pair() -> Iterator[tuple[AttachStream, socket.socket, Attached]]:
    ours, theirs = socket.socketpair()
    attached = Attached(ours)
    attach = AttachStream(attached)
    try:
        yield attach, theirs, attached
    finally:
        attach.release()
        theirs.close()


def piece(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", kind, len(data)) + data


@given(
    pieces=st.lists(st.tuples(st.sampled_from([1, 1, 2]), st.binary(max_size=50)), max_size=12),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
@settings(max_examples=50, deadline=None)
def test_any_cut(pieces: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(piece(kind, payload) for kind, payload in pieces)
    received = bytearray()
    with pair() as (attach, engine, _):
        at = n = 0
        while at < len(data):
            cut = cuts[n % len(cuts)]
            engine.sendall(data[at : at + cut])
            at, n = at + cut, n + 1
            received += attach.receive(0) or b""
        while more := attach.receive(0):
            received += more
        assert bytes(received) == b"".join(payload for kind, payload in pieces if kind == 1)
        wanted = b"".join(payload for kind, payload in pieces if kind == 2)
        assert attach.stderr == wanted.decode("utf-8", "replace")


def test_nothing_in_time_is_none_and_the_end_is_empty() -> None:
    with pair() as (attach, engine, _):
        assert attach.receive(0.01) is None
        engine.sendall(piece(2, b"only a complaint"))
        assert attach.receive(0.05) is None
        engine.sendall(piece(1, b"x"))
        assert attach.receive(5) == b"x"
        engine.shutdown(socket.SHUT_WR)
        assert attach.receive(5) == b""


def test_only_the_last_of_stderr_is_kept() -> None:
    with pair() as (attach, engine, _):
        for n in range(20):
            engine.sendall(piece(2, b"%05d" % n * 1000))
            attach.receive(0)
        while attach.receive(0.05):
            pass
        assert len(attach.stderr) == 8192
        assert attach.stderr.endswith("00019")


def test_sending_takes_what_fits_and_waits_no_longer_than_it_may() -> None:
    with pair() as (attach, engine, _):
        assert attach.send(memoryview(b"\0\xff" * 10), 5) == 20
        assert engine.recv(100) == b"\0\xff" * 10
        sent = attach.send(memoryview(bytes(16 << 20)), 5)
        assert 0 < sent < 16 << 20
        began = time.monotonic()
        while attach.send(memoryview(bytes(1 << 20)), 0.1):
            pass
        assert 0.1 <= time.monotonic() - began < 5


def test_an_engine_that_is_gone() -> None:
    with pair() as (attach, engine, _):
        engine.close()
        with pytest.raises(OSError, match="Broken pipe"):
            attach.send(memoryview(b"x"), 5)


def test_closing_wakes_a_reader_and_can_be_repeated() -> None:
    with pair() as (attach, _, attached):
        timer = threading.Timer(0.1, attach.close)
        timer.start()
        began = time.monotonic()
        assert attach.receive(30) == b""
        assert time.monotonic() - began < 5
        attach.close()
        attach.release()
        assert attached.closed
