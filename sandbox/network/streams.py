"""The connections of one sandbox on its pipe: their channels, what each may send, and the thread they live in.

Each sandbox has an asyncio loop in its own thread, started with the first connection, so that no sandbox holds up another. The
transport's reader checks frames here against the protocol. Their contents are hostile all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sandbox.guest.protocol.wire import (
    GUEST_CHANNELS,
    MOST_TUNNEL_WINDOW,
    TUNNEL_WINDOW,
    Kind,
    WireError,
    pack_message,
    unpack_message,
)
from sandbox.interrupts import Shield
from sandbox.pipe import descriptors

from .relay import CREDIT_STEP, Frames, Relay

log = logging.getLogger(__name__)

MOST_MESSAGE_BYTES = 4096
CUT = "it was cut in the sandbox"
# In each direction.
MOST_CONNECTIONS = 256
LOOP_DESCRIPTORS = 3
# How many calls of the reader are made before the tasks they started get their turn.
MOST_CALLS = 32


@dataclass(slots=True)
class _Account:
    """What the reader's thread knows of a channel: enough to check its frames."""

    room: int = TUNNEL_WINDOW
    credit: int = TUNNEL_WINDOW  # what may be sent to the guest
    ended: bool = False
    cancelled: bool = False
    # Opens the connection that the guest asked for, in the loop.
    opening: asyncio.Task[None] | None = None
    answered: Callable[[dict[str, Any]], None] | None = None
    # Bytes that the loop has not taken yet, in one piece: a list of single bytes would fill this host's memory.
    arrived: bytes | bytearray | memoryview = b""


