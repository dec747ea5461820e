"""Standard input for a command: text or bytes of any size, a binary file, or an iterable of bytes."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any, BinaryIO

Stdin = str | bytes | BinaryIO | Iterable[bytes | bytearray | memoryview]
AsyncStdin = Stdin | AsyncIterable[bytes]

CHUNK = 256 << 10


def is_source(stdin: object) -> bool:
    """Return whether ``stdin`` is something to read from: a file, or an iterable that is neither text nor bytes."""
    if stdin is None or isinstance(stdin, str | bytes | bytearray | memoryview):
        return False
    return hasattr(stdin, "read") or isinstance(stdin, Iterable)


def pieces(stdin: Any) -> Iterator[bytes]:
    """Yield the bytes of ``stdin``: bytes, a binary file, or an iterable of bytes. Raises TypeError for other pieces."""
    if isinstance(stdin, bytes | bytearray | memoryview):
        view = memoryview(stdin)
        yield from (bytes(view[at : at + CHUNK]) for at in range(0, len(view), CHUNK))
        return
    read = getattr(stdin, "read1", None) or getattr(stdin, "read", None)  # read1 does not wait until a chunk is full
    found = iter(stdin) if read is None else iter(lambda: read(CHUNK), b"")
    for piece in found:
        if isinstance(piece, str) and not piece:  # the end of a text file
            return
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise TypeError(
                f"stdin gave {type(piece).__name__}, not bytes: open the file in binary mode, or encode the text."
            )
        yield bytes(piece)
