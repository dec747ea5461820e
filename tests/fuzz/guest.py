"""The guest's end under fuzz: everything from the bytes off the pipe to its handlers, in a process of its own.

Commands of the record do nothing but print.
"""

from __future__ import annotations

import importlib
import random
from dataclasses import replace

from sandbox.guest.protocol import wire
from sandbox.guest.protocol.reattach import CALL_BYTES
from sandbox.guest.protocol.wire import Kind

from .conversations import NONCE, Exchange, Frame, encode, pick
from .found import Counts
from .guest_process import GuestProcess
from .mutations import in_pieces, mutated_frames, on_the_wire

# Short conversations end with nothing under way, so that growth shows; long ones come further before their pipe is refused.
EXCHANGES = (5, 30, 150)
# The share of exchanges in which nothing is started: a command takes ten times as long.
QUICK = 0.7
# The shares of conversations with a kept guest, and of sound exchanges with it after which a host calls.
KEPT, CALLED = 0.2, 0.1
# Of conversations in which the lease runs out, or whose host stops listening at the end; of exchanges that follow the last one
# as in the record, of requests to a kept guest that are made twice, and of exchanges that are one endless message.
LEASES, DEAF, NEXT, TWICE, ENDLESS = 0.02, 0.1, 0.25, 0.1, 0.0003
# A call that lacks its last byte is whole in 1 of 256 cases, for the next one begins with a byte, too; hosts call again after 2 s.
MOST_CUT = CALL_BYTES - 5
# Calls that are accepted whoever is served.
ACCEPTED = ("same", "over", "dead")
_LOADED = (
    "loop.dispatch",
    "loop.requests",
    "network.proxy",
    "network.refusals",
    "network.tunnels",
    "watch.disk_watch",
    "loop.workers",
    "watch.limits",
    "commands.processes",
    "files.reading",
    "files.writing",
    "files.listing",
    "files.search",
    "files.tree",
    "files.transfer",
    "pages.browse",
)
_SLOW = ("run", "watch", "fed", "cancelled", "paused", "browse", "search", "follow", "changes", "checkpoint", "back")


