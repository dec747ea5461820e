"""The one thread that reads the pipes of all sandboxes, and the callers that read their own."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.pipe import pending_request
from sandbox.pipe.incoming.frames import FrameReader
from sandbox.pipe.incoming.reader import PipeReader, pipe_reader
from sandbox.pipe.incoming.reading import READ_BYTES, Reading
from sandbox.pipe.transport import Transport
from sandbox.testing import GuestRequest, ScriptedGuest
from sandbox.testing.scripted_guest import SocketStream

from .talking import echo, eventually, explain, fails, talk

NONCE = b"12345678"


@pytest.fixture(autouse=True)
def own_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes of other tests may still be open, and be read by the reader of this process."""
    monkeypatch.setattr("sandbox.pipe.incoming.reader._reader", PipeReader())


def threads_of_ours(before: set[threading.Thread]) -> list[str]:
    begun = (thread.name for thread in threading.enumerate() if thread not in before)
    return [name for name in begun if name.startswith("gamebox")]


@contextlib.contextmanager
def many(count: int, script: Any = echo) -> Iterator[list[tuple[Transport, ScriptedGuest]]]:
    with contextlib.ExitStack() as held:
        yield [held.enter_context(talk(script)) for _ in range(count)]


@pytest.mark.parametrize("own", [0.02, 0.0], ids=["by callers", "by the reader"])
def test_one_thread_serves_all_and_ends_with_the_last(own: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_request, "OWN_SECONDS", own)
    others, threads_before = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    with many(20) as made:
        assert threads_of_ours(threads_before) == ["gamebox-reader"]
        for n, (host, _) in enumerate(made * 3):
            assert host.request("read", {"n": n}, timeout_seconds=60)[0]["result"] == {"n": n}
        threads = [
            threading.Thread(target=host.request, args=("read", {}), kwargs={"timeout_seconds": 60}) for host, _ in made * 5
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(host._pending for host, _ in made)
        assert threads_of_ours(threads_before) == ["gamebox-reader"]
    assert eventually(lambda: not threads_of_ours(threads_before))
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= others)


def test_who_has_sent_a_body_reads_the_answer_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        threading.Thread(target=answer, args=(guest, request), daemon=True).start()

    def answer(guest: ScriptedGuest, request: GuestRequest) -> None:
        guest.wait_for(Kind.END, 60)
        assert eventually(held[0].locked)  # the caller waits: nobody else has anything to read
        guest.reply(request, 1)

    held: list[Any] = []
    monkeypatch.setattr(pending_request, "OWN_SECONDS", 10.0)
    with many(1, script) as ((host, _),):
        held.append(host._reading._role)
        readers: list[str] = []
        take = host._reading._take

        def noted(kind: int, channel: int, payload: bytes | memoryview) -> None:
            if kind == Kind.REPLY:
                readers.append(threading.current_thread().name)
            take(kind, channel, payload)

        monkeypatch.setattr(host._reading, "_take", noted)
        host.request("upload", {}, timeout_seconds=60, body=iter([b"x" * 1000]))
        assert readers == [threading.current_thread().name]


def test_a_fault_in_one_pipe_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_request, "OWN_SECONDS", 0.0)

    def broken(*_: object) -> None:
        raise KeyError("channel")

    with many(2) as ((bad, _), (good, _)):
        monkeypatch.setattr(bad._reading, "_take", broken)
        fails(bad, "host_failed")
        monkeypatch.setattr(good._reading, "tick", broken)
        pipe_reader().add(good._reading, 0.0)
        assert good.request("read", {"n": 1}, timeout_seconds=60)[0]["result"] == {"n": 1}


def test_a_pipe_that_never_runs_dry_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_request, "OWN_SECONDS", 0.0)
    over = threading.Event()

    def flood(guest: ScriptedGuest, request: GuestRequest) -> None:
        def fill() -> None:
            while not over.is_set():
                guest.frame(Kind.PONG, 0x7FFFFFFF)

        threading.Thread(target=fill, daemon=True).start()

    with many(1, flood) as ((noisy, _),), many(1) as ((host, _),):
        waiting = threading.Thread(target=fails, args=(noisy, "closed"), kwargs={"timeout_seconds": 60})
        waiting.start()
        for n in range(50):
            assert host.request("read", {"n": n}, timeout_seconds=60)[0]["result"] == {"n": n}
        over.set()
        noisy.close()
        waiting.join(60)


class Records:
    """A stream that never runs dry and decrypts whole records, as TLS does: what is left of one is reported by ``buffered``."""

    def __init__(self, record: int) -> None:
        self.data = b"".join(wire.frame(NONCE, n, Kind.PONG, n) for n in range(100_000))
        self.record, self.at, self.buffered = record, 0, 0

    def descriptors(self) -> tuple[int, ...]:
        return ()

    def receive_into(self, view: memoryview) -> int:
        size = self.buffered if len(view) == self.buffered else len(view)
        view[:size] = self.data[self.at : self.at + size]
        self.at += size
        self.buffered = -self.at % self.record
        return size


