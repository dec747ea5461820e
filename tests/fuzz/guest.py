"""The guest's end under fuzz: everything from the bytes off the pipe to its handlers, in a process of its own.

The process is the guest as ``LocalEnvironment`` starts it, forked from this one with its modules loaded. Commands are really run,
so as root it becomes a user who owns nothing but its temporary folder; those of the record do nothing but print.
"""

from __future__ import annotations

import importlib
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandbox.errors import ErrorCode
from sandbox.guest import wire
from sandbox.guest.wire import Kind

from .conversations import NONCE, Exchange, Frame, encode
from .found import Counts, Found, open_descriptors, resident_bytes, threads
from .mutations import in_pieces, mutated_frames, on_the_wire

NOBODY = 64_321
# Short conversations end with nothing under way, so that growth shows; long ones come further before their pipe is refused.
EXCHANGES = (5, 30, 150)
# The share of exchanges in which nothing is started: a command takes ten times as long.
QUICK = 0.7
ANSWER_SECONDS = 10.0
MOST_DESCRIPTORS_MORE, MOST_THREADS, MOST_BYTES_MORE = 24, 72, 96 << 20
ALLOWED = ("the pipe is broken: ", "the host speaks protocol ", "the host's greeting is none: ")
_LOADED = (
    "dispatch",
    "requests",
    "proxy",
    "refusals",
    "tunnels",
    "disk",
    "workers",
    "pressure",
    "processes",
    "reading",
    "files",
    "listing",
    "search",
    "tree",
    "transfer",
    "browse",
)


class GuestTarget:
    """Mutated conversations with the guest's end. ``wrong`` is the share of exchanges that are mutated."""

    def __init__(self, greeting: Exchange, corpus: list[Exchange], wrong: float = 0.35) -> None:
        self._greeting = greeting
        self._corpus = [e for e in corpus if "9" not in str(e.args.get("command", "")) or e.method != "run"]
        self._quick = [e for e in self._corpus if e.method not in ("run", "watch", "browse", "search")]
        self._wrong = wrong
        for name in _LOADED:
            importlib.import_module(f"sandbox.guest.{name}")

    def conversation(self, rng: random.Random, counts: Counts) -> None:
        """One conversation with a guest of its own, until its pipe ends. Raises Found."""
        guest = GuestProcess()
        try:
            if not self._greet(rng, guest, counts):
                return
            before = guest.used()
            wrong = rng.choice((0.1, self._wrong))
            served = all(self._exchange(rng, guest, counts, wrong) for _ in range(rng.choice(EXCHANGES)))
            if served:
                guest.settle()
                guest.check_growth(before)
            guest.finish()
            counts.endings["served" if served else "refused"] += 1
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
        exchange = rng.choice(self._quick if rng.random() < QUICK else self._corpus)
        frames = list(exchange.sent)
        mutated = rng.random() < wrong
        if mutated:
            frames = mutated_frames(rng, frames, self._corpus)
        base = guest.next_channel()
        parts = [(kind, (base + c) & 0xFFFFFFFF, p) for frame in frames for kind, c, p in frame.frames()]
        whole = [*parts, (Kind.PING, 0, base.to_bytes(4, "big"))]
        data = on_the_wire(rng, whole, guest.sequence, NONCE, 0.02 if mutated else 0.0)
        for piece in in_pieces(rng, data):
            guest.write(piece, 0)
        guest.sequence += len(whole)
        guest.sent += len(whole)
        counts.calls += 1
        if data != b"".join(encode(whole, guest.sequence - len(whole))):
            return False  # it may wait for the rest of a frame, and has to end with the pipe
        return guest.wait_for(Kind.PONG, 0, base.to_bytes(4, "big"))


