"""Faults on a stream, as they ship for tests: what passes passes whole, and what is broken is broken where it was asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sandbox.errors import SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.pipe import transport
from sandbox.pipe.transport import Transport
from sandbox.testing import Faults, FaultyStream, GuestRequest, ScriptedGuest
from tests.unit.sandbox.pipe.talking import GRACE, echo, explain, fails


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "GRACE_SECONDS", GRACE)


@contextmanager
def talk() -> Iterator[tuple[Transport, FaultyStream]]:
    with ScriptedGuest(echo) as guest:
        stream = FaultyStream(guest.stream)
        host = Transport(stream, explain)
        try:
            host.open({"place": {}}, 60)
            yield host, stream
        finally:
            host.close()


def ask(host: Transport, blob: bytes = b"", seconds: float = 60.0) -> bytes:
    return host.request("read", {}, timeout_seconds=seconds, blob=blob)[1]


@pytest.mark.parametrize("direction", ["inbound", "outbound"])
@pytest.mark.parametrize("cut", [0, 1, 23, 24, 30])
def test_a_cut_in_mid_frame(direction: str, cut: int) -> None:
    with talk() as (host, stream):
        assert ask(host, b"whole") == b"whole"
        getattr(stream, direction).change(Faults(cut_after_bytes=cut))
        fails(host, "pipe_broken")


@pytest.mark.parametrize("direction", ["inbound", "outbound"])
def test_slow_bytes_arrive_whole(direction: str) -> None:
    blob = bytes(range(256)) * 300
    with talk() as (host, stream):
        getattr(stream, direction).change(Faults(bytes_per_second=400_000, delay_seconds=0.01))
        began = time.monotonic()
        assert ask(host, blob) == blob
        assert time.monotonic() - began > 0.8 * len(blob) / 400_000


def test_a_stalled_stream_is_no_answer_and_goes_on_where_it_stood() -> None:
    with talk() as (host, stream):
        stream.inbound.change(Faults(stalled=True))
        fails(host, "no_answer", timeout_seconds=0.1)
        stream.inbound.change(Faults())
        assert ask(host, b"after") == b"after"
        stream.outbound.change(Faults(stalled=True))
        fails(host, "no_answer", timeout_seconds=0.1)
        stream.outbound.change(Faults())
        assert ask(host, b"after") == b"after"


@pytest.mark.parametrize("at", range(wire.HEADER.size))
def test_a_garbled_byte_of_a_header_never_becomes_a_wrong_answer(at: int) -> None:
    with talk() as (host, stream):
        stream.inbound.change(Faults(garble_at=at))
        with pytest.raises(SandboxUnavailableError) as caught:
            host.request("read", {"n": 1}, timeout_seconds=0.1)
        assert caught.value.reason in {"protocol_violation", "no_answer"}


def test_garbled_on_the_way_to_the_guest() -> None:
    heard: list[Any] = []

    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        heard.append(request.blob)
        guest.frame(Kind.REPLY, request.channel, wire.pack_message({"result": None}))

    with ScriptedGuest(script) as guest:
        stream = FaultyStream(guest.stream)
        host = Transport(stream, explain)
        host.open({"place": {}}, 60)
        message = len(
            wire.pack_message(
                {"operation": "read", "args": {}, "blob_for": None, "stream": False, "feeds": False, "request_id": None,
                 "max_reply_bytes": wire.MAX_REPLY}
            )
        )
        stream.outbound.change(Faults(garble_at=wire.HEADER.size + message + 1))
        ask(host, b"abc")
        assert heard == [b"a\x9dc"]
        host.close()


@pytest.mark.parametrize(
    "wrong", [{"delay_seconds": -1}, {"bytes_per_second": 0}, {"cut_after_bytes": -1}, {"garble_at": -1}]
)
def test_faults_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Faults(**wrong)
