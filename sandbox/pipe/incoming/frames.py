"""Frames in from a guest, found in the bytes as they arrive: the body of a long one is read straight into its own memory."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox.guest.protocol import wire

# kind, channel and payload: bytes that are its own, or a view of memory that nothing else uses.
Frame = tuple[int, int, bytes | memoryview]


class FrameReader:
    """Finds frames in the bytes of a pipe. Keeps no more than the one that has not arrived completely.

    Read into ``room`` where there is some, and say so to ``fill``; else read anywhere and have ``find`` look at it. Both raise
    WireError; ``held`` then is what follows the last frame.
    """

    def __init__(self, nonce: bytes) -> None:
        self.sequence = 0
        self.held = b""
        self._nonce = nonce
        self._head = bytearray()  # the beginning of a header
        self._kind = self._channel = self._filled = 0
        self._body: memoryview | None = None

    @property
    def room(self) -> memoryview | None:
        """Where the rest of a body belongs; None if a header is due."""
        return None if self._body is None else self._body[self._filled :]

    def fill(self, size: int) -> Iterator[Frame]:
        """Note that ``size`` bytes were read into ``room``; yield the frame that they complete."""
        self._filled += size
        if self._body is not None and self._filled == len(self._body):
            body, self._body = self._body, None
            yield self._kind, self._channel, body

    def find(self, data: memoryview) -> Iterator[Frame]:
        """Yield the frames in ``data``, and keep the beginning of one that goes on after it."""
        at, size = 0, len(data)
        while at < size:
            if self._head or size - at < wire.HEADER.size:
                missing = wire.HEADER.size - len(self._head)
                self._head += data[at : at + missing]
                at += missing
                if len(self._head) < wire.HEADER.size:
                    return
                kind, channel, length = self._parse(memoryview(bytes(self._head)), data[at:])
                self._head.clear()
            else:
                kind, channel, length = self._parse(data[at:], b"")
                at += wire.HEADER.size
            if at + length > size:
                self._kind, self._channel, self._filled = kind, channel, size - at
                self._body = memoryview(bytearray(length))
                self._body[: size - at] = data[at:]
                return
            payload = bytes(data[at : at + length])
            at += length
            yield kind, channel, payload

    def _parse(self, header: memoryview, rest: bytes | memoryview) -> tuple[int, int, int]:
        try:
            found = wire.parse_header(header, self._nonce, self.sequence)
        except wire.WireError:
            self.held = bytes(header) + bytes(rest)
            raise
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        return found
