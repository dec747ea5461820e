"""A guest in a process of its own, and the pipe to it.

The process is the guest as ``LocalEnvironment`` starts it, forked from this one with its modules loaded. Commands are really run,
so as root it becomes a user who owns nothing but its temporary folder.
"""

from __future__ import annotations

import importlib
import os
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
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.constants import LEASE_OVER
from sandbox.guest.protocol.reattach import answer_prefix
from sandbox.guest.protocol.wire import Kind
from sandbox.local.launcher import find_launcher

from .conversations import NONCE, Exchange, Frame, encode
from .found import Found, open_descriptors, resident_bytes, threads
from .guest_calls import KEEP, TOKEN, packed
from .reached import leave_measured

NOBODY = 64_321
ANSWER_SECONDS = 10.0
SETTLING_SECONDS = 40.0  # no promise: what a conversation left is ended one after the other
DEAF_SECONDS = 0.005  # for the guest to notice
LEASE_SECONDS = 0.2
MUCH = (int(Kind.REQUEST), 1, wire.pack_message({"operation": "download", "args": {"path": "big.bin"}}))
MOST_DESCRIPTORS_MORE, MOST_THREADS, MOST_BYTES_MORE = 24, 72, 96 << 20
ALLOWED = (
    "the pipe is broken: ",
    "the host speaks protocol ",
    "the host's HELLO is malformed: ",
    "the host is not understood: ",
)


def _leave(number: int, _: object) -> None:
    """End a kept guest, which waits for another host otherwise."""
    signal.signal(number, signal.SIG_IGN)
    os._exit(0)


