"""The host's end of a sandbox's connections: the guest asks for each on a channel of its own, the host judges, dials and relays.

An asyncio loop in a thread of its own, begun with the first connection: what one sandbox does holds up no other. Frames come from
the transport's reader, which checks them against what the protocol allows; everything else about them is hostile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sandbox.guest.wire import WINDOW, Kind, WireError, pack_message, unpack_message

from .connections import Connection, ConnectionLog
from .dialling import RefusedError, UnreachableError, dial, route
from .policy import Network, judge_host
from .relay import Frames, Relay

log = logging.getLogger(__name__)

GUEST_CHANNELS = 0x80000000
MOST_OPEN_BYTES = 4096
MOST_CONNECTIONS = 256
IDLE_SECONDS = 600.0
"""A connection that moves nothing for so long is cut."""


@dataclass(slots=True)
class _Account:
    """What the reader's thread knows of a channel: enough to tell nonsense from frames."""

    room: int = WINDOW
    ended: bool = False


class Egress:
    """The connections of one sandbox under ``network``, which may be replaced at any time.

    ``send`` puts a frame on the pipe (it may block and raise OSError); ``connections`` is told of each one as it ends.
    """

    def __init__(self, network: Network, send: Frames, connections: ConnectionLog) -> None:
        self.network = network
        self._to_guest = send
        self._connections = connections
        self._lock = threading.Lock()
        self._accounts: dict[int, _Account] = {}
        self._relays: dict[int, Relay] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Lock()
        self._closed = False

    # --- the reader's thread ------------------------------------------------------------------
    def take(self, kind: int, channel: int, payload: bytes) -> None:
        """A frame of the guest on one of its own channels. Raises WireError for what the protocol does not allow."""
        if kind == Kind.OPEN:
            self._open(channel, payload)
            return
        with self._lock:
            account = self._accounts.get(channel)
        if account is None:  # ended here already; the guest's own end is under way
            return
        if kind == Kind.DATA and payload and not account.ended:
            with self._lock:
                account.room -= len(payload)
            if account.room < 0:
                raise WireError("a connection's bytes beyond their credit")
            self._call(lambda relay: relay.take(payload), channel)
        elif kind == Kind.CREDIT and len(payload) == 4:
            size = int.from_bytes(payload, "big")
            self._call(lambda relay: relay.credit(size), channel)
        elif kind == Kind.END:
            account.ended = True
            self._call(lambda relay: relay.end(), channel)
        elif kind == Kind.CANCEL:
            self._in_loop(lambda: self._cancelled(channel))
        else:
            raise WireError(f"frame of kind {kind} on a connection")

    def _open(self, channel: int, payload: bytes) -> None:
        with self._lock:
            if channel < GUEST_CHANNELS or channel in self._accounts or len(payload) > MOST_OPEN_BYTES:
                raise WireError("a connection on a channel that is no new one")
            full = len(self._accounts) >= MOST_CONNECTIONS
            if not full:
                self._accounts[channel] = _Account()
        fields, _ = unpack_message(payload)
        host, port = fields.get("host"), fields.get("port")
        if not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
            raise WireError("a connection to no host and port")
        self._in_loop(lambda: self._begin(channel, host[:1000], port, full))

    # --- threads ------------------------------------------------------------------
    def _in_loop(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, name="gamebox-egress", daemon=True)
                self._thread.start()
            loop = self._loop
        loop.call_soon_threadsafe(call)

    def _call(self, call: Callable[[Relay], None], channel: int) -> None:
        def on_relay() -> None:
            relay = self._relays.get(channel)
            if relay is not None:
                call(relay)

        self._in_loop(on_relay)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101  made before the thread
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for task in list(self._tasks):
                task.cancel()
            for relay in list(self._relays.values()):
                relay.abort("the sandbox was closed")
            loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def close(self) -> None:
        """Cut every connection and end the thread; may be called more than once."""
        with self._lock:
            self._closed = True
            loop, self._loop, thread = self._loop, None, self._thread
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=15)

    # --- in the loop ------------------------------------------------------------------
    def _begin(self, channel: int, host: str, port: int, full: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(channel, host, port, full))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancelled(self, channel: int) -> None:
        relay = self._relays.get(channel)
        if relay is not None:
            relay.abort("the sandbox cut it")
        else:
            self._forget(channel)

    async def _serve(self, channel: int, host: str, port: int, full: bool) -> None:
        """From the guest's wish to an open connection, or to the words why not."""
        started = time.time()
        try:
            if full:
                raise RefusedError(f"there are {MOST_CONNECTIONS} connections already, the most there may be")
            way = await route(await self._approved(host, port), host, port)
            relay, address = await dial(way, host, port, lambda: Relay(channel, self._send))
        except RefusedError as error:
            self._decline(channel, Connection(host, port, "denied", why=error.why, started=started))
        except UnreachableError as error:
            self._decline(
                channel, Connection(host, port, "failed", error.address, error.rule, error.why, started=started)
            )
        else:
            opened = Connection(host, port, "allowed", address, way.rule, started=started)
            self._relays[channel] = relay
            self._message(channel, {"open": True})
            relay.when_ended(lambda why: self._over(channel, relay, opened, why))
            relay.begin()

    async def _approved(self, host: str, port: int) -> Network:
        """The policy for this connection: with a rule of its own where it had to be asked for and was granted."""
        network = self.network
        if network.ask is None or judge_host(network, host, port).allowed:
            return network
        async with self._asking:  # one question at a time, and none twice
            if judge_host(self.network, host, port).allowed:
                return self.network
            try:
                answer = await asyncio.to_thread(network.ask, host, port)
            except Exception:
                log.warning("what answers for refused hosts failed on %s:%s", host, port, exc_info=True)
                answer = None
        if answer not in ("once", "session"):
            return self.network
        granted = self.network.with_rules(f"{'[' + host + ']' if ':' in host else host}:{port}")
        if answer == "session":
            self.network = granted
        return granted

    def _decline(self, channel: int, connection: Connection) -> None:
        self._forget(channel)
        self._message(channel, {connection.outcome: connection.why})
        self._connections.add(connection)

    def _over(self, channel: int, relay: Relay, opened: Connection, why: str) -> None:
        self._relays.pop(channel, None)
        self._forget(channel)
        self._send(Kind.CANCEL, channel, why.encode("utf-8", "replace")[:300])
        lasted = max(0.0, time.time() - opened.started)
        self._connections.add(
            replace(
                opened,
                why=why,
                sent_bytes=relay.sent_bytes,
                received_bytes=relay.received_bytes,
                duration_seconds=lasted,
            )
        )

    def _forget(self, channel: int) -> None:
        with self._lock:
            self._accounts.pop(channel, None)

    def _message(self, channel: int, fields: dict[str, Any]) -> None:
        self._send(Kind.REPLY, channel, pack_message(fields))

    def _send(self, kind: int, channel: int, payload: bytes | memoryview = b"", /) -> None:
        """A frame to the guest; nothing where the pipe is gone, for then everything ends by itself."""
        if kind == Kind.CREDIT:
            with self._lock:
                account = self._accounts.get(channel)
                if account is not None:
                    account.room += int.from_bytes(payload, "big")
        with contextlib.suppress(OSError):
            self._to_guest(kind, channel, payload)
