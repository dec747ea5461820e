"""Connections that cannot be served for want of descriptors are refused by one thread (review of the sandbox, 5.10)."""

from __future__ import annotations

import errno
import threading
import time
from typing import Any

import pytest

from sandbox.guest.protocol.wire import GUEST_CHANNELS, Kind, pack_message
from sandbox.network.streams import Streams


async def _never(_channel: int, _fields: dict[str, Any], _full: bool) -> None:
    raise AssertionError("it cannot be opened")


def test_one_thread_refuses_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was one for each, up to about a thousand."""
    room, told = threading.Event(), list[int]()
    most = 0

    def send(kind: int, channel: int, _payload: object = b"", /) -> None:
        assert room.wait(10)  # the pipe is full
        if kind == Kind.REPLY:
            told.append(channel)

    def no_descriptors(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    streams = Streams(send, _never)
    monkeypatch.setattr(streams, "spawn", no_descriptors)
    for number in range(300):
        streams.take(Kind.OPEN, GUEST_CHANNELS + number, pack_message({"host": "example.com", "port": 80}))
        most = max(most, sum(thread.name == "gamebox-refusals" for thread in threading.enumerate()))
    room.set()
    until = time.monotonic() + 10
    while streams.busy and time.monotonic() < until:
        time.sleep(0.005)
    assert most == 1
    assert told == [GUEST_CHANNELS + number for number in range(300)]
    streams.take(Kind.OPEN, GUEST_CHANNELS, pack_message({"host": "example.com", "port": 80}))
    while len(told) < 301 and time.monotonic() < until:
        time.sleep(0.005)
    assert told[-1] == GUEST_CHANNELS


def test_without_a_thread_for_connections_the_pipe_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on, no thread can be started when the interpreter ends: the reader of the pipe must not fail for that."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    streams = Streams(lambda *_: None, _never)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            streams.take(Kind.OPEN, GUEST_CHANNELS, pack_message({"host": "example.com", "port": 80}))
            assert not streams.busy
    streams.close()
