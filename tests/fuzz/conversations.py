"""Conversations between host and guest that really took place, exchange by exchange.

``conversations.jsonl`` was recorded from a sandbox (``python -m tests.fuzz record``); a line is one exchange.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind

RECORD = Path(__file__).with_name("conversations.jsonl")
NONCE = b"\x5afuzzed\xa5"
HEAVY_BYTES = 1 << 18
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
        start = self.payload.rstrip(b"\0")  # of zeros at the end, their number says it all
        payload = base64.b85encode(start).decode()
        return [self.kind, self.channel, [payload, len(self.payload) - len(start)], self.fields]

    @classmethod
    def from_json(cls, listed: list[Any]) -> Frame:
        kind, channel, (start, zeros), fields = listed
        return cls(kind, channel, base64.b85decode(start) + bytes(zeros), fields)


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


def pick(
    rng: random.Random, corpus: list[Exchange], after: Exchange | None = None, *, received: bool = True
) -> Exchange:
    """Any of them, or the one that follows; but those that move much seldom: a run is about frames, not about bytes.

    ``received`` says whether what was received is moved as well.
    """
    exchange = rng.choice(corpus) if after is None else corpus[(corpus.index(after) + 1) % len(corpus)]
    moved = sum(len(frame.payload) for frame in (*exchange.sent, *(exchange.received if received else ())))
    return pick(rng, corpus, received=received) if moved > HEAVY_BYTES and rng.random() < 0.95 else exchange


def encode(frames: Iterable[tuple[int, int, bytes]], first: int = 0, nonce: bytes = NONCE) -> list[bytes]:
    """The bytes of each frame, numbered from ``first`` on."""
    return [wire.frame(nonce, first + n, kind, channel, payload) for n, (kind, channel, payload) in enumerate(frames)]
