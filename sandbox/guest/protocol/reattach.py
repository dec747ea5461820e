"""How a host calls a kept sandbox whose pipe another host may have left in any state; both ends use this.

A kept sandbox has a token of 32 random bytes. A call is these bytes among whatever else comes in on the pipe:

    token 32 | nonce 8 | nonce it replaces 8 | where 8 | flags u8 | check 8

``where`` stands for the caller's host, its boot and the place of its locks; ``check`` is the start of SHA-256 over token and
body, so that a call that was cut short is never mended by the bytes of the next. The guest answers a call that it accepts with
SHA-256 of the token (see ``answer_prefix``) and the new nonce, 40 bytes; after them, in both directions, there are only frames
with that nonce, counted from 0. It does not answer one that it refuses: its present host would read the answer, too.
"""

from __future__ import annotations

import hashlib
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN_BYTES = 32
TAKE_OVER, OWNER_DEAD = 1, 2
# A host that was heard within this time is there: it pings after 30 s of silence.
SILENT_SECONDS = 75.0
_BODY = struct.Struct(">8s8s8sB")
CHECK_BYTES = 8
CALL_BYTES = TOKEN_BYTES + _BODY.size + CHECK_BYTES
ANSWER_BYTES = 40
# Of a token that a read cut off: fewer bytes than this at the end of a read are taken for ordinary ones, for every 256th read
# ends with the first byte of the token by chance, and what is held back waits for the next one.
_LEAST_HELD = 8


class Call:
    """A host asks to serve a sandbox: under ``nonce``, in the place of the host that used ``replaces``."""

    __slots__ = ("flags", "nonce", "replaces", "where")

    def __init__(self, nonce: bytes, replaces: bytes, where: bytes, flags: int) -> None:
        self.nonce = nonce
        self.replaces = replaces
        self.where = where
        self.flags = flags

    def pack(self, token: bytes) -> bytes:
        """The call as bytes."""
        body = _BODY.pack(self.nonce, self.replaces, self.where, self.flags)
        return token + body + _check(token, body)


def answer_prefix(token: bytes) -> bytes:
    """What every answer to a call starts with; the nonce of the host that it is for follows."""
    return hashlib.sha256(b"gamebox answer\0" + token).digest()


def _check(token: bytes, body: bytes) -> bytes:
    return hashlib.sha256(token + body).digest()[:CHECK_BYTES]


class CallFinder:
    """Takes calls out of the bytes that come in."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._kept = b""  # the end of the last read, where a call may have begun
        self._answered = 0  # how much of it was answered all the same

    def feed(self, data: bytes) -> Iterator[bytes | Call]:
        """What is in ``data`` in its order: calls, and the bytes around them."""
        data, start = self._kept + data, self._answered
        at = data.find(self._token)
        while at >= 0 and len(data) >= at + CALL_BYTES:
            call = self._call(data[at + TOKEN_BYTES : at + CALL_BYTES])
            if call is None:  # cut short
                at = data.find(self._token, at + 1)
                continue
            if at > start:
                yield data[start:at]
            yield call
            start = at + CALL_BYTES
            at = data.find(self._token, start)
        if at < 0:
            at = len(data) - self._cut_token(data)
        end = at if len(data) - at >= _LEAST_HELD else len(data)
        self._kept, self._answered = data[at:], max(end, start) - at
        if end > start:
            yield data[start:end]

    def _call(self, rest: bytes) -> Call | None:
        body = rest[: _BODY.size]
        return Call(*_BODY.unpack(body)) if rest[_BODY.size :] == _check(self._token, body) else None

    def _cut_token(self, data: bytes) -> int:
        """How many bytes at the end of ``data`` are the beginning of a token."""
        for count in range(min(TOKEN_BYTES - 1, len(data)), 0, -1):
            if data.endswith(self._token[:count]):
                return count
        return 0