class GuestTarget:
    """Mutated conversations with the guest's end. ``wrong`` is the share of exchanges that are mutated."""

    def __init__(self, greeting: Exchange, corpus: list[Exchange], wrong: float = 0.35) -> None:
        self._greeting = greeting
        self._corpus = [e for e in corpus if "9" not in str(e.args.get("command", "")) or e.method != "run"]
        self._quick = [e for e in self._corpus if e.method not in _SLOW]
        self._wrong = wrong
        self._last: Exchange | None = None
        for name in _LOADED:
            importlib.import_module(f"sandbox.guest.{name}")

    def conversation(self, rng: random.Random, counts: Counts) -> None:
        """One conversation with a guest of its own, until its pipe ends. Raises Found."""
        self._last = None
        kept = rng.random() < KEPT
        guest = GuestProcess(kept, not kept and rng.random() < LEASES)
        try:
            if not self._greet(rng, guest, counts):
                return
            if guest.short_lease:
                guest.outlive()
                guest.finish()
                counts.endings["lease"] += 1
                return
            before = guest.used()
            wrong = rng.choice((0.1, self._wrong))
            exchange = self._exchange_kept if guest.kept else self._exchange
            served = all(exchange(rng, guest, counts, wrong) for _ in range(rng.choice(EXCHANGES)))
            if served:
                guest.settle()
                guest.check_growth(before)
            guest.finish(deaf=rng.random() < DEAF)
            kind = "kept" if guest.kept else "served"
            counts.endings[kind if served else "refused"] += 1
        finally:
            counts.frames += guest.sent
            counts.conversations += 1
            guest.destroy()

    def _greet(self, rng: random.Random, guest: GuestProcess, counts: Counts) -> bool:
        hello = guest.hello(self._greeting)
        data = on_the_wire(rng, hello.frames(), 0, NONCE, 0.01)
        guest.write(data, 1)
        guest.expect(data[:8])  # the first frame says which nonce it is, damaged or not
        if data != b"".join(encode(hello.frames())) or not guest.wait_for(Kind.HELLO, 0):
            guest.finish(greeted=False)
            counts.endings["greeting"] += 1
            return False
        return True

    def _exchange(self, rng: random.Random, guest: GuestProcess, counts: Counts, wrong: float) -> bool:
        """One exchange and a PING; whether the guest still serves."""
        mutated = rng.random() < wrong
        if not self._say(rng, guest, counts, mutated):
            return False  # it may wait for the rest of a frame, and has to end with the pipe
        return guest.answers_ping()

    def _exchange_kept(self, rng: random.Random, guest: GuestProcess, counts: Counts, wrong: float) -> bool:
        """The same with a kept guest: whatever was said, a host that calls is served."""
        mutated = rng.random() < wrong
        sound = self._say(rng, guest, counts, mutated) and not mutated
        if sound and rng.random() >= CALLED:
            return guest.answers_ping()
        data = b""
        if not sound:
            how, at = rng.choice(("cut", "garbled", "")), min(rng.randrange(CALL_BYTES), MOST_CUT)
            data = guest.call(how, at) if how else b""
        elif rng.random() < 0.3:
            guest.write(guest.call("refused"), 0)
            return guest.answers_ping()
        elif rng.random() < 0.3:
            leaving = wire.pack_message({"acknowledged": rng.choice((["a1", "a2", 3], 7, None))})
            guest.write_frames([(int(Kind.DETACH), 0, leaving)])
            data = guest.call("left")
        if not data or not guest.is_called:
            data += guest.call(rng.choice(ACCEPTED))
        for piece in in_pieces(rng, data):
            guest.write(piece, 0)
        if not guest.wait_for_answer():
            return False
        guest.write_frames([(int(Kind.HELLO), 0, b"")])
        return guest.wait_for(Kind.HELLO, 0) and guest.answers_ping()

    def _say(self, rng: random.Random, guest: GuestProcess, counts: Counts, mutated: bool) -> bool:
        """The frames of one exchange and a PING; whether they went out whole."""
        if self._last is not None and rng.random() < NEXT:
            exchange = pick(rng, self._corpus, self._last, received=False)
        else:
            exchange = pick(rng, self._quick if rng.random() < QUICK else self._corpus, received=False)
        self._last = exchange
        frames = list(exchange.sent)
        endless = rng.random() < ENDLESS
        if endless:
            frames = [Frame(Kind.PART, 0, bytes(wire.MAX_PAYLOAD))] * (wire.MAX_MESSAGE // wire.MAX_PAYLOAD + 1)
        else:
            frames = self._said(rng, frames, guest.kept, mutated)
        base = guest.next_channel()
        parts = [(kind, (base + c) & 0xFFFFFFFF, p) for frame in frames for kind, c, p in frame.frames()]
        whole = [*guest.credits(), *parts, guest.ping()]
        data = on_the_wire(rng, whole, guest.sequence, guest.nonce, 0.02 if mutated else 0.0)
        sound = data == b"".join(encode(whole, guest.sequence, guest.nonce))
        guest.sequence += len(whole)
        counts.calls += 1
        pieces = in_pieces(rng, data)
        for n, piece in enumerate(pieces):
            guest.write(piece, len(whole) if n == 0 else 0)
        return sound and not endless and _body(whole) <= wire.WINDOW  # a guest that is slow to take it was told too much

    def _said(self, rng: random.Random, frames: list[Frame], kept: bool, mutated: bool) -> list[Frame]:
        if kept:
            frames = [_with_id(rng, frame) for frame in frames]
            if rng.random() < TWICE:
                frames.insert(1, replace(frames[0], channel=frames[0].channel + 9))
        return mutated_frames(rng, frames, self._corpus) if mutated else frames


def _body(frames: list[tuple[int, int, bytes]]) -> int:
    """Bytes of the largest body among them; nobody here waits for credit."""
    sizes: dict[int, int] = {}
    for kind, channel, payload in frames:
        if kind == Kind.DATA:
            sizes[channel] = sizes.get(channel, 0) + len(payload)
    return max(sizes.values(), default=0)


def _with_id(rng: random.Random, frame: Frame) -> Frame:
    """A request as it goes to a kept guest: maybe one that was made before."""
    if frame.kind != Kind.REQUEST:
        return frame
    told = {
        "ask_id": f"a{rng.randrange(60)}",
        "acknowledged": [f"a{rng.randrange(60)}" for _ in range(rng.randrange(3))],
    }
    return replace(frame, fields={**frame.fields, **told})


def replay(conversation: list[str], greeting: Exchange) -> None:
    """The bytes of a conversation that was kept, once more. Raises Found where the guest ends as it must not."""
    guest = GuestProcess()
    try:
        hello = guest.hello(greeting)
        guest.write(wire.frame(NONCE, 0, *hello.frames()[0]), 1)
        if guest.wait_for(Kind.HELLO, 0):
            for piece in conversation[1:]:
                guest.write(bytes.fromhex(piece), 0)
        guest.finish()
    finally:
        guest.destroy()
