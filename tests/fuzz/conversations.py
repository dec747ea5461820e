"""Conversations between host and guest that really took place, exchange by exchange.

``conversations.jsonl`` was recorded from a sandbox (``python -m tests.fuzz record``); a line is one exchange.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.guest import wire
from sandbox.guest.wire import Kind

RECORD = Path(__file__).with_name("conversations.jsonl")
NONCE = b"\x5afuzzed\xa5"
MESSAGES = frozenset({Kind.HELLO, Kind.REQUEST, Kind.REPLY, Kind.NOTICE})


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame; of a message (it may take several frames on the wire) ``fields`` is the JSON and ``payload`` the blob."""

    kind: int
    channel: int
    payload: bytes = b""
    fields: Any = None

    def frames(self) -> list[tuple[int, int, bytes]]:
        """(kind, channel, payload) of each frame on the wire."""
        if self.fields is None:
            return [(self.kind, self.channel, self.payload[: wire.MAX_PAYLOAD])]
        message = wire.pack_message(self.fields, self.payload, exact=True, any_number=True)
        return [(kind, self.channel, bytes(part)) for kind, part in wire.split_message(self.kind, message)]

    def to_json(self) -> list[Any]:
        zeros = self.payload.count(0) == len(self.payload)  # of an upload: their number says it all
        payload = len(self.payload) if zeros else base64.b85encode(self.payload).decode()
        return [self.kind, self.channel, payload, self.fields]

    @classmethod
    def from_json(cls, listed: list[Any]) -> Frame:
        kind, channel, payload, fields = listed
        return cls(kind, channel, bytes(payload) if isinstance(payload, int) else base64.b85decode(payload), fields)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of an operation: ``method`` and ``args`` of the caller, and what went over the pipe because of it.

    ``sent`` begins with the REQUEST; channels count from 0 within an exchange. ``ok`` says how the call ended.
    """

    method: str
    args: dict[str, Any]
    ok: bool
    sent: tuple[Frame, ...]
    received: tuple[Frame, ...]

    def to_json(self) -> dict[str, Any]:
        sides = {"sent": [f.to_json() for f in self.sent], "received": [f.to_json() for f in self.received]}
        return {"method": self.method, "args": self.args, "ok": self.ok, **sides}


def load(path: Path = RECORD) -> tuple[Exchange, list[Exchange]]:
    """The greeting, and the exchanges after it."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        listed = json.loads(line)
        sides = [tuple(Frame.from_json(f) for f in listed[name]) for name in ("sent", "received")]
        found.append(Exchange(listed["method"], listed["args"], listed["ok"], *sides))
    return found[0], found[1:]


def encode(frames: Iterable[tuple[int, int, bytes]], first: int = 0, nonce: bytes = NONCE) -> list[bytes]:
    """The bytes of each frame, numbered from ``first`` on."""
    return [wire.frame(nonce, first + n, kind, channel, payload) for n, (kind, channel, payload) in enumerate(frames)]
