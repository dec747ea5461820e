"""Mutations of conversations: of values in messages, of frames and their order, of bytes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import KINDS, Kind

from .conversations import Exchange, Frame, encode

DEEP: Any = "deep"
for _ in range(400):
    DEEP = [DEEP]
EVIL: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 65536, 2**31, 2**32, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-308,
    float("inf"), float("-inf"), float("nan"),
    "", "x", ".", "..", "/", "a" * 300, "a" * 70_000, "\0", "\ud800", "\x1b[2J\n", "ä€😀", "\u202e", "c1", "c2", "r1", "w1",
    "stdin", "SIGKILL", "timeout", "not_text", "no_space", "none", "partial", "queued", "{}", "%s",
    [], [[]], [None], ["x"], [1, 2, 3], [[1, 1, 0]], [[1, 2, 0], [2, 1, 1]], [0] * 2000, {}, {"": {}}, {"x": 1},
    {"code": "timeout"}, [{"code": "out_of_memory", "limit": 10**400}], {"path": [], "code": {}}, DEEP,
    {"kind": "stdin", "pid": -1},
)  # fmt: skip
NAMES = (
    "result",
    "fault",
    "notices",
    "segments",
    "code",
    "fields",
    "effects",
    "id",
    "path",
    "args",
    "operation",
    "size_bytes",
    "limit",
)
RAW_JSON = (
    b"", b"{", b"[]", b"null", b"[" * 5000, b'{"a":' * 3000, b"9" * 5000, b"-" + b"9" * 4299, b'{"a":1e999}', b'"\\ud800"',
    b"\xff\xfe",
    b"{}" * 2, b'{"result":NaN}', b'{"result":{"a":' + b"[" * 900 + b"]" * 900 + b"}}", b'{"result":[1,2],"fault":[3]}',
)  # fmt: skip
Values = Callable[[random.Random], Any]


def mutated_value(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """The same value with something wrong in it, somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.9 and depth < 6:
        changed = dict(value)
        name = rng.choice(list(changed))
        kind = rng.random()
        if kind < 0.1:
            del changed[name]
        elif kind < 0.16:
            changed[rng.choice(NAMES)] = copy.copy(rng.choice(EVIL))
        elif kind < 0.2:
            changed[rng.choice(NAMES)] = changed.pop(name)
        else:
            changed[name] = mutated_value(rng, changed[name], depth + 1)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8 and depth < 6:
        place = rng.randrange(len(value))
        kept = value if rng.random() < 0.6 else [*value, *value][: rng.randrange(2 * len(value)) + 1]
        return [*kept[:place], mutated_value(rng, value[place], depth + 1), *kept[place + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 7, -value, -2 * value, 1 << 20))
    if isinstance(value, str) and rng.random() < 0.3:
        at = rng.randrange(len(value) + 1)
        return value[:at] + rng.choice(("", "\0", "\ud800", "/../", "é", "a" * 5000)) + value[at + rng.randrange(2) :]
    return rng.choice(EVIL)


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """The same bytes but for some that are flipped, left out, repeated or put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xC3, 0xE2, 0xF0, 0xFF))
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            changed[at:at] = changed[at : at + rng.randrange(1, 40)]
    return bytes(changed)


def _value(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    if frame.fields is None:
        return [replace(frame, payload=mutated_bytes(rng, frame.payload))]
    return [replace(frame, fields=mutated_value(rng, frame.fields))]


def _arguments(rng: random.Random, frame: Frame, corpus: list[Exchange]) -> list[Frame]:
    """A request of whose arguments some are missing, null or others."""
    if frame.fields is None or not isinstance(frame.fields.get("args"), dict) or not frame.fields["args"]:
        return _value(rng, frame, corpus)
    args = dict(frame.fields["args"])
    for name in rng.sample(list(args), min(len(args), rng.choice((1, 1, 2, 3)))):
        kind = rng.random()
        if kind < 0.2:
            del args[name]
        else:
            args[name] = None if kind < 0.5 else copy.copy(rng.choice(EVIL))
    return [replace(frame, fields={**frame.fields, "args": args})]


def _blob(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    return [replace(frame, payload=mutated_bytes(rng, frame.payload))]


def _json(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    """A message whose JSON is none, or none that is expected."""
    text = rng.choice(RAW_JSON)
    length = rng.choice((len(text), len(text), len(text), len(text) + 1, 0, 0xFFFFFFFF))
    return [Frame(frame.kind, frame.channel, (length.to_bytes(4, "big") + text + frame.payload)[: wire.MAX_PAYLOAD])]


def _short(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    whole = frame.frames()[-1]
    return [Frame(frame.kind, frame.channel, whole[2][: rng.choice((0, 1, 3, 4, 5, len(whole[2]) // 2))])]


def _kind(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    return [replace(frame, kind=rng.choice((*KINDS, *KINDS, 0, 12, 255)))]


def _channel(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    return [replace(frame, channel=rng.choice((frame.channel + 1, -1, -2, 7, 0x7FFFFFFF, 0x7FFFFF00)))]


def _drop(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    return []


def _twice(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    return [frame, frame]


def _connection(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    """Frames of a connection before this one: mostly one that is asked for, on a channel of the guest's or another."""
    if frame.kind not in (Kind.REPLY, Kind.NOTICE):  # only guests ask; one that is asked would dial on this machine
        return [frame]
    channel = rng.choice((0x80000000, 0x80000001, 0xFFFFFF00, frame.channel, 5))
    wish = {"host": "203.0.113.1", "port": 80}
    made = [Frame(Kind.OPEN, channel, fields=wish if rng.random() < 0.6 else mutated_value(rng, wish))]
    for _i in range(rng.randrange(6)):
        kind = rng.choice((Kind.DATA, Kind.END, Kind.CREDIT, Kind.CANCEL, Kind.OPEN, Kind.REPLY, Kind.NOTICE))
        size = rng.choice((0, 1, 4, 300, wire.TUNNEL_WINDOW // 2, wire.MAX_PAYLOAD))
        credit = rng.choice((0, 1, wire.TUNNEL_WINDOW // 4, 0xFFFFFFFF)).to_bytes(4, "big")
        made.append(Frame(kind, channel, credit if kind == Kind.CREDIT and size != 1 else bytes(min(size, wire.MAX_PAYLOAD))))
    return [*made[rng.random() < 0.1 :], frame]


def _foreign(rng: random.Random, frame: Frame, corpus: list[Exchange]) -> list[Frame]:
    """A frame of another conversation, of either side, before or instead of this one."""
    other = rng.choice(corpus)
    stranger = rng.choice((*other.sent, *other.received))
    return [stranger, frame] if rng.random() < 0.7 else [stranger]


def _parts(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    """The message in crumbs: PART frames of odd sizes, some of them empty."""
    message = b"".join(payload for _, _, payload in frame.frames())
    cuts = sorted(rng.randrange(len(message) + 1) for _ in range(rng.randrange(1, 5)))
    pieces = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
    ends = [Frame(Kind.PART, frame.channel, piece[: wire.MAX_PAYLOAD]) for piece in pieces[:-1]]
    return [*ends, Frame(frame.kind, frame.channel, pieces[-1][: wire.MAX_PAYLOAD])]


def _stray(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    """A frame of a stream or a notice that nobody asked for, or too much of it."""
    kind = rng.choice((Kind.DATA, Kind.END, Kind.CREDIT, Kind.CANCEL, Kind.PING, Kind.PONG, Kind.NOTICE, Kind.PART))
    event: Any = rng.choice(("queued", "started", "tea", 7, [], None))
    size = rng.choice((0, 1, 2, 3, 4, 4, 5, 64, 65, 4096))
    payload = rng.choice(
        (bytes(size), b"\xff" * size, b"\1" + bytes(size), (1 << 20).to_bytes(4, "big"), (5).to_bytes(4, "big"))
    )
    stray = Frame(kind, frame.channel, payload)
    if kind == Kind.NOTICE:
        stray = Frame(kind, frame.channel, b"", {"event": event})
    strays = [stray] * rng.choice((1, 1, 2, 3))
    return [*strays, frame] if rng.random() < 0.5 else [frame, *strays]


def _flood(rng: random.Random, frame: Frame, _: list[Exchange]) -> list[Frame]:
    """More of a stream, or of one message, than may be under way."""
    flood = Frame(rng.choice((Kind.DATA, Kind.PART)), frame.channel, b"\1" * wire.MAX_PAYLOAD)
    return [flood] * rng.choice((9, 20)) + [frame]


# Those that leave the pipe whole come often: what they reach lies deeper.
MUTATIONS: tuple[tuple[int, Callable[[random.Random, Frame, list[Exchange]], list[Frame]]], ...] = (
    (500, _value), (100, _arguments), (60, _blob), (12, _json), (6, _short), (10, _kind),
    (20, _channel), (10, _drop), (10, _twice), (14, _foreign),
    (50, _parts), (20, _stray), (1, _flood), (40, _connection),
)  # fmt: skip
_WEIGHTS, _MAKERS = zip(*MUTATIONS, strict=True)


def mutated_frames(rng: random.Random, frames: list[Frame], corpus: list[Exchange]) -> list[Frame]:
    """The frames of one exchange with one thing wrong."""
    maker = rng.choices(_MAKERS, _WEIGHTS)[0]
    at = rng.randrange(len(frames))
    if maker is _drop and rng.random() < 0.5 and len(frames) > 1:  # out of order rather than gone
        other = rng.randrange(len(frames))
        changed = list(frames)
        changed[at], changed[other] = changed[other], changed[at]
        return changed
    return [*frames[:at], *maker(rng, frames[at], corpus), *frames[at + 1 :]]


def on_the_wire(
    rng: random.Random, frames: list[tuple[int, int, bytes]], first: int, nonce: bytes, wrong: float
) -> bytes:
    """The bytes of frames; with the probability ``wrong`` a header or the bytes themselves are damaged."""
    pieces = encode(frames, first, nonce)
    if not pieces or rng.random() >= wrong:
        return b"".join(pieces)
    at = rng.randrange(len(pieces))
    piece = bytearray(pieces[at])
    kind = rng.randrange(6)
    if kind == 0:
        piece[rng.randrange(24)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        piece[8:12] = ((first + at + rng.choice((-1, 1, 2, 1 << 31))) & 0xFFFFFFFF).to_bytes(4, "big")
    elif kind == 2:
        piece[20:24] = rng.choice((0, 1, wire.MAX_PAYLOAD + 1, 0xFFFFFFFF, len(piece))).to_bytes(4, "big")
    elif kind == 3:
        piece = bytearray(mutated_bytes(rng, bytes(piece)))
    elif kind == 4:
        piece = piece[: rng.randrange(len(piece))]
    else:
        piece[0:0] = rng.choice((b"GET / HTTP/1.1\r\n\r\n", b"\0" * 24, bytes(piece)))
    pieces[at] = bytes(piece)
    return b"".join(pieces)


def in_pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """``data`` as it may come in: whole, cut at any byte, or in crumbs."""
    if len(data) < 2 or rng.random() < 0.6:
        return [data]
    if rng.random() < 0.1 and len(data) < 600:
        return [data[n : n + 1] for n in range(len(data))]
    cuts = sorted({rng.randrange(1, len(data)) for _ in range(rng.randrange(1, 4))})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
