"""Streams of events and of chunks, cut anywhere."""

from __future__ import annotations

import pytest

from sandbox.client.http.events import Event, parse_events
from sandbox.client.transfers import MOST_CHUNK_BYTES, pass_chunks
from sandbox.errors import SandboxUnavailableError

STREAM = (
    ': hello\n\nid: 5\nevent: output\ndata: {"a":\ndata: 1}\n\ndata: é\r\n\r\n: still here\n\nevent: none\n\nevent: cut\ndata: x'
).encode()
EVENTS = [Event("output", '{"a":\n1}', "5"), Event("message", "é", "5")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_however_they_are_cut(size: int) -> None:
    assert list(parse_events(STREAM[at : at + size] for at in range(0, len(STREAM), size))) == EVENTS


def test_an_event_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.client.http.events.MOST_BYTES", 10)
    with pytest.raises(SandboxUnavailableError, match="too long"):
        list(parse_events([b"data: ", b"x" * 10]))


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_chunks_however_they_are_cut(size: int) -> None:
    data = b"\0\0\0\3abc" + b"\0\0\0\1d" + b"\0\0\0\0" + b'{"end": 1}'
    taken: list[bytes] = []
    rest = b"".join(pass_chunks((data[at : at + size] for at in range(0, len(data), size)), taken.append))
    assert (b"".join(taken), rest) == (b"abcd", b'{"end": 1}')


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0\2a", b"\0\0\0\1a", (MOST_CHUNK_BYTES + 1).to_bytes(4, "big")])
def test_chunks_that_do_not_end(data: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        list(pass_chunks([data], lambda _: None))
