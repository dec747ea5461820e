"""The connections of one sandbox on its pipe: which channels there are, what each may send, and the thread they live in.

An asyncio loop in a thread of its own, begun with the first connection: what one sandbox does holds up no other. Frames come from
the transport's reader, which checks them here against what the protocol allows; what they hold is hostile all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
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
# A direction.
MOST_CONNECTIONS = 256
LOOP_DESCRIPTORS = 3
# Of what the reader hands over, so much is done before what it began gets its turn.
MOST_CALLS = 32


@dataclass(slots=True)
class _Account:
    """What the reader's thread knows of a channel: enough to tell frames from nonsense."""

    room: int = TUNNEL_WINDOW
    credit: int = TUNNEL_WINDOW  # what may be sent to the guest
    ended: bool = False
    cancelled: bool = False
    # Looks for the way that the guest wants, in the loop.
    looking: asyncio.Task[None] | None = None
    answered: Callable[[dict[str, Any]], None] | None = None
    # What came and was not taken in the loop yet: bytes, for pieces of one byte each would fill this host's memory.
    come: bytes | bytearray = b""


class Streams:
    """Channels and their relays. ``send`` puts a frame on the pipe; it may block, and raise OSError.

    ``opened(channel, fields, full)`` is called in the loop when the guest wants a connection; ``full`` where there are too many.
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
        # Closed with the sandbox; used in the loop only.
        self.servers: set[asyncio.Server] = set()
        # Cut with the pipe: connections that wait for the guest's answer.
        self.waiting: set[Relay] = set()
        # Awaited in the loop when it ends.
        self.at_end: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._closed = False
        self._refusals: deque[tuple[int, dict[str, Any]]] = deque()
        self._flowing = threading.Event()
        self._flowing.set()

    # --- the reader's thread ------------------------------------------------------------------
    def takes(self, channel: int) -> bool:
        """Whether frames of that channel are for here."""
        return channel >= GUEST_CHANNELS or channel in self._accounts

    def take(self, kind: int, channel: int, payload: bytes) -> None:
        """A frame of the guest. Raises WireError for what the protocol does not allow."""
        if kind == Kind.OPEN:
            self._open(channel, payload)
            return
        account = self._accounts.get(channel)
        if account is None or account.cancelled:  # ended already, here or there; what is left of it is under way
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
            self._with(channel, lambda relay: relay.end())
        elif kind == Kind.CANCEL:
            account.cancelled = True
            self.in_loop(lambda: self._cancelled(channel))
        else:
            raise WireError(f"frame of kind {kind} on a connection")

    def _take_data(self, channel: int, account: _Account, payload: bytes) -> None:
        with self._lock:
            account.room -= len(payload)
            under_way = bool(account.come)
            if not under_way:
                account.come = payload
            elif isinstance(account.come, bytearray):
                account.come += payload
            else:
                account.come = bytearray(account.come) + payload
        if account.room < 0:
            raise WireError("a connection's bytes beyond their credit")
        if not under_way:
            self.in_loop(lambda: self._pass_on(channel, account))

    def _pass_on(self, channel: int, account: _Account) -> None:
        with self._lock:
            come, account.come = account.come, b""
        relay = self._relays.get(channel)
        if relay is not None:
            relay.take(come)

    def _take_credit(self, channel: int, account: _Account, size: int) -> None:
        """The guest took bytes. It says so in steps: a flood of small ones could fill this host's memory."""
        with self._lock:
            account.credit += size
        if size < CREDIT_STEP or account.credit > MOST_TUNNEL_WINDOW:
            raise WireError("credit beyond what a connection may have")
        self._with(channel, lambda relay: relay.credit(size))

    def _open(self, channel: int, payload: bytes) -> None:
        if channel < GUEST_CHANNELS or channel in self._accounts or len(payload) > MOST_MESSAGE_BYTES:
            raise WireError("a connection on a channel that is no new one")
        fields, _ = unpack_message(payload)
        host, port = fields.get("host"), fields.get("port")
        if not isinstance(host, str) or type(port) is not int or not 0 < port < 65536:
            raise WireError("a connection to no host and port")
        with self._lock:
            full = sum(one >= GUEST_CHANNELS for one in self._accounts) >= MOST_CONNECTIONS
            if len(self._accounts) > 4 * MOST_CONNECTIONS:  # it goes on asking without hearing the refusals
                raise WireError("more connections than the protocol allows")
            account = self._accounts[channel] = _Account()

        async def look() -> None:
            account.looking = asyncio.current_task()
            if account.cancelled and account.looking is not None:  # before this began
                account.looking.cancel()
            await self._opened(channel, fields, full)

        try:
            self.spawn(look)
        except OSError as error:  # in a thread: the reader's own must not wait for room in the pipe
            log.warning("no connection of a sandbox can be served: %s", error)
            found = descriptors.shortage(error)
            refused = {"failed": str(error) if found is None else descriptors.words(found)}
            self._refuse(channel, refused)

    def _refuse(self, channel: int, refused: dict[str, Any]) -> None:
        """Have one thread, whatever their number, tell of connections that are refused."""
        with self._lock:
            self._refusals.append((channel, refused))
            if len(self._refusals) > 1:  # it is at work
                return
        threading.Thread(target=self._tell_refusals, name="gamebox-refusals", daemon=True).start()

    def _tell_refusals(self) -> None:
        """Tell of each, and only then forget its channel: so the connections that may be asked for bound those that wait."""
        while True:
            channel, refused = self._refusals[0]
            try:
                self.message(Kind.REPLY, channel, refused)
            except OSError:  # the pipe has ended
                pass
            except Exception:
                log.exception("a refusal could not be told")
            self.forget(channel)
            with self._lock:
                self._refusals.popleft()
                if not self._refusals:
                    return

    def cut(self, why: str) -> None:
        """The pipe ended: what its connections were joined to is cut too. Those of another pipe may follow."""
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
        """Whether there is a loop: without one there never was a connection."""
        return self._loop is not None

    @property
    def busy(self) -> bool:
        """Whether there are connections."""
        return bool(self._accounts)

    @property
    def dialled(self) -> int:
        """How many connections there are that the host opened, or opens."""
        with self._lock:
            return sum(channel < GUEST_CHANNELS for channel in self._accounts)

    def rest(self) -> None:
        """Send nothing until ``go_on``: the sandbox is to be paused, and its pipe not full then."""
        with Shield():  # an Event's own lock can be left taken by a signal, and every connection waits for this one
            self._flowing.clear()

    def go_on(self) -> None:
        """Send again."""
        with Shield():
            self._flowing.set()

    # --- threads ------------------------------------------------------------------
    def in_loop(self, call: Callable[[], None]) -> None:
        """Have ``call`` called in the loop; dropped after ``close``. Raises OSError where the first call finds no descriptors."""
        with Shield(), self._lock:  # a Ctrl-C between the call and its waking the loop would leave that asleep for good
            if self._closed:
                return
            if self._loop is None:
                if (none := descriptors.want(LOOP_DESCRIPTORS)) is not None:  # half a loop complains when it is forgotten
                    raise none
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="gamebox-streams", daemon=True
                )
                self._thread.start()
            self._calls.append(call)
            if len(self._calls) == 1:  # else it is awake already: to wake it costs as much as what it is to do
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
        """Whether it was closed: what is handed over now is dropped."""
        return self._closed

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have a coroutine run in the loop; what it raises goes to the log."""

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(work())
            self._tasks.add(task)
            task.add_done_callback(self._done)

        self.in_loop(begin)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a connection of a sandbox failed", exc_info=task.exception())

    def _with(self, channel: int, call: Callable[[Relay], None]) -> None:
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
        with Shield():  # after a Ctrl-C in the middle of it nobody could end the thread any more
            self._flowing.set()
            with self._lock:
                self._closed = True
                loop, self._loop = self._loop, None
                thread = self._thread
                if loop is not None:
                    loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    # --- in the loop ------------------------------------------------------------------
    def expect(self, channel: int, answered: Callable[[dict[str, Any]], None]) -> None:
        """A channel that the host opens: the guest's one answer goes to ``answered``."""
        with self._lock:
            self._accounts[channel] = _Account(answered=answered)

    def join(self, relay: Relay, ended: Callable[[str], None]) -> None:
        """Let ``relay`` serve its channel; ``ended(why)`` is called once when it is over."""

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
        """Nothing more is to come or go on that channel."""
        with self._lock:
            self._accounts.pop(channel, None)

    def message(self, kind: int, channel: int, fields: dict[str, Any]) -> None:
        """A short message to the guest."""
        self.send(kind, channel, pack_message(fields))

    def send(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        """A frame to the guest; nothing where the pipe is gone, for then everything ends by itself."""
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

    def _cancelled(self, channel: int) -> None:
        relay, account = self._relays.get(channel), self._accounts.get(channel)
        if relay is not None:
            relay.abort(CUT)
        elif account is not None and account.answered is not None:
            answered, account.answered = account.answered, None
            answered({"failed": CUT})
        elif account is not None and account.looking is not None:  # its channel is in use until that has come to an end
            account.looking.cancel()
