"""Recording conversations: a real sandbox, real operations, and an ear on the pipe."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sandbox import DockerEnvironment, Limits
from sandbox.backend import GuestStream, StartRequest
from sandbox.docker.backend import DockerBackend
from sandbox.docker.container.stream import AttachStream
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind

from .calls import CALLS, call
from .conversations import MESSAGES, RECORD, Exchange, Frame


class Overheard(AttachStream):
    """The pipe, and every frame that goes over it as (whether it was sent, kind, channel, payload)."""

    def __init__(self, attached: Any) -> None:
        super().__init__(attached)
        self.heard: list[tuple[bool, int, int, bytes]] = []
        self._decoders = {True: wire.Decoder(None), False: wire.Decoder(None)}

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        sent = super().send(data, timeout_seconds)
        self._hear(True, bytes(data[:sent]))
        return sent

    def receive(self, timeout_seconds: float) -> bytes | None:
        data = super().receive(timeout_seconds)
        self._hear(False, data or b"")
        return data

    def _hear(self, sent: bool, data: bytes) -> None:
        self.heard += [(sent, *frame) for frame in self._decoders[sent].feed(data)]


class RecordingBackend(DockerBackend):
    """A sandbox whose pipe is listened to."""

    def open(self, request: StartRequest) -> GuestStream:
        opened = super().open(request)
        overheard: Any = opened.stream
        overheard.__class__ = Overheard
        overheard.heard, overheard._decoders = [], {True: wire.Decoder(None), False: wire.Decoder(None)}
        return opened


def record() -> int:
    """Write the record anew; answers how many exchanges it has."""
    env = DockerEnvironment(limits=Limits(memory_bytes=256 << 20))
    env.backend.__class__ = RecordingBackend
    with env:
        stream: Any = env.backend.stream
        found = [_exchange("hello", {}, True, stream.heard)]
        ids: dict[str, str] = {}
        for method, args in CALLS:
            stream.heard.clear()
            given = {name: ids.get(value, value) if name == "id" else value for name, value in args.items()}
            answer = call(env, method, given)
            if args.get("session") == "talk":
                ids["TALK"] = answer.result.id
            if args.get("background"):
                ids["TERMINAL" if args.get("pty") else "FOLLOWED"] = answer.result.id
            found.append(_exchange(method, given, answer.ok, stream.heard))
    RECORD.write_text("".join(json.dumps(e.to_json(), ensure_ascii=False) + "\n" for e in found), encoding="utf-8")
    return len(found)


def _exchange(method: str, args: dict[str, Any], ok: bool, heard: list[tuple[bool, int, int, bytes]]) -> Exchange:
    first = min(channel for _, kind, channel, _ in heard if kind in (Kind.REQUEST, Kind.HELLO))
    sides: dict[bool, list[Frame]] = {True: [], False: []}
    parts: dict[tuple[bool, int], bytes] = {}
    for sent, kind, channel, payload in list(heard):
        if kind == Kind.PART:
            parts[sent, channel] = parts.get((sent, channel), b"") + payload
            continue
        frame = Frame(kind, max(0, channel - first), payload)
        if kind in MESSAGES:
            fields, blob = wire.unpack_message(parts.pop((sent, channel), b"") + payload, exact=True)
            fields.pop("boot_id", None)  # of the machine
            frame = replace(frame, fields=fields, payload=blob)
        if kind not in (Kind.PING, Kind.PONG):
            sides[sent].append(frame)
    return Exchange(method, args, ok, tuple(sides[True]), tuple(sides[False]))
