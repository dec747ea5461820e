"""Calls of a host to a kept guest: those that are accepted, those that are not, and what only looks like one."""

from __future__ import annotations

import secrets

from sandbox.guest.protocol.reattach import OWNER_DEAD, TAKE_OVER, Call, time_of_call

TOKEN, WHERE = bytes(range(100, 132)), b"hostbody"
KEEP = {"token": TOKEN.hex(), "seconds": 60.0, "where": WHERE.hex()}


def packed(how: str, present: bytes, at: int) -> tuple[bytes, bytes | None]:
    """The bytes of a call to a guest that serves the nonce ``present``, and the nonce that it serves then, None if the same.

    "same", "over" and "dead" are accepted, and "left" is once the host has left. "refused" is not; "cut" breaks off at
    the byte ``at``, and "garbled" has it changed.
    """
    nonce, replaces, where, flags = secrets.token_bytes(8), bytes(8), WHERE, 0
    if how == "same":
        replaces = present
    elif how == "over":
        flags = TAKE_OVER
    elif how == "dead":
        flags = OWNER_DEAD
    elif how == "refused":
        where, flags = bytes(8), OWNER_DEAD
    data = Call(nonce, replaces, where, time_of_call(), flags).pack(TOKEN)
    if how == "cut":
        return data[:at], None
    if how == "garbled":
        return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], None
    return data, None if how == "refused" else nonce
