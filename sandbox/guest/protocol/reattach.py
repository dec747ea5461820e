"""How a host takes up a kept sandbox whose pipe an earlier host may have left in any state.

A kept sandbox has a token of 32 random bytes. A host calls by sending these bytes, whatever came before them on the pipe:

    token 32 | nonce 8 | nonce it replaces 8 | where 8 | made at u64 | flags u8 | check 8

``where`` identifies the caller's machine, its boot and the folder of its locks; ``made at`` is when the call was made, in ns since
that boot: what a host sent before it was killed may arrive behind the call of the next host. ``check`` is the start of SHA-256 over
token and body, so that a call that was cut short is not taken for a valid one, unless the first bytes of the next call are those it
lacks (see ``CallFinder``). The guest answers a call that it accepts with 40 bytes: SHA-256 of the token (see ``answer_prefix``) and
the new nonce. After them both directions carry only frames with that nonce, counted from 0. The guest does not answer a call that
it refuses: its current host would read the answer.
"""

from __future__ import annotations

import struct
import time

from .sha256 import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN_BYTES = 32
TAKE_OVER, OWNER_DEAD = 1, 2
NO_NONCE = bytes(8)
# A host that was silent for this long is gone: it pings after 30 s of silence.
SILENT_SECONDS = 75.0
_BODY = struct.Struct(">8s8s8sQB")
CHECK_BYTES = 8
CALL_BYTES = TOKEN_BYTES + _BODY.size + CHECK_BYTES
ANSWER_BYTES = 40
# The beginning of a token at the end of a read is held back until the next one, if it has this many bytes: every 256th read ends
# with the first byte of the token by chance.
_LEAST_HELD = 8


class Call:
    """A host's request to serve a sandbox under ``nonce``.

    ``replaces`` is the nonce that the same host used until its stream was cut, NO_NONCE if it has not been the host before.
    """

    __slots__ = ("flags", "made_at", "nonce", "replaces", "where")

    def __init__(self, nonce: bytes, replaces: bytes, where: bytes, made_at: int, flags: int) -> None:
        self.nonce = nonce
        self.replaces = replaces
        self.where = where
        self.made_at = made_at
        self.flags = flags

    def pack(self, token: bytes) -> bytes:
        """Encode the call."""
        body = _BODY.pack(self.nonce, self.replaces, self.where, self.made_at, self.flags)
        return token + body + _check(token, body)


def time_of_call() -> int:
    """Return the time for a call that is made now."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def answer_prefix(token: bytes) -> bytes:
    """Return the beginning of every answer to a call; the nonce of the host that called follows it."""
    return sha256(b"gamebox answer\0" + token).digest()


def _check(token: bytes, body: bytes) -> bytes:
    return sha256(token + body).digest()[:CHECK_BYTES]


class CallFinder:
    """Find calls in the bytes that arrive."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._tail = b""  # the end of the last read, where a call may have begun
        self._returned = 0  # bytes of the tail that ``feed`` has returned already

    def feed(self, data: bytes) -> Iterator[bytes | Call]:
        """Yield the calls in ``data`` and the bytes around them, in order."""
        data, start = self._tail + data, self._returned
        at = data.find(self._token)
        while at >= 0 and len(data) >= at + CALL_BYTES:
            call = self._parse(data[at + TOKEN_BYTES : at + CALL_BYTES])
            following = data.find(self._token, at + 1)
            if call is None or 0 <= following < at + CALL_BYTES:  # cut short; the next one may begin with what it lacks
                at = following
                continue
            if at > start:
                yield data[start:at]
            yield call
            start = at + CALL_BYTES
            at = data.find(self._token, start)
        if at < 0:
            at = len(data) - self._partial_token(data)
        end = at if len(data) - at >= _LEAST_HELD else len(data)
        self._tail, self._returned = data[at:], max(end, start) - at
        if end > start:
            yield data[start:end]

    def _parse(self, rest: bytes) -> Call | None:
        body = rest[: _BODY.size]
        return Call(*_BODY.unpack(body)) if rest[_BODY.size :] == _check(self._token, body) else None

    def _partial_token(self, data: bytes) -> int:
        """Return how many bytes at the end of ``data`` are the beginning of a token."""
        for count in range(min(TOKEN_BYTES - 1, len(data)), 0, -1):
            if data.endswith(self._token[:count]):
                return count
        return 0
