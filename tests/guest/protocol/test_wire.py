"""The codec of the pipe: whole frames whatever the chunks, and nothing but WireError for bytes that are wrong."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import KINDS, Assembler, Decoder, Kind, WireError

NONCE = b"\x01noncey\xff"
_kinds = st.sampled_from(list(KINDS))
_frames = st.lists(st.tuples(_kinds, st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8)
_fields = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=5,
)


def packed(frames: list[tuple[int, int, bytes]], nonce: bytes = NONCE) -> bytes:
    return b"".join(wire.frame(nonce, n, kind, channel, payload) for n, (kind, channel, payload) in enumerate(frames))


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(frames=_frames, cuts=st.lists(st.integers(0, 2500)), known=st.booleans())
def test_frames_come_out_whole_under_any_chunking(
    frames: list[tuple[int, int, bytes]], cuts: list[int], known: bool
) -> None:
    decoder = Decoder(NONCE if known else None)
    found = [one for chunk in chunks(packed(frames), cuts) for one in decoder.feed(chunk)]
    assert found == frames
    assert decoder.buffered == 0
    assert decoder.nonce == (NONCE if known or frames else None)


@given(
    frames=_frames,
    at=st.integers(0, 3000),
    change=st.binary(min_size=1, max_size=40),
    keep=st.integers(0, 40),
    cuts=st.lists(st.integers(0, 2500)),
)
def test_any_change_gives_frames_or_wire_error(
    frames: list[tuple[int, int, bytes]], at: int, change: bytes, keep: int, cuts: list[int]
) -> None:
    data = packed(frames)
    at = min(at, len(data))
    decoder, assembler = Decoder(NONCE), Assembler(1000)
    try:
        for chunk in chunks(data[:at] + change + data[at + keep :], cuts):
            for kind, channel, payload in decoder.feed(chunk):
                assert kind in list(KINDS)
                assert len(payload) <= wire.MAX_PAYLOAD
                if kind == Kind.PART:
                    assembler.add(channel, payload)
                elif kind == Kind.REPLY:
                    fields, _blob = wire.unpack_message(assembler.finish(channel, payload))
                    assert isinstance(fields, dict)
            assert decoder.buffered < wire.HEADER.size + wire.MAX_PAYLOAD
    except WireError:
        pass


@given(data=st.binary(max_size=400))
def test_any_bytes_are_a_message_or_wire_error(data: bytes) -> None:
    for candidate in (data, len(data).to_bytes(4, "big") + data):
        try:
            fields, blob = wire.unpack_message(candidate)
        except WireError:
            continue
        assert isinstance(fields, dict)
        assert isinstance(blob, bytes)


@given(fields=_fields, blob=st.binary(max_size=500))
def test_messages_round_trip(fields: dict[str, Any], blob: bytes) -> None:
    assert wire.unpack_message(wire.pack_message(fields, blob)) == (json.loads(json.dumps(fields)), blob)


@given(text=st.text(st.characters(categories=("Cs", "Ll", "So")), max_size=20))
def test_surrogates(text: str) -> None:
    assert wire.unpack_message(wire.pack_message({"t": text}, exact=True), exact=True)[0] == {"t": text}
    inexact = wire.unpack_message(wire.pack_message({"t": text}))[0]["t"]
    assert inexact == "".join("?" if "\ud800" <= c <= "\udfff" else c for c in text)


@given(size=st.integers(0, 3 * wire.MAX_PAYLOAD))
def test_long_messages_are_split_and_put_together(size: int) -> None:
    message = bytes(i % 251 for i in range(min(size, 997))) * (size // 997 + 1)
    message = message[:size]
    assembler = Assembler()
    parts = list(wire.split_message(Kind.REPLY, message))
    assert [kind for kind, _ in parts] == [Kind.PART] * (len(parts) - 1) + [Kind.REPLY]
    for _, payload in parts[:-1]:
        assert len(payload) == wire.MAX_PAYLOAD
        assembler.add(7, bytes(payload))
        assembler.add(8, b"other")
    assert assembler.finish(7, bytes(parts[-1][1])) == message


@pytest.mark.parametrize("head", [1, 5000, wire.MAX_PAYLOAD, wire.MAX_PAYLOAD + 1])
@pytest.mark.parametrize("size", [0, 1, wire.MAX_PAYLOAD - 1, wire.MAX_PAYLOAD, 3 * wire.MAX_PAYLOAD + 1])
def test_a_message_and_its_blob_are_cut_without_a_copy_of_the_blob(head: int, size: int) -> None:
    message, blob = b"h" * head, b"b" * size
    parts = list(wire.split_message(Kind.REPLY, message, blob))
    assert b"".join(payload for _, payload in parts) == message + blob
    assert [kind for kind, _ in parts] == [Kind.PART] * (len(parts) - 1) + [Kind.REPLY]
    assert all(0 < len(payload) <= wire.MAX_PAYLOAD for _, payload in parts)
    for _, payload in parts if size > wire.MAX_PAYLOAD else ():
        assert isinstance(payload, memoryview)
        assert payload.obj is message or payload.obj is blob


@pytest.mark.parametrize("size", [0, wire.COPIED_BYTES, wire.COPIED_BYTES + 1, wire.MAX_PAYLOAD])
def test_a_frame_in_pieces_is_the_same_frame(size: int) -> None:
    payload = bytes(n % 251 for n in range(size))
    for given_payload in (payload, memoryview(payload), bytearray(payload), memoryview(bytearray(payload))):
        first, rest = wire.frame_pieces(NONCE, 7, Kind.DATA, 3, given_payload)  # type: ignore[arg-type]
        assert bytes(first) + bytes(rest) == wire.frame(NONCE, 7, Kind.DATA, 3, payload)
        assert not rest or rest.obj is payload  # what could change before it is sent was copied


def test_a_frame_in_pieces_has_its_limit_too() -> None:
    with pytest.raises(ValueError, match="too long"):
        wire.frame_pieces(NONCE, 0, Kind.DATA, 1, bytes(wire.MAX_PAYLOAD + 1))


def test_an_assembler_holds_no_more_than_its_limit() -> None:
    assembler = Assembler(10)
    assembler.add(1, b"12345")
    assembler.add(1, b"67890")
    assembler.add(2, b"1")
    with pytest.raises(WireError, match="too long"):
        assembler.add(1, b"1")
    assembler.drop(1)
    assembler.add(1, b"12", limit=2)
    assert assembler.finish(1, b"!") == b"12!"
    assert assembler.finish(1, b"new") == b"new"


def test_sequence_numbers_wrap() -> None:
    decoder = Decoder(NONCE)
    decoder._sequence = 0xFFFFFFFF
    data = wire.frame(NONCE, 0xFFFFFFFF, Kind.PING, 0) + wire.frame(NONCE, 0x100000000, Kind.PING, 0)
    assert len(list(decoder.feed(data))) == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (wire.frame(b"elsewhere"[:8], 0, Kind.PING, 0), "foreign nonce"),
        (wire.frame(NONCE, 1, Kind.PING, 0), "frame 1 where 0 was due"),
        (wire.frame(NONCE, 0, 99, 0), "unknown frame kind 99"),
        (wire.frame(NONCE, 0, 0, 0), "unknown frame kind 0"),
        (wire.HEADER.pack(NONCE, 0, 9, b"\0\0\0", 0, 1 << 31), "frame of 2147483648 bytes"),
        (wire.HEADER.pack(NONCE, 0, 9, b"\0\1\0", 0, 0), "foreign nonce"),
    ],
)
def test_wrong_headers(data: bytes, words: str) -> None:
    decoder = Decoder(NONCE)
    assert list(decoder.feed(data[:23])) == []
    with pytest.raises(WireError, match=words):
        list(decoder.feed(data[23:]))


def test_a_payload_over_the_limit_is_not_framed() -> None:
    assert len(wire.frame(NONCE, 0, Kind.DATA, 0, bytes(wire.MAX_PAYLOAD))) == wire.MAX_PAYLOAD + 24
    with pytest.raises(ValueError, match="too long"):
        wire.frame(NONCE, 0, Kind.DATA, 0, bytes(wire.MAX_PAYLOAD + 1))
