"""A kept sandbox that answers every call and breaks the protocol at once: nobody waits for it without end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.pipe import pending_request as pending_module
from sandbox.pipe import transport
from sandbox.pipe.pending_request import PendingRequest
from sandbox.pipe.transport import MOST_VIOLATIONS, Transport

from .talking import explain

NONCE = b"n" * wire.NONCE_BYTES


class Said:
    """A stream on which some bytes came, and what is sent is taken."""

    def __init__(self, *said: bytes) -> None:
        self._said = list(said)
        self._closed = False

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        return len(data)

    def has_room(self, timeout_seconds: float) -> bool:
        return True

    def receive(self, timeout_seconds: float) -> bytes | None:
        if self._said:
            return self._said.pop(0)
        time.sleep(min(timeout_seconds, 0.01))
        return b"" if self._closed else None

    def close(self) -> None:
        self._closed = True

    def say(self, data: bytes) -> None:
        self._said.append(data)


class Breaking:
    """Reaches a guest whose first frame is none; before it, ``answered`` requests get a reply."""

    seconds = 60.0
    answer_prefix = b"p" * 32

    def __init__(self, answered: Iterator[int]) -> None:
        self.calls = 0
        self._answered = answered

    def resume(self, replaces: bytes, nonce: bytes, reason: str, detail: str) -> tuple[Said, bytes]:
        self.calls += 1
        replies = next(self._answered)
        said = [wire.frame(nonce, 0, Kind.REPLY, 1, wire.pack_message({"result": {}}))] * replies
        return Said(*said, wire.frame(nonce, 7, Kind.PONG, 0)), b""


@pytest.fixture
def stream() -> Said:
    return Said(wire.frame(NONCE, 0, Kind.HELLO, 0, wire.pack_message({"protocol": wire.PROTOCOL})))


def test_a_guest_that_breaks_the_protocol_again_and_again_is_given_up(stream: Said) -> None:
    keep = Breaking(itertools.repeat(0))
    host = Transport(stream, explain, keep=keep, nonce=NONCE)
    host.open({}, 60)
    stream.say(wire.frame(NONCE, 9, Kind.PONG, 0))
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(SandboxUnavailableError) as caught:
            host.request("read", {}, timeout_seconds=60)
        assert caught.value.reason == "protocol_violation"
    assert time.monotonic() - began < 30
    assert keep.calls == MOST_VIOLATIONS
    host.close()


def test_a_reply_in_between_is_a_reason_to_go_on(stream: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "AFTER_VIOLATION_SECONDS", 0.001)
    keep = Breaking(itertools.chain((0, 0, 1), itertools.repeat(0)))
    host = Transport(stream, explain, keep=keep, nonce=NONCE)
    host.open({}, 60)
    fields, _ = host.request("read", {}, timeout_seconds=60, on_sent=lambda: stream.say(wire.frame(NONCE, 9, Kind.PONG, 0)))
    assert fields == {
        "result": {}, "notices": [{"code": "reconnected", "seconds": pytest.approx(0, abs=30), "streamed": False}],
    }  # fmt: skip
    with pytest.raises(SandboxUnavailableError):
        host.request("read", {}, timeout_seconds=60)
    assert keep.calls == 3 + MOST_VIOLATIONS
    host.close()


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_guest_that_is_reached_again_before_it_has_greeted_is_greeted_again(
    monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """As one that was late, was called twice, and answered both calls: the second answer is no frame."""
    monkeypatch.setattr(transport, "AFTER_VIOLATION_SECONDS", 0.001)

    class Greeting(Said):
        """Says what it has to say when it is greeted."""

        def receive(self, timeout_seconds: float) -> bytes | None:
            return super().receive(timeout_seconds) if self.greeted else None

        def send(self, data: memoryview, timeout_seconds: float) -> int:
            self.greeted = self.greeted or wire.HEADER.unpack_from(data)[2] == Kind.HELLO
            return len(data)

        greeted = False

    class Again:
        seconds = 60.0
        answer_prefix = b"p" * 32

        def resume(self, replaces: bytes, nonce: bytes, reason: str, detail: str) -> tuple[Said, bytes]:
            return Greeting(wire.frame(nonce, 0, Kind.HELLO, 0, wire.pack_message({"protocol": wire.PROTOCOL, "new": 1}))), b""

    class Cut(Greeting):
        """Its end shows before the greeting is sent."""

        def send(self, data: memoryview, timeout_seconds: float) -> int:
            self.greeted = True
            raise BrokenPipeError

    first = (Greeting if is_sent else Cut)(wire.frame(NONCE, 9, Kind.PONG, 0))
    host = Transport(first, explain, keep=Again(), nonce=NONCE)
    assert host.open({}, 60)["new"] == 1
    assert host._ask_ids.cut_seconds == 0.0, "nobody had used it"
    host.close()


def test_cuts_without_end_put_no_deadline_off_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(pending_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for started in (False, True):
        began, cut = now[0], 0.0
        pending = PendingRequest(3.0, 100, now[0] + 3.0)
        for _ in range(1000):
            if started:
                pending.take_notice(wire.pack_message({"event": "started"}))
            now[0] += 0.5
            if pending.deadline is not None and now[0] > pending.deadline:
                break
            pending.pause()
            now[0] += 0.25
            cut += 0.25
            pending.ask_again(0.25)
        else:
            pytest.fail("no end")
        assert now[0] - began - cut <= 3.0 + pending_module.MOST_SPARE_SECONDS + 0.5


def test_a_kept_sandbox_that_is_gone_before_it_is_greeted_fails_with_the_reason() -> None:
    """``start`` raised Cut, which is no SandboxError and only for requests that are asked again."""

    class Gone:
        seconds = 60.0
        answer_prefix = b"p" * 32

        def resume(self, *_given: object) -> tuple[Said, bytes]:
            raise SandboxUnavailableError("removed", "It was removed.")

    class Ended(Said):
        def send(self, data: memoryview, timeout_seconds: float) -> int:
            raise BrokenPipeError

        def receive(self, timeout_seconds: float) -> bytes | None:
            return b""

    with pytest.raises(SandboxUnavailableError, match="It was removed"):
        Transport(Ended(), explain, keep=Gone()).open({}, 60)
