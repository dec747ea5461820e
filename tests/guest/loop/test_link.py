"""The guest's event loop and its end of the pipe."""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sandbox.guest.loop import reactor as reactor_module
from sandbox.guest.loop.link import WIDE_BYTES, Link
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Decoder, Kind

NONCE = b"12345678"


class Pipe:
    """A link on a real pipe, with the reactor in a thread."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.reactor = Reactor()
        self.link = Link(self.reactor, self.write_end, NONCE)
        self.thread = threading.Thread(target=self.reactor.run, daemon=True)
        self.thread.start()
        self.decoder = Decoder(NONCE)

    def frames(self, count: int) -> list[tuple[int, int, bytes]]:
        found: list[tuple[int, int, bytes]] = []
        while len(found) < count:
            assert select.select([self.read_end], [], [], 60)[0], f"{len(found)} of {count} frames came"
            found += self.decoder.feed(os.read(self.read_end, 65536))
        return found

    def end(self) -> None:
        self.reactor.hand_over(self.reactor.stop)
        self.thread.join(60)
        assert not self.thread.is_alive()
        for fd in (self.read_end, self.write_end):
            try:
                os.close(fd)
            except OSError:
                pass


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def test_messages_from_many_threads_arrive_whole(pipe: Pipe) -> None:
    def send(channel: int) -> None:
        for n in range(20):
            pipe.link.message(Kind.REPLY, channel, {"n": n}, bytes([channel]) * 10_000)

    threads = [threading.Thread(target=send, args=(channel,)) for channel in range(1, 9)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {}
    for kind, channel, payload in pipe.frames(160):
        fields, blob = wire.unpack_message(payload)
        assert (kind, blob) == (Kind.REPLY, bytes([channel]) * 10_000)
        seen.setdefault(channel, []).append(fields["n"])
    assert seen == {channel: list(range(20)) for channel in range(1, 9)}
    pipe.end()


def test_sending_never_blocks_and_a_long_message_holds_up_no_short_one(pipe: Pipe) -> None:
    pipe.link.message(Kind.REPLY, 1, {}, bytes(20 * wire.MAX_PAYLOAD))  # nobody reads yet
    pipe.link.message(Kind.REPLY, 2, {"short": True})
    frames = pipe.frames(22)
    places = [channel for _, channel, _ in frames]
    assert places.index(2) <= 2 + WIDE_BYTES // wire.MAX_PAYLOAD  # the message's head, and what the pipe holds
    assert [kind for kind, channel, _ in frames if channel == 1] == [Kind.PART] * 20 + [Kind.REPLY]
    pipe.end()


def test_a_pipe_becomes_wide_once_a_long_message_fills_it(pipe: Pipe) -> None:
    before = fcntl.fcntl(pipe.write_end, fcntl.F_GETPIPE_SZ)
    for _ in range(100):
        pipe.link.message(Kind.REPLY, 1, {}, bytes(1000))
    assert fcntl.fcntl(pipe.write_end, fcntl.F_GETPIPE_SZ) == before  # many short ones are no reason
    pipe.frames(100)
    pipe.link.message(Kind.REPLY, 2, {}, bytes(2 * wire.MAX_PAYLOAD))
    assert fcntl.fcntl(pipe.write_end, fcntl.F_GETPIPE_SZ) == WIDE_BYTES
    pipe.frames(3)
    pipe.end()


def test_a_host_that_is_gone_is_noticed_and_nothing_piles_up(pipe: Pipe) -> None:
    os.close(pipe.read_end)
    for _ in range(3):
        pipe.link.message(Kind.REPLY, 1, {}, bytes(100_000))
    assert pipe.link.lost
    assert not pipe.link._queue
    pipe.end()


def test_a_host_that_goes_while_something_waits(pipe: Pipe) -> None:
    pipe.link.message(Kind.REPLY, 1, {}, bytes(20 * wire.MAX_PAYLOAD))
    os.close(pipe.read_end)
    deadline = time.monotonic() + 120
    while not pipe.link.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pipe.link.lost
    pipe.end()


def in_reactor(pipe: Pipe, work: Callable[[], object]) -> None:
    """Do what only the reactor's thread may do."""
    done = threading.Event()

    def call() -> None:
        work()
        done.set()

    pipe.reactor.hand_over(call)
    assert done.wait(60)


