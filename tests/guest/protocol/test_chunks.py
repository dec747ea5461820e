"""Chunks of any length are read like one file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.protocol.chunks import ChunkReader


@given(st.lists(st.binary(max_size=20), max_size=8), st.lists(st.integers(0, 30), max_size=8))
def test_reads_return_the_bytes_in_order(chunks: list[bytes], sizes: list[int]) -> None:
    reader, whole = ChunkReader(iter(chunks)), b"".join(chunks)
    for size in sizes:
        assert reader.read(size) == whole[:size]
        whole = whole[size:]
    assert reader.read() == whole
    assert reader.read(1) == b""


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 30))
def test_some_bytes_are_at_most_the_limit_and_never_none(chunks: list[bytes], limit: int) -> None:
    reader, whole, found = ChunkReader(iter(chunks)), b"".join(chunks), b""
    while len(found) < len(whole):
        piece = reader.read_some(limit)
        assert 0 < len(piece) <= limit
        found += piece
    assert found == whole
    with pytest.raises(EOFError):
        reader.read_some(limit)


def test_required_bytes_that_are_missing_are_an_error_of_the_callers_choice() -> None:
    reader = ChunkReader(iter([b"abc", b"", b"de"]), lambda: ValueError("too short"))
    assert reader.read_exactly(2) == b"ab"
    reader.skip(2)
    with pytest.raises(ValueError, match="too short"):
        reader.read_exactly(2)
    with pytest.raises(ValueError, match="too short"):
        ChunkReader(iter([b"abc"]), lambda: ValueError("too short")).skip(4)