class Streams:
    """Channels and their relays. ``send`` puts a frame on the pipe; it may block or raise OSError.

    ``opened(channel, fields, full)`` is called in the loop when the guest asks for a connection; ``full`` if there are too many.
    """

    def __init__(self, send: Frames, opened: Callable[[int, dict[str, Any], bool], Coroutine[Any, Any, None]]) -> None:
        self._to_guest = send
        self._opened = opened
        self._lock = threading.Lock()
        self._accounts: dict[int, _Account] = {}
        self._relays: dict[int, Relay] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: deque[Callable[[], None]] = deque()
        # Closed with the sandbox. Used in the loop only.
        self.servers: set[asyncio.Server] = set()
        # Connections that wait for the guest's answer; cut with the pipe.
        self.waiting: set[Relay] = set()
        # Awaited in the loop at its end.
        self.at_end: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._closed = False
        self._refusals: deque[tuple[int, dict[str, Any]]] = deque()
        self._flowing = threading.Event()
        self._flowing.set()

    def takes(self, channel: int) -> bool:
        """Return whether ``channel`` is a connection's. Called by the reader's thread."""
        return channel >= GUEST_CHANNELS or channel in self._accounts

    def take(self, kind: int, channel: int, payload: bytes | memoryview) -> None:
        """Take a frame of the guest, on the reader's thread. Raises WireError for one that the protocol does not allow."""
        if kind == Kind.OPEN:
            self._open(channel, payload)
            return
        account = self._accounts.get(channel)
        if account is None or account.cancelled:  # it has ended at one end, and frames were under way
            return
        if kind == Kind.REPLY and account.answered is not None and len(payload) <= MOST_MESSAGE_BYTES:
            answered, account.answered = account.answered, None
            fields, _ = unpack_message(payload)
            self.in_loop(lambda: answered(fields))
        elif kind == Kind.DATA and payload and not account.ended:
            self._take_data(channel, account, payload)
        elif kind == Kind.CREDIT and len(payload) == 4:
            self._take_credit(channel, account, int.from_bytes(payload, "big"))
        elif kind == Kind.END and not account.ended:
            account.ended = True
            self._call_relay(channel, lambda relay: relay.end())
        elif kind == Kind.CANCEL:
            account.cancelled = True
            self.in_loop(lambda: self._cancel(channel))
        else:
            raise WireError(f"frame of kind {kind} on a connection")

    def _take_data(self, channel: int, account: _Account, payload: bytes | memoryview) -> None:
        with self._lock:
            account.room -= len(payload)
            under_way = bool(account.arrived)
            if not under_way:
                account.arrived = payload
            elif isinstance(account.arrived, bytearray):
                account.arrived += payload
            else:
                account.arrived = bytearray(account.arrived) + payload
        if account.room < 0:
            raise WireError("a connection's bytes beyond their credit")
        if not under_way:
            self.in_loop(lambda: self._pass_on(channel, account))

    def _pass_on(self, channel: int, account: _Account) -> None:
        with self._lock:
            arrived, account.arrived = account.arrived, b""
        relay = self._relays.get(channel)
        if relay is not None:
            relay.take(arrived)

    def _take_credit(self, channel: int, account: _Account, size: int) -> None:
        """Note that the guest took bytes. It must say so in large steps: a flood of small ones could fill this host's memory."""
        with self._lock:
            account.credit += size
        if size < CREDIT_STEP or account.credit > MOST_TUNNEL_WINDOW:
            raise WireError("credit beyond what a connection may have")
        self._call_relay(channel, lambda relay: relay.credit(size))

    def _open(self, channel: int, payload: bytes | memoryview) -> None:
        if channel < GUEST_CHANNELS or channel in self._accounts or len(payload) > MOST_MESSAGE_BYTES:
            raise WireError("a connection on a channel that is not new")
        fields, _ = unpack_message(payload)
        host, port = fields.get("host"), fields.get("port")
        if not isinstance(host, str) or type(port) is not int or not 0 < port < 65536:
            raise WireError("a connection to no host and port")
        with self._lock:
            full = sum(each >= GUEST_CHANNELS for each in self._accounts) >= MOST_CONNECTIONS
            if len(self._accounts) > 4 * MOST_CONNECTIONS:  # it asks on without reading the refusals
                raise WireError("more connections than the protocol allows")
            account = self._accounts[channel] = _Account()

        async def open_connection() -> None:
            account.opening = asyncio.current_task()
            if account.cancelled and account.opening is not None:  # before this began
                account.opening.cancel()
            await self._opened(channel, fields, full)

        try:
            self.spawn(open_connection)
        except OSError as error:  # answered in a thread: the reader must not wait for room in the pipe
            log.warning("no connection of a sandbox can be served: %s", error)
            found = descriptors.shortage(error)
            refused = {"failed": str(error) if found is None else descriptors.words(found)}
            self._refuse(channel, refused)

    def _refuse(self, channel: int, refused: dict[str, Any]) -> None:
        """Answer that a connection is refused. One thread does so for all of them."""
        with self._lock:
            self._refusals.append((channel, refused))
            if len(self._refusals) > 1:  # the thread is at work
                return
        try:
            threading.Thread(target=self._send_refusals, name="gamebox-refusals", daemon=True).start()
        except RuntimeError:  # no more threads: it stays unanswered
            self._refusals.clear()
            self.forget(channel)

    def _send_refusals(self) -> None:
        """Send each refusal, and only then forget its channel, so that the limit on channels bounds the waiting refusals."""
        while True:
            channel, refused = self._refusals[0]
            try:
                self.message(Kind.REPLY, channel, refused)
            except OSError:  # the pipe has ended
                pass
            except Exception:
                log.exception("a refusal could not be sent")
            self.forget(channel)
            with self._lock:
                self._refusals.popleft()
                if not self._refusals:
                    return

    def cut(self, why: str) -> None:
        """Cut all connections, because their pipe ended. Connections of another pipe may follow."""
        with self._lock:
            self._accounts.clear()
            begun = self._loop is not None

        def end() -> None:
            for task in list(self._tasks):
                task.cancel()
            for relay in [*self.waiting, *self._relays.values()]:
                relay.abort(why)

        if begun:
            self.in_loop(end)

    @property
    def begun(self) -> bool:
        """Whether the loop has started, as it does with the first connection."""
        return self._loop is not None

    @property
    def busy(self) -> bool:
        """Whether there are connections."""
        return bool(self._accounts)

    @property
    def dialled(self) -> int:
        """The number of connections that the host opened or is opening."""
        with self._lock:
            return sum(channel < GUEST_CHANNELS for channel in self._accounts)

    def pause_sending(self) -> None:
        """Send nothing until ``resume_sending``, so that the pipe of a sandbox that is to be paused does not fill."""
        with Shield():  # an Event's own lock can be left taken by a signal, and every connection waits for this one
            self._flowing.clear()

    def resume_sending(self) -> None:
        """Send again."""
        with Shield():
            self._flowing.set()

    def in_loop(self, call: Callable[[], None]) -> None:
        """Call ``call`` in the loop; does nothing after ``close``. Raises OSError if there is no descriptor or thread for it."""
        with Shield(), self._lock:  # a Ctrl-C between the append and the wake-up would leave the loop asleep for good
            if self._closed:
                return
            if self._loop is None:
                if (shortage := descriptors.want(LOOP_DESCRIPTORS)) is not None:  # half a loop warns when it is freed
                    raise shortage
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._run, args=(loop,), name="gamebox-streams", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # this process may have no more, or (from Python 3.12 on) it ends
                    loop.close()
                    raise OSError(errno.EAGAIN, f"no thread for connections: {error}") from error
                self._loop, self._thread = loop, thread
            self._calls.append(call)
            if len(self._calls) == 1:  # else it is awake; waking it costs as much as the call itself
                self._loop.call_soon_threadsafe(self._do_calls)

    def _do_calls(self) -> None:
        try:
            for _ in range(min(len(self._calls), MOST_CALLS)):
                self._calls.popleft()()
        finally:
            if self._calls and self._loop is not None:  # one raised, or more came meanwhile
                self._loop.call_soon_threadsafe(self._do_calls)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called; calls into the loop are dropped since."""
        return self._closed

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in the loop. Its exceptions are logged."""

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work())
            self._tasks.add(task)
            task.add_done_callback(self._done)

        self.in_loop(begin)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a connection of a sandbox failed", exc_info=task.exception())

    def _call_relay(self, channel: int, call: Callable[[Relay], None]) -> None:
        def on_relay() -> None:
            relay = self._relays.get(channel)
            if relay is not None:
                call(relay)

        self.in_loop(on_relay)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(self._end())
        finally:
            loop.close()

    async def _end(self) -> None:
        for server in self.servers:
            server.close()
        for _ in range(2):  # a connection that was just accepted has its relay two rounds later
            await asyncio.sleep(0)
        for relay in [*self.waiting, *self._relays.values()]:
            relay.abort("the sandbox was closed")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *(end() for end in self.at_end), return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next round

    def close(self) -> None:
        """Cut every connection and end the thread; may be called more than once."""
        with Shield():  # a Ctrl-C in the middle would leave a thread that nobody can end
            self._flowing.set()
            with self._lock:
                self._closed = True
                loop, self._loop = self._loop, None
                thread = self._thread
                if loop is not None:
                    loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def expect(self, channel: int, answered: Callable[[dict[str, Any]], None]) -> None:
        """Open a channel from the host's side. The guest's one answer goes to ``answered``, in the loop."""
        with self._lock:
            self._accounts[channel] = _Account(answered=answered)

    def join(self, relay: Relay, ended: Callable[[str], None]) -> None:
        """Let ``relay`` serve its channel, in the loop. ``ended(why)`` is called once at its end."""

        def over(why: str) -> None:
            self._relays.pop(relay.channel, None)
            self.forget(relay.channel)
            self.send(Kind.CANCEL, relay.channel, why.encode("utf-8", "replace")[:300])
            ended(why)

        account = self._accounts.get(relay.channel)
        self._relays[relay.channel] = relay
        relay.when_ended(over)
        if account is None or account.cancelled:
            relay.abort(CUT)
        else:
            relay.begin()

    def forget(self, channel: int) -> None:
        """Drop the channel: nothing more comes or goes on it."""
        with self._lock:
            self._accounts.pop(channel, None)

    def message(self, kind: int, channel: int, fields: dict[str, Any]) -> None:
        """Send a short message to the guest."""
        self.send(kind, channel, pack_message(fields))

    def send(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        """Send a frame to the guest. Does nothing if the pipe is gone, since everything ends with it."""
        if kind in (Kind.CREDIT, Kind.DATA):
            with self._lock:
                account = self._accounts.get(channel)
                if account is not None and kind == Kind.CREDIT:
                    account.room += int.from_bytes(payload, "big")
                elif account is not None:
                    account.credit -= len(payload)
        self._flowing.wait()
        with contextlib.suppress(OSError):
            self._to_guest(kind, channel, payload)

    def _cancel(self, channel: int) -> None:
        relay, account = self._relays.get(channel), self._accounts.get(channel)
        if relay is not None:
            relay.abort(CUT)
        elif account is not None and account.answered is not None:
            answered, account.answered = account.answered, None
            answered({"failed": CUT})
        elif account is not None and account.opening is not None:  # the channel is in use until that task has ended
            account.opening.cancel()
