"""The engine's attach stream: pieces with headers, cut anywhere, become the guest's bytes again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.docker.container.stream import PIPE_BYTES, AttachStream


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
        assert 0.1 <= time.monotonic() - began < 60


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
        assert attach.receive(600) == b""
        assert time.monotonic() - began < 60
        attach.close()
        attach.release()
        assert attached.closed


@contextlib.contextmanager
def shortened() -> Iterator[tuple[AttachStream, int, socket.socket]]:
    """A stream that sends by a pipe, where that is read, and the engine's end."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with pair() as (attach, engine, _):
        attach.bypass_engine(write)
        try:
            yield attach, read, engine
        finally:
            os.close(read)


def test_a_shortened_stream_sends_past_the_engine_and_hears_it_as_before() -> None:
    with shortened() as (attach, read, engine):
        assert attach.send(memoryview(b"frame"), 1) == 5
        assert os.read(read, 100) == b"frame"
        engine.sendall(piece(1, b"answer"))
        assert attach.receive(5) == b"answer"
        engine.settimeout(0.05)
        with pytest.raises(TimeoutError):
            engine.recv(1)


def test_its_pipe_grows_with_the_first_long_piece_and_not_before() -> None:
    with shortened() as (attach, read, _):
        attach.send(memoryview(bytes(100)), 1)
        usual = fcntl.fcntl(read, fcntl.F_GETPIPE_SZ)
        assert usual < PIPE_BYTES
        assert attach.send(memoryview(bytes(300_000)), 1) == 300_000
        assert fcntl.fcntl(read, fcntl.F_GETPIPE_SZ) == PIPE_BYTES


def test_a_full_pipe_is_waited_for_and_no_longer_than_asked() -> None:
    with shortened() as (attach, read, _):
        filled = attach.send(memoryview(bytes(2 * PIPE_BYTES)), 1)
        assert not attach.has_room(0.01)
        began = time.monotonic()
        assert attach.send(memoryview(b"more"), 0.3) == 0
        assert 0.25 < time.monotonic() - began < 60
        later = threading.Timer(0.2, os.read, (read, filled))
        later.start()
        assert attach.send(memoryview(b"more"), 60) == 4
        later.join()


def test_after_its_end_the_reader_sees_it_and_nothing_more_is_sent() -> None:
    with shortened() as (attach, read, _):
        attach.send(memoryview(bytes(2 * PIPE_BYTES)), 1)
        failed: list[type[Exception]] = []

        def wait() -> None:
            try:
                attach.send(memoryview(b"late"), 60)
            except OSError as error:
                failed.append(type(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        attach.close()
        waiting.join(60)
        assert failed == [BrokenPipeError]
        while os.read(read, 1 << 20):
            pass  # its end
        with pytest.raises(BrokenPipeError):
            attach.send(memoryview(b"late"), 1)
        with pytest.raises(BrokenPipeError):
            attach.send(memoryview(bytes(100_000)), 1)


def test_what_is_closed_before_takes_no_other_way() -> None:
    read, write = os.pipe()
    with pair() as (attach, _engine, _):
        attach.close()
        attach.bypass_engine(write)
        assert os.read(read, 1) == b""
    os.close(read)


def test_from_its_turn_on_what_comes_past_the_engine_is_read_and_of_the_engine_only_its_end_and_complaints() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with pair() as (attach, engine, _):
        attach.offer_output(read)
        os.write(write, b"second")
        engine.sendall(piece(1, b"first"))
        assert attach.receive(5) == b"first"
        assert attach.receive(0.05) is None  # not yet its turn
        attach.switch_output()
        assert attach.receive(5) == b"second"
        engine.sendall(piece(1, b"unasked") + piece(2, b"complaint"))
        assert attach.receive(0.1) is None
        assert attach.stderr == "complaint"
        os.write(write, b"third")
        engine.shutdown(socket.SHUT_WR)
        assert attach.receive(5) == b"third"
        assert attach.receive(5) == b""
    os.close(write)


def test_when_the_engine_has_ended_a_read_still_waits_for_nothing() -> None:
    """It waited for ever, with the role of the reader of all pipes."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    with pair() as (attach, engine, _):
        attach.ends_with_engine = False
        attach.offer_output(read)
        attach.switch_output()
        engine.close()
        view = memoryview(bytearray(10))
        assert [attach.receive_into(view) for _ in range(3)] == [None] * 3
        os.write(write, b"on")
        assert attach.receive_into(view) == 2
    os.close(write)


def test_the_last_words_are_heard_where_the_pipe_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.docker.container.stream.LAST_WORDS_SECONDS", 60.0)
    read, write = os.pipe()
    os.set_blocking(read, False)
    with pair() as (attach, engine, _):
        attach.offer_output(read)
        attach.switch_output()
        os.close(write)

        def late() -> None:
            engine.sendall(piece(2, b"why it ended"))
            engine.shutdown(socket.SHUT_WR)

        later = threading.Timer(0.2, late)
        later.start()
        assert attach.receive(5) == b""
        assert attach.stderr == "why it ended"
        later.join()


def test_what_comes_through_the_engine_is_moved_together_where_it_was_read_to() -> None:
    much = bytes(range(256)) * 500
    with pair() as (attach, engine, _):
        data = b"".join(piece(1, much[at : at + 1000]) + piece(2, b"!") for at in range(0, len(much), 1000))
        sending = threading.Thread(target=engine.sendall, args=(data,))
        sending.start()
        came, view = b"", memoryview(bytearray(5000))
        while len(came) < len(much):
            attach.ready(5)
            came += view[: attach.receive_into(view) or 0]
        sending.join()
        assert came == much


def test_a_forked_process_does_not_hold_the_guests_input() -> None:
    """The end of the pipe is what ends the guest: a worker that was forked meanwhile is not to keep it."""
    with shortened() as (attach, read, _):
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
        try:
            attach.send(memoryview(b"before"), 1)
            attach.close()
            os.set_blocking(read, True)
            assert os.read(read, 100) == b"before"
            waited = select.poll()
            waited.register(read, select.POLLIN)
            assert waited.poll(5000)
            assert os.read(read, 100) == b""
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_who_fills_the_pipe_without_end_does_not_hold_the_reader() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    over = threading.Event()

    def fill() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                os.write(write, bytes(4096))

    with pair() as (attach, _engine, _):
        attach.offer_output(read)
        attach.switch_output()
        filling = threading.Thread(target=fill)
        filling.start()
        closing = threading.Timer(0.2, attach.close)
        closing.start()
        began = time.monotonic()
        while attach.receive(5):
            assert time.monotonic() - began < 60
        over.set()
        closing.join()
    filling.join(60)
    os.close(write)