class GuestProcess:
    """A guest in a child process, the pipe to it, and what it said. ``kept`` says whether it is to outlive its hosts."""

    def __init__(self, kept: bool = False, short_lease: bool = False) -> None:
        self.kept, self.short_lease = kept, short_lease
        self.nonce = NONCE
        self.base = Path(tempfile.mkdtemp(prefix="fuzz-guest-"))
        self.sequence = 1
        self.sent = 0
        self.broken = False
        self.told: list[str] = []
        self._channel = self._pings = 0
        self._ids: set[str] = set()
        self._decoder = wire.Decoder(NONCE)
        self._assembler = wire.Assembler()
        self._frames: list[tuple[int, int, bytes]] = []
        self._owed: dict[int, int] = {}  # bytes that came by channel and were not credited
        self._answer: bytes | None = None  # to a call
        self._unread = b""
        for name in ("workspace", "home", "spill", "tmp"):
            (self.base / name).mkdir()
        (self.base / "workspace" / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
        with (self.base / "workspace" / "big.bin").open("wb") as big:
            big.truncate(3_000_000)
        shutil.copy(find_launcher(), self.base / "launcher")  # the guest's user cannot reach the cache of this one
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
                for path in (self.base, *self.base.rglob("*")):
                    os.chown(path, NOBODY, NOBODY)
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            log = os.open(self.log, os.O_WRONLY | os.O_APPEND)
            for fd, target in ((source, 0), (sink, 1), (log, 2)):
                os.dup2(fd, target)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            os.closerange(3, 1024)
            leave_measured()
            signal.signal(signal.SIGUSR1, _leave)
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
        here["launcher"] = str(self.base / "launcher")
        here["environ"] = {"PATH": os.environ["PATH"], "HOME": folders[1]}
        fields |= {"isolated": False, "place": {**fields["place"], **here}, "disk": {}}
        if self.short_lease:
            fields["place"]["limits"] = {**fields["place"]["limits"], "lease_seconds": LEASE_SECONDS}
        if self.kept:
            fields |= {"keep": KEEP}
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

    def write_frames(self, frames: list[tuple[int, int, bytes]]) -> None:
        self.write(b"".join(encode(frames, self.sequence, self.nonce)), len(frames))
        self.sequence += len(frames)

    def ping(self) -> tuple[int, int, bytes]:
        """The frame that asks for ``answers_ping``."""
        self._pings += 1
        return int(Kind.PING), 0, self._pings.to_bytes(4, "big")

    def answers_ping(self) -> bool:
        """Whether the last PING was answered, or one that goes out now where the pipe is another one since."""
        if self.sequence <= 1:
            self.write_frames([self.ping()])
        return self.wait_for(Kind.PONG, 0, self._pings.to_bytes(4, "big"))

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
            if self._answer is not None:
                data = self._after_answer(data)
            for kind, channel, payload in self._decoder.feed(data):
                self._frames.append((kind, channel, payload))
                self._judge(kind, channel, payload)
        except wire.WireError as error:
            self._found(f"the guest said what the protocol does not allow: {error}")

    def _after_answer(self, data: bytes) -> bytes:
        """What is behind the answer to the call; the frames before it have to be whole."""
        answer = self._answer or b""
        self._unread += data
        at = self._unread.find(answer)
        if at < 0:
            return b""
        before, rest = self._unread[:at], self._unread[at + len(answer) :]
        for _ in self._decoder.feed(before):
            """They were meant for an earlier host."""
        if self._decoder.buffered:
            self._found(f"{self._decoder.buffered} bytes of a frame before the answer to a call")
        self._decoder, self._assembler, self._unread, self._answer = (
            wire.Decoder(self.nonce),
            wire.Assembler(),
            b"",
            None,
        )
        self._frames.clear()
        self._owed.clear()
        return rest

    def _judge(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == Kind.PART:
            self._assembler.add(channel, payload)
        elif kind == Kind.DATA:
            self._owed[channel] = self._owed.get(channel, 0) + len(payload)
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

    def credits(self) -> list[tuple[int, int, bytes]]:
        """Frames that credit what has come."""
        owed, self._owed = self._owed, {}
        return [(int(Kind.CREDIT), channel, size.to_bytes(4, "big")) for channel, size in owed.items()]

    # --- calls of a kept guest ------------------------------------------------------------------
    @property
    def is_called(self) -> bool:
        """Whether a call was made that is to be answered."""
        return self._answer is not None

    def call(self, how: str, at: int = 0) -> bytes:
        """The bytes of a call: see ``guest_calls.packed``."""
        data, nonce = packed(how, self.nonce, at)
        if nonce is not None:
            self.nonce, self.sequence = nonce, 0
            self._answer = answer_prefix(TOKEN) + nonce
        return data

    def wait_for_answer(self) -> bool:
        """Whether the answer to the call came, rather than the end of the pipe."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._answer is not None and not self.broken:
            if time.monotonic() > deadline:
                self._found(f"no answer to a call within {ANSWER_SECONDS} s")
            if select.select([self._out], [], [], 1.0)[0]:
                self._read()
        return self._answer is None

    def outlive(self) -> None:
        """Let the short lease run out, but for one word. Raises Found."""
        for pause in (LEASE_SECONDS / 2, LEASE_SECONDS / 2):
            time.sleep(pause)
            self.write_frames([self.ping()])
        if self.wait_for(Kind.HELLO, 0):
            self._found("a second greeting")

    # --- the end ------------------------------------------------------------------
    def settle(self) -> None:
        """Give up everything that was asked, and kill every command."""
        frames = [(int(Kind.CANCEL), n, b"") for n in range(self._channel + 10)]
        if self.kept:  # what was answered to an earlier host was not read
            self._ids.update(f"c{n}" for n in range(1, self._channel // 5))
        for ident in sorted(self._ids):
            message = wire.pack_message({"operation": "kill", "args": {"id": ident, "signal": None}})
            frames.append((int(Kind.REQUEST), self.next_channel(), message))
        said = self.sent
        self.write_frames([*frames, self.ping()])
        self.sent = said  # that was no test
        if not self.answers_ping():
            self._found("the guest ended while it was told to give up")

    def used(self) -> tuple[int, int]:
        return open_descriptors(self.pid), resident_bytes(self.pid)

    def check_growth(self, before: tuple[int, int]) -> None:
        """Descriptors, threads and memory once nothing is under way any more. Raises Found."""
        deadline = time.monotonic() + SETTLING_SECONDS
        while (more := open_descriptors(self.pid) - before[0]) > MOST_DESCRIPTORS_MORE and time.monotonic() < deadline:
            time.sleep(0.1)
            self.settle()  # what an earlier host asked for may begin only when what it waited for was killed
        if more > MOST_DESCRIPTORS_MORE:
            open_now = [os.readlink(f"/proc/{self.pid}/fd/{n}") for n in os.listdir(f"/proc/{self.pid}/fd")]
            self._found(f"{more} descriptors more: {sorted(open_now)}")
        if (count := threads(self.pid)) > MOST_THREADS:
            self._found(f"{count} threads")
        if (grown := resident_bytes(self.pid) - before[1]) > MOST_BYTES_MORE:
            self._found(f"{grown >> 20} MiB more memory")

    def finish(self, greeted: bool = True, deaf: bool = False) -> None:
        """End the pipe; the guest has to follow, in one of the ways it may. Raises Found.

        A host that is ``deaf`` asks for more than the pipe can hold, and does not listen any more.
        """
        if deaf and not self.broken:
            with suppress(OSError):
                os.write(self._in, b"".join(encode([MUCH, self.ping()], self.sequence, self.nonce)))
            time.sleep(DEAF_SECONDS)
            if not self.kept:
                os.close(self._out)
                self._out, self.broken = -1, True
            time.sleep(DEAF_SECONDS)
        with suppress(OSError):
            os.close(self._in)
        self._in = -1
        if self.kept:  # it waits for another host
            self.broken = self.broken or deaf
            time.sleep(DEAF_SECONDS)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            if (status := self._ended()) is not None:
                break
            if time.monotonic() > deadline:
                self._found("the guest did not end with its pipe")
            if self._out < 0:
                time.sleep(0.005)
            elif select.select([self._out], [], [], 0.005)[0] and not self.broken:
                self._read()
        self.pid = 0
        said = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in said.splitlines() if not line.startswith(ALLOWED)]
        ungreeted = (0, 3, -signal.SIGUSR1) if self.kept else (0, 3)  # it may not have come to take the signal
        allowed = ungreeted if not greeted else (LEASE_OVER,) if self.short_lease else (0,)
        if os.waitstatus_to_exitcode(status) not in allowed or lines:
            self._found(f"ended with {os.waitstatus_to_exitcode(status)} and said {said[-3000:]!r}")

    def _ended(self) -> int | None:
        """The status of the guest that has ended."""
        if self.kept:  # again and again: a signal that comes just before a thread begins to wait does not wake it
            os.kill(self.pid, signal.SIGUSR1)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return status if pid else None

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