class GuestProcess:
    """A guest in a child process, the pipe to it, and what it said."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="fuzz-guest-"))
        self.sequence = 1
        self.sent = 0
        self.broken = False
        self.told: list[str] = []
        self._channel = 0
        self._ids: set[str] = set()
        self._decoder = wire.Decoder(NONCE)
        self._assembler = wire.Assembler()
        self._frames: list[tuple[int, int, bytes]] = []
        for name in ("workspace", "home", "spill", "tmp"):
            (self.base / name).mkdir()
        self.log = self.base / "log"
        self.log.touch()
        to_guest, from_guest = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_guest(to_guest[0], from_guest[1])
        os.close(to_guest[0])
        os.close(from_guest[1])
        self._in, self._out = to_guest[1], from_guest[0]
        os.set_blocking(self._in, False)

    def _become_guest(self, source: int, sink: int) -> None:
        try:
            os.setsid()
            if os.getuid() == 0:
                for path in (self.base, *self.base.iterdir()):
                    os.chown(path, NOBODY, NOBODY)
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            log = os.open(self.log, os.O_WRONLY | os.O_APPEND)
            for fd, target in ((source, 0), (sink, 1), (log, 2)):
                os.dup2(fd, target)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            os.closerange(3, 1024)
            importlib.import_module("sandbox.guest.__main__").main()
        except BaseException as error:  # noqa: BLE001  what the interpreter would do at the end of a program
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(70)

    def hello(self, greeting: Exchange) -> Frame:
        """The recorded HELLO, for a guest that lives here and is not PID 1."""
        fields = dict(greeting.sent[0].fields)
        uid = NOBODY if os.getuid() == 0 else os.getuid()
        folders = [str(self.base / name) for name in ("workspace", "home", "spill", "tmp")]
        here: dict[str, Any] = {"workspace": folders[0], "home": folders[1], "spill": folders[2], "roots": folders}
        here |= {"uid": uid, "gid": uid, "interpreter": [sys.executable], "ca_bundle": None}
        here["environ"] = {"PATH": os.environ["PATH"], "HOME": folders[1]}
        fields |= {"isolated": False, "place": {**fields["place"], **here}, "disk": {}}
        return Frame(Kind.HELLO, 0, b"", fields)

    # --- the pipe ------------------------------------------------------------------
    def expect(self, nonce: bytes) -> None:
        self._decoder.nonce = nonce

    def write(self, data: bytes, frames: int) -> None:
        self.sent += frames
        self.told.append(data.hex())
        view = memoryview(data)
        deadline = time.monotonic() + ANSWER_SECONDS
        while view and not self.broken:
            if time.monotonic() > deadline:
                self._found("the guest did not take what was sent")
            readable, writable, _ = select.select([self._out], [self._in], [], 1.0)
            if readable:
                self._read()
            if writable:
                try:
                    view = view[os.write(self._in, view) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    self.broken = True

    def wait_for(self, kind: int, channel: int, payload: bytes | None = None) -> bool:
        """Whether such a frame came, rather than the end of the pipe."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            for frame in self._frames:
                if frame[:2] == (kind, channel) and (payload is None or frame[2] == payload):
                    self._frames.clear()
                    return True
            if self.broken:
                return False
            if time.monotonic() > deadline:
                self._found(f"no frame of kind {kind} within {ANSWER_SECONDS} s")
            if select.select([self._out], [], [], 1.0)[0]:
                self._read()

    def _read(self) -> None:
        data = os.read(self._out, 1 << 20)
        if not data:
            self.broken = True
        try:
            for kind, channel, payload in self._decoder.feed(data):
                self._frames.append((kind, channel, payload))
                self._judge(kind, channel, payload)
        except wire.WireError as error:
            self._found(f"the guest said what the protocol does not allow: {error}")

    def _judge(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == Kind.PART:
            self._assembler.add(channel, payload)
        elif kind in (Kind.REPLY, Kind.NOTICE, Kind.HELLO):
            fields, _ = wire.unpack_message(self._assembler.finish(channel, payload))
            if kind == Kind.REPLY:
                fault, result = fields.get("fault"), fields.get("result")
                if fault is None and not isinstance(result, dict):
                    self._found(f"a reply without result or fault: {fields}")
                if fault is not None and fault["code"] not in set(ErrorCode):
                    self._found(f"a fault that nobody knows: {fault}")
                if isinstance(result, dict) and isinstance(result.get("id"), str):
                    self._ids.add(result["id"])

    def next_channel(self) -> int:
        self._channel += 10
        return self._channel

    # --- the end ------------------------------------------------------------------
    def settle(self) -> None:
        """Give up everything that was asked, and kill every command."""
        frames = [(int(Kind.CANCEL), n, b"") for n in range(self._channel + 10)]
        for ident in sorted(self._ids):
            message = wire.pack_message({"operation": "kill", "args": {"id": ident, "signal": None}})
            frames.append((int(Kind.REQUEST), self.next_channel(), message))
        frames.append((int(Kind.PING), 0, b"settled"))
        self.write(b"".join(wire.frame(NONCE, self.sequence + n, *frame) for n, frame in enumerate(frames)), 0)
        self.sequence += len(frames)
        if not self.wait_for(Kind.PONG, 0, b"settled"):
            self._found("the guest ended while it was told to give up")

    def used(self) -> tuple[int, int]:
        return open_descriptors(self.pid), resident_bytes(self.pid)

    def check_growth(self, before: tuple[int, int]) -> None:
        """Descriptors, threads and memory once nothing is under way any more. Raises Found."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while (more := open_descriptors(self.pid) - before[0]) > MOST_DESCRIPTORS_MORE and time.monotonic() < deadline:
            time.sleep(0.01)
        if more > MOST_DESCRIPTORS_MORE:
            open_now = [os.readlink(f"/proc/{self.pid}/fd/{n}") for n in os.listdir(f"/proc/{self.pid}/fd")]
            self._found(f"{more} descriptors more: {sorted(open_now)}")
        if (count := threads(self.pid)) > MOST_THREADS:
            self._found(f"{count} threads")
        if (grown := resident_bytes(self.pid) - before[1]) > MOST_BYTES_MORE:
            self._found(f"{grown >> 20} MiB more memory")

    def finish(self, greeted: bool = True) -> None:
        """End the pipe; the guest has to follow, in one of the ways it may. Raises Found."""
        with suppress(OSError):
            os.close(self._in)
        self._in = -1
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                self._found("the guest did not end with its pipe")
            if select.select([self._out], [], [], 0.005)[0] and not self.broken:
                self._read()
        self.pid = 0
        said = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in said.splitlines() if not line.startswith(ALLOWED)]
        allowed = (0,) if greeted else (0, 3)
        if os.waitstatus_to_exitcode(status) not in allowed or lines:
            self._found(f"ended with {os.waitstatus_to_exitcode(status)} and said {said[-3000:]!r}")

    def destroy(self) -> None:
        """Leave nothing behind, however it ended."""
        for fd in (self._in, self._out):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        if self.pid:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        shutil.rmtree(self.base, ignore_errors=True)

    def _found(self, what: str) -> None:
        with suppress(OSError):
            what += "; its log: " + self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise Found(what, self.told)


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