def with_a_second_pipe_in_view(pipe: Pipe) -> tuple[int, int]:
    """Let the link change to another pipe as soon as the first one, which is full, takes the rest."""
    read, write = os.pipe()
    pipe.link.message(Kind.REPLY, 1, {}, bytes(4 * wire.MAX_PAYLOAD))
    in_reactor(pipe, lambda: pipe.link.reroute(write))
    return read, write


def test_a_host_that_is_gone_before_the_change_to_its_pipe_leaves_whole_frames(pipe: Pipe) -> None:
    read, write = with_a_second_pipe_in_view(pipe)
    in_reactor(pipe, lambda: pipe.link.hang_up(write))
    assert pipe.link.lost
    os.close(write)
    other = os.open(os.devnull, os.O_RDWR)  # gets the number; nothing may be written to it
    in_reactor(pipe, lambda: pipe.link.restart(b"nextnext", b"answer", pipe.write_end))
    pipe.link.frame(Kind.PONG, pipe.link.key(7), b"on")
    came = b""
    while b"on" not in came[-2:]:
        came += os.read(pipe.read_end, 65536)
    before, _, behind = came.partition(b"answer")
    frames = list(pipe.decoder.feed(before))
    assert frames[-1][0] == Kind.ROUTE
    assert not pipe.decoder.buffered, "a frame was left half written"
    assert list(Decoder(b"nextnext").feed(behind)) == [(Kind.PONG, 7, b"on")]
    for fd in (other, read):
        os.close(fd)
    pipe.end()


def test_a_host_that_is_replaced_before_the_change_hears_it_on_its_new_pipe(pipe: Pipe) -> None:
    read, write = with_a_second_pipe_in_view(pipe)
    in_reactor(pipe, lambda: pipe.link.restart(b"nextnext", b"answer", pipe.write_end))
    assert select.select([read], [], [], 60)[0]
    assert os.read(read, 100) == b"answer"
    for fd in (read, write):
        os.close(fd)
    pipe.end()


def test_timers_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    reactor, order, now = Reactor(), list[str](), time.monotonic()
    with monkeypatch.context() as patched:  # the clock stands still
        patched.setattr(reactor_module, "time", SimpleNamespace(monotonic=lambda: now))
        reactor.after(0.03, lambda: order.append("third"))
        reactor.after(0.01, lambda: order.append("first"))
        cancelled = reactor.after(0.015, lambda: order.append("cancelled"))
        reactor.after(0.02, lambda: order.append("second"))
        reactor.after(0.04, reactor.stop)
    cancelled.cancel()
    reactor.run()
    assert order == ["first", "second", "third"]


def test_calls_from_other_threads_are_made_in_the_reactors_own() -> None:
    reactor, where = Reactor(), list[threading.Thread]()

    def note() -> None:
        where.append(threading.current_thread())
        if len(where) == 50:
            reactor.stop()

    for _ in range(50):
        threading.Thread(target=reactor.hand_over, args=(note,)).start()
    reactor.run()
    assert where == [threading.current_thread()] * 50


def test_a_call_that_hands_over_another_does_not_starve_the_rest() -> None:
    reactor, count = Reactor(), [0]

    def again() -> None:
        count[0] += 1
        reactor.hand_over(again)

    def stop() -> None:
        if count[0] > 1:
            reactor.stop()
        else:
            reactor.after(0.05, stop)

    reactor.hand_over(again)
    reactor.after(0.05, stop)
    reactor.run()


def test_an_unwatched_descriptor_gets_no_calls() -> None:
    reactor, called = Reactor(), list[int]()
    read_end, write_end = os.pipe()
    reactor.watch(read_end, select.EPOLLIN, called.append)

    def once(events: int) -> None:
        called.append(events)
        reactor.unwatch(read_end)
        reactor.after(0.05, reactor.stop)

    reactor.watch(read_end, select.EPOLLIN, once)
    os.write(write_end, b"x")
    reactor.run()
    assert called == [select.EPOLLIN]
    reactor.unwatch(read_end)
    os.close(read_end)
    os.close(write_end)
