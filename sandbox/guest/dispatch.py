"""The guest's server: frames in, handlers, replies out."""

from __future__ import annotations

import os
import select
import sys
from itertools import chain

from . import wire
from .answers import Answers
from .arguments import check_arguments
from .calling import Call
from .calls import WorkerCall
from .context import Place
from .entrances import Door, Entrance
from .faults import Fault, fault_of, plain, unforeseen
from .handlers import handler, has_handler
from .interaction import Interaction
from .keeping import Keeper, Lease
from .lifetime import LEASE_OVER
from .link import Link
from .processes import Processes
from .reactor import Reactor
from .remembered import Remembered
from .streaming import OutputStream
from .wire import Kind
from .workers import Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

READ_BYTES = 256 * 1024
# After a pause, or a time without a processor, the host is heard a moment later than the lease ends.
LATE_SECONDS = 2.0
_WRITING = frozenset({"write", "edit", "upload", "restore"})
_CHANGING = {"write": ("path",), "edit": ("path",), "upload": ("path",), "make_dir": ("path",), "delete": ("path",),
             "move": ("source", "target"), "restore": ("path",)}  # fmt: skip


class Server:
    """Serves a host until the pipe ends, the bytes on it are not the protocol's, or the lease runs out.

    A kept sandbox (its lease is a Keeper) serves one host after another: commands, sessions and remembered replies stay; the
    channels of an earlier host lead nowhere. Bytes that are not the protocol's are dropped until a host calls.
    """

    def __init__(self, reactor: Reactor, in_fd: int, decoder: wire.Decoder, link: Link, place: Place, processes: Processes,
                 workers: Workers, lease: Lease, isolated: bool) -> None:  # fmt: skip
        self._reactor = reactor
        self._in = in_fd
        self._decoder = decoder
        self._link = link
        self._place = place
        self._processes = processes
        self._workers = workers
        self._interaction = Interaction(reactor, processes, workers)
        self._at_once: dict[Any, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "end_session": processes.end_session, "usage": processes.usage, "resumed": self._resumed,
        }  # fmt: skip
        self._assembler = wire.Assembler()
        self._calls: dict[int, WorkerCall] = {}
        self._streams: dict[int, OutputStream] = {}
        self._answers = Answers()
        self._remembered = Remembered()
        self._unacknowledged = Remembered(strict=True)
        self._queued: set[int] = set()  # runs that wait for their session
        self._cancels: dict[int, Callable[[], None]] = {}
        self._lease = lease
        self._keeper = lease if isinstance(lease, Keeper) else None
        self._broken = self._late = False
        self._entrance: Entrance | None = None
        if self._keeper is None:
            os.set_blocking(in_fd, False)
            reactor.watch(in_fd, select.EPOLLIN, self._readable)
        else:
            self._entrance = Entrance(reactor, self._keeper.token, in_fd, link.fd, self._entered)
            if processes.lifetime is not None:
                processes.lifetime.alone = self._keeper.alone
            if isolated:
                self._door = Door(reactor, self._keeper.token, self._entered)
        reactor.after(lease.left(), self._check_lease)

    def _check_lease(self) -> None:
        left = self._lease.left()
        if left > 0:
            self._late = False
            self._reactor.after(left, self._check_lease)
        elif not self._late:
            self._late = True
            self._reactor.after(min(LATE_SECONDS, self._lease.seconds / 4), self._check_lease)
        else:
            self._reactor.stop(LEASE_OVER)

    def _readable(self, _: int) -> None:
        try:
            data = os.read(self._in, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._reactor.stop()
            return
        self._lease.renew()
        try:
            self.feed(data)
        except wire.WireError as error:
            print(f"the pipe is broken: {error}", file=sys.stderr)
            self._reactor.stop()

    # --- kept sandboxes ------------------------------------------------------------------
    def _entered(self, entrance: Entrance, piece: bytes | Call | None) -> None:
        """Something came in by an entrance of a kept sandbox."""
        keeper = self._keeper
        if keeper is None:
            return
        if piece is None:
            self._link.hang_up(entrance.out_fd)
        elif isinstance(piece, Call):
            if keeper.accepts(piece):
                self._change_host(keeper, piece, entrance)
        elif entrance is self._entrance and not self._broken:
            try:
                self.feed(piece)
                keeper.renew()
            except wire.WireError as error:
                print(f"the host is not understood: {error}", file=sys.stderr)
                self._broken = True
                self._link.frame(Kind.DETACH, self._link.key(0))  # have it call

    def _change_host(self, keeper: Keeper, call: Call, entrance: Entrance) -> None:
        self._entrance = entrance
        if not keeper.same_host(call):  # it will not ask for what the earlier one did not acknowledge
            for reply in self._unacknowledged.replies():
                self._processes.endings.note_lost(reply)
            self._unacknowledged = Remembered(strict=True)
        self._decoder, self._assembler, self._broken = wire.Decoder(call.nonce), wire.Assembler(), False
        self._link.restart(call.nonce, keeper.take(call), entrance.out_fd)
        for stream in list(self._streams.values()):
            stream.abandon()
        self._streams.clear()
        for worker_call in list(self._calls.values()):
            worker_call.cancel()

    def _kept_frame(self, keeper: Keeper, kind: int, key: int, payload: bytes) -> None:
        if kind == Kind.HELLO:
            self._link.message(Kind.HELLO, key, greeting())
        elif kind == Kind.DETACH:
            keeper.detached = True
            self._unacknowledged.acknowledge(wire.unpack_message(payload)[0].get("acknowledged"))

    # --- in ------------------------------------------------------------------
    def feed(self, data: bytes) -> None:
        """Serve the frames in ``data``. Raises WireError."""
        for kind, channel, payload in self._decoder.feed(data):
            self.frame(kind, channel, payload)

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        """Serve one frame. Raises WireError."""
        key = self._link.key(channel)
        call = self._calls.get(key)
        if kind == Kind.REQUEST:
            self._request(key, self._assembler.finish(channel, payload))
        elif kind == Kind.PART:
            self._assembler.add(channel, payload)
        elif kind == Kind.DATA and call is not None:
            call.feed(payload)
        elif kind == Kind.END and call is not None:
            call.finish_body(payload[:500].decode("utf-8", "replace"))
        elif kind == Kind.CREDIT:
            taker = call or self._streams.get(key)
            if taker is not None:
                taker.credit(int.from_bytes(payload[:4], "big"))
        elif kind == Kind.CANCEL:
            self._assembler.drop(channel)  # of a request that was given up while it was sent
            self._cancels.get(key, _nothing)()
        elif kind == Kind.PING:
            self._link.frame(Kind.PONG, key, payload[:64])
        elif self._keeper is not None:
            self._kept_frame(self._keeper, kind, key, payload)

    def _request(self, key: int, message: bytes) -> None:
        if key in self._calls or key in self._cancels:
            raise wire.WireError("request on a channel that is in use")
        fields, blob = wire.unpack_message(message, exact=True)
        operation, args = fields.get("operation"), fields.get("args")
        if not isinstance(args, dict):
            raise wire.WireError("request without arguments")
        self._answers.expect(key, str(operation), fields.get("max_reply_bytes"))
        try:
            check_arguments(operation, args)
        except Fault as fault:
            self._reply(key, {"fault": fault}, b"")
            return
        try:
            if not self._is_first(key, fields, blob):
                return
            self._processes.touch(str(operation))
            self._carry_out(key, str(operation), fields, blob)
        except Fault as fault:
            self._reply(key, {"fault": fault}, b"")
        except Exception as error:  # one request must not take the sandbox with it
            self._reply(key, {"fault": unforeseen(error, str(operation))}, b"")

    def _carry_out(self, key: int, operation: str, fields: dict[str, Any], blob: bytes) -> None:
        args = fields["args"]
        if operation == "run":
            self._run(key, fields, blob)
        elif operation in self._interaction.operations:
            self._interact(key, operation, args)
        elif operation == "kill":
            self._processes.kill(args, self._replier(key))
        elif operation in self._at_once:
            self._reply(key, {"result": self._at_once[operation](args)}, b"")
        elif has_handler(operation):
            if operation in _WRITING and self._processes.disk is not None:
                self._processes.disk.refuse_when_full(str(args.get("path", "")))
            self._start_worker(key, operation, args)
        else:
            raise Fault("unknown_tool", name=operation[:100])

    def _run(self, key: int, fields: dict[str, Any], blob: bytes) -> None:
        args = fields["args"]
        if fields.get("stdin_blob"):
            args["stdin"] = blob
        if fields.get("stream"):
            args["stream"] = self._streams[key] = OutputStream(self._link, key)
        self._cancels[key] = self._processes.run(args, self._replier(key), self._eventer(key))

    def _interact(self, key: int, operation: Any, args: dict[str, Any]) -> None:
        cancel = self._interaction.operations[operation](args, self._replier(key))
        if cancel is not None:  # it has not been answered yet
            self._cancels[key] = cancel

    def _resumed(self, args: dict[str, Any]) -> dict[str, Any]:
        """The sandbox was paused for so long: that time does not count for commands."""
        seconds = float(args["seconds"])
        self._reactor.shift(seconds)
        return {"seconds": seconds}

    def _is_first(self, key: int, fields: dict[str, Any], blob: bytes) -> bool:
        """Whether the request is to be carried out; one that was made before gets the first one's reply."""
        self._unacknowledged.acknowledge(fields.get("acknowledged"))
        book, ident = self._remembered, fields.get("request_id")
        if not isinstance(ident, str):
            book, ident = self._unacknowledged, fields.get("ask_id")
        if not isinstance(ident, str):
            return True
        try:
            known = book.ask(ident, key, fields["operation"], fields["args"], blob)
        except Fault as fault:
            self._reply(key, {"fault": fault}, b"")
            return False
        if isinstance(known, tuple):
            self._processes.endings.forget(known[0].get("result"))
            self._link.packed(Kind.REPLY, key, self._answers.pack(key, *known)[2])
        elif not known:
            self._wait_for_first(book.first_of(ident), key, fields["operation"])
        return known is True

    def _wait_for_first(self, first: int | None, key: int, operation: Any) -> None:
        """The request of ``key`` is under way already, for the channel ``first``."""
        if first is None:
            return
        self._cancels[key] = lambda: self._cancels.get(first, _nothing)()
        if operation == "run":
            self._link.message(Kind.NOTICE, key, {"event": "queued"})
            if first not in self._queued:  # it runs: a deadline from now on is late enough for its reply
                self._link.message(Kind.NOTICE, key, {"event": "started"})

    # --- replies ------------------------------------------------------------------
    def _replier(self, key: int) -> Callable[[dict[str, Any], bytes], None]:
        return lambda fields, blob: self._reply(key, fields, blob)

    def _eventer(self, key: int) -> Callable[[str], None]:
        def tell(event: str) -> None:
            (self._queued.add if event == "queued" else self._queued.discard)(key)
            self._link.message(Kind.NOTICE, key, {"event": event})
            if event == "started":
                for each in self._also_waiting(key):
                    self._link.message(Kind.NOTICE, each, {"event": event})

        return tell

    def _also_waiting(self, key: int) -> list[int]:
        return [*self._remembered.also_waiting(key), *self._unacknowledged.also_waiting(key)]

    def _reply(self, key: int, fields: dict[str, Any], blob: bytes) -> None:
        self._calls.pop(key, None)
        self._streams.pop(key, None)
        self._cancels.pop(key, None)
        self._queued.discard(key)
        fault = fields.pop("fault", None)
        if fault is not None:
            fields["fault"] = {"code": fault.code, "effects": fault.effects, "fields": plain(fault.fields)}
            fields["result"] = fields.get("result") or fault.result
        result = fields.get("result")
        heard = any(map(self._link.reaches, chain((key,), self._also_waiting(key))))
        if not heard:
            self._processes.endings.note_lost(fields)
        elif news := self._processes.news(result.get("id") if isinstance(result, dict) else None):
            fields["notices"] = [*fields.get("notices", ()), *news]
        fields, blob, data = self._answers.pack(key, fields, blob)
        others = [*self._remembered.answered(key, fields, blob), *self._unacknowledged.answered(key, fields, blob)]
        for each in (key, *others):
            self._cancels.pop(each, None)
            self._link.packed(Kind.REPLY, each, data if each == key else self._answers.pack(each, fields, blob)[2])

    # --- workers ------------------------------------------------------------------
    def _start_worker(self, key: int, operation: str, args: dict[str, Any]) -> None:
        call = WorkerCall(self._place, args, key, self._link, self._reactor, self._processes)
        self._calls[key] = call
        self._cancels[key] = call.cancel

        def work() -> None:
            answer: dict[str, Any]
            blob = b""
            try:
                result = handler(operation)(call)
                if isinstance(result, tuple):
                    result, blob = result
                answer = {"result": result}
                if operation in _WRITING:
                    answer["notices"] = self._processes.headroom.notices()
            except Fault as fault:
                answer = {"fault": fault}
            except OSError as error:
                answer = {"fault": fault_of(error, str(args.get("path", "")))}
            except Exception as error:
                answer = {"fault": unforeseen(error, operation)}
            if operation in _CHANGING:
                self._processes.changes.absorb(*(str(args[name]) for name in _CHANGING[operation]))
            self._calls.pop(key, None)
            self._reply(key, answer, blob)

        self._workers.submit(work)


def greeting() -> dict[str, Any]:
    """What every host is told first."""
    return {"protocol": wire.PROTOCOL, "python": sys.version.split()[0]}


def _nothing() -> None:
    """Cancel nothing: the request has been answered already."""