@pytest.mark.parametrize(("bound", "value"), [("MOST_READS", 3), ("MOST_SECONDS", 0.0)])
def test_a_turn_ends_though_more_comes_and_leaves_nothing_decrypted(
    bound: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bytes that TLS has decrypted, no descriptor tells: nobody would come back for them."""
    monkeypatch.setattr(f"sandbox.pipe.incoming.reading.{bound}", value)
    stream, taken = Records(1000), list[int]()
    reading = Reading(
        stream, NONCE, b"", lambda _, channel, __: taken.append(channel), lambda *_: None, lambda now: now  # type: ignore[arg-type]
    )  # fmt: skip
    for turn in range(1, 4):
        assert reading._serve() is None
        assert stream.buffered == 0
        assert 0 < stream.at <= turn * (3 * READ_BYTES + 1000)
    assert taken == list(range(len(taken)))


def test_a_forked_process_reads_nothing_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with talk(echo) as (host, _):
        child = os.fork()
        if not child:
            with talk(echo) as (own, _):
                answered = own.request("read", {"n": 2}, timeout_seconds=60)[0]["result"] == {"n": 2}
            os._exit(0 if answered and host._reading not in pipe_reader()._pipes else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        monkeypatch.setattr(pending_request, "OWN_SECONDS", 0.0)
        assert host.request("read", {"n": 1}, timeout_seconds=60)[0]["result"] == {"n": 1}


def test_what_was_read_before_is_taken_first() -> None:
    near, far = socket.socketpair()
    taken: list[tuple[int, int, bytes]] = []
    frames = [wire.frame(NONCE, n, Kind.PONG, n) for n in range(2)]
    with near, far:
        reading = Reading(
            SocketStream(near), NONCE, frames[0] + frames[1][:10],
            lambda kind, channel, payload: taken.append((kind, channel, bytes(payload))), lambda *_: None, lambda now: now + 9,
        )  # fmt: skip
        reading.begin(time.monotonic() + 9)
        far.sendall(frames[1][10:])
        assert eventually(lambda: len(taken) == 2)
        assert reading.stop(60)
        assert not reading.stop(0)
    assert taken == [(Kind.PONG, 0, b""), (Kind.PONG, 1, b"")]


def test_who_closes_a_pipe_goes_on_as_soon_as_its_reader_has_ended_it() -> None:
    near, far = socket.socketpair()
    ending, closed = threading.Event(), threading.Event()

    def ended(*_: object) -> None:
        ending.set()
        assert closed.wait(60)
        time.sleep(0.05)  # until the other thread waits

    reading = Reading(SocketStream(near), NONCE, b"", lambda *_: None, ended, lambda now: now + 9)
    with near, far:
        reading.begin(time.monotonic() + 9)
        far.shutdown(socket.SHUT_WR)
        assert ending.wait(60)
        stopping = threading.Thread(target=reading.stop, args=(600.0,))
        stopping.start()
        closed.set()
        stopping.join(60)
        assert not stopping.is_alive()
        assert reading.over


@pytest.mark.exhaustive
@given(
    sizes=st.lists(st.sampled_from([0, 1, 23, 24, 500, 20_000, wire.MAX_PAYLOAD]), min_size=1, max_size=6),
    steps=st.lists(st.integers(1, 40_000), min_size=1, max_size=5),
)
@settings(max_examples=30, deadline=None)
def test_frames_are_found_wherever_they_are_cut(sizes: list[int], steps: list[int]) -> None:
    sent = [(Kind.DATA, n, bytes([n + 1]) * size) for n, size in enumerate(sizes)]
    data = b"".join(wire.frame(NONCE, n, kind, channel, payload) for n, (kind, channel, payload) in enumerate(sent))
    reader, found, at, turn = FrameReader(NONCE), list[tuple[int, int, bytes]](), 0, 0
    scratch = memoryview(bytearray(40_000))
    while at < len(data):
        room = reader.room
        view = scratch if room is None else room
        size = min(steps[turn % len(steps)], len(view), len(data) - at)
        view[:size] = data[at : at + size]
        at, turn = at + size, turn + 1
        for kind, channel, payload in reader.find(view[:size]) if room is None else reader.fill(size):
            found.append((kind, channel, bytes(payload)))
        scratch[:] = bytes(len(scratch))
    assert found == sent
    assert reader.room is None


def test_what_follows_the_last_frame_is_held_when_it_is_none() -> None:
    reader = FrameReader(NONCE)
    with pytest.raises(wire.ForeignNonceError):
        list(reader.find(memoryview(wire.frame(NONCE, 0, Kind.PONG, 0) + b"no frame, but something else")))
    assert reader.held == b"no frame, but something else"


def test_the_pipe_is_pinged_while_callers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.pipe.transport.PING_SHARE", 0.05 / 120)
    with ScriptedGuest(lambda guest, request: None) as guest:
        host = Transport(guest.stream, explain)
        host.open({}, 60)
        waiting = threading.Thread(target=fails, args=(host, "closed"), kwargs={"timeout_seconds": 60})
        waiting.start()
        assert guest.wait_for(Kind.PING, 60)
        host.close()
        waiting.join(60)
