"""Carry out the host's requests: each once, by the reactor or a worker, and answer each once, always from the reactor."""

from __future__ import annotations

import os
import time
from itertools import chain

from ..builtin import partial
from ..commands.processes import Processes
from ..commands.run import run
from ..commands.streams import InputStream, OutputStream
from ..interaction.conversation import Interaction
from ..protocol import wire
from ..protocol.faults import Fault, internal_fault, json_data
from ..protocol.wire import Kind
from .answer_sizes import Answers
from .arguments import expand_home
from .context import Place
from .link import Link
from .operations import AT_ONCE, COMMAND, WORKER, operation_named
from .reactor import Reactor
from .reply_cache import MOST_BYTES, PART_OF_MEMORY, ReplyCache
from .workers import Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Reply
    from .host_lease import Lease
    from .operations import Operation
    from .worker_call import WorkerCall


class Requests:
    """The requests under way, by the key of their channel."""

    def __init__(
        self, reactor: Reactor, link: Link, place: Place, processes: Processes, workers: Workers, lease: Lease
    ) -> None:
        self._reactor = reactor
        self._link = link
        self._place = place
        self._home = os.fsdecode(place.home)
        self._processes = processes
        self._workers = workers
        self._lease = lease
        # What the handlers of the reactor are methods of, see ``operations``.
        self.parts = {
            "processes": processes,
            "sessions": processes.sessions,
            "terminals": Interaction(reactor, processes, workers),
            "requests": self,
        }
        self._calls: dict[int, WorkerCall] = {}
        self._streams: dict[int, OutputStream] = {}
        self._feeds: dict[int, InputStream] = {}
        self._answers = Answers()
        self._reply_bytes = min(MOST_BYTES, place.limits["memory_bytes"] // PART_OF_MEMORY)
        self._remembered = ReplyCache(self._reply_bytes)
        self._unacknowledged = ReplyCache(self._reply_bytes)
        self._books: dict[int, ReplyCache] = {}  # where the reply to a request with an id will be stored
        self._queued: set[int] = set()  # runs that wait for their session
        self._cancels: dict[int, Callable[[], None]] = {}

    def forget_host(self) -> None:
        """Drop the replies that the last host has not acknowledged: another host will not ask for them."""
        for reply in self._unacknowledged.replies():
            self._processes.pending_notices.restore(reply)
        self._books = {key: book for key, book in self._books.items() if book is self._remembered}
        self._unacknowledged = ReplyCache(self._reply_bytes)

    def end_streams(self) -> None:
        """End all streams: those of an earlier host lead nowhere."""
        for stream in list(self._streams.values()):
            stream.abandon()
        self._streams.clear()
        for worker_call in list(self._calls.values()):
            worker_call.cancel()
        for key in list(self._feeds):  # a part of its input is not to be taken for the whole
            self.cancel(key)
        self._feeds.clear()

    def acknowledge(self, ask_ids: Any) -> None:
        """Forget these replies: the host has them."""
        self._unacknowledged.acknowledge(ask_ids)

    def taker(self, key: int) -> wire.Taker | None:
        """Return the function that receives the body of a request piece by piece, or None if the request has none in a worker."""
        call = self._calls.get(key)
        return None if call is None else call.feed

    def stream(self, kind: int, key: int, payload: bytes) -> None:
        """Take a DATA, END or CREDIT frame of a request."""
        call, feed = self._calls.get(key), self._feeds.get(key)
        if feed is not None and kind == Kind.DATA:
            feed.take(payload)
        elif feed is not None and kind == Kind.END:
            feed.finish(payload[:500].decode("utf-8", "replace"))
        elif kind == Kind.CREDIT:
            taker = call or self._streams.get(key)
            if taker is not None:
                taker.credit(wire.parse_credit(payload))
        elif call is not None and kind == Kind.DATA:
            call.feed(payload)
        elif call is not None:
            call.finish_body(payload[:500].decode("utf-8", "replace"))

    def cancel(self, key: int) -> None:
        """Cancel a request that the host has given up."""
        self._cancels.get(key, _nothing)()

    def take(self, key: int, message: bytes | memoryview) -> None:
        """Take a request and carry it out. Raises WireError."""
        if key in self._calls or key in self._cancels:
            raise wire.WireError("request on a channel that is in use")
        fields, blob = wire.unpack_message(message, exact=True)
        operation, args = fields.get("operation"), fields.get("args")
        if not isinstance(args, dict):
            raise wire.WireError("request without arguments")
        if not isinstance(fields.get("blob_for"), str | None):
            raise wire.WireError("request with bytes for no argument")
        self._answers.expect(key, str(operation), fields.get("max_reply_bytes"))
        try:
            row = operation_named(operation)
            row.check_arguments(args)
            expand_home(args, self._home)
        except Fault as fault:
            self._reply(key, {"fault": fault}, b"")
            return
        try:
            if not self._is_first(key, fields, blob):
                return
            if self._processes.lifetime is not None:
                self._processes.lifetime.touch(row)
            self._carry_out(key, row, fields, blob)
        except Fault as fault:
            self._reply(key, {"fault": fault}, b"")
        except Exception as error:  # one request must not take the sandbox with it
            self._reply(key, {"fault": internal_fault(error, str(operation))}, b"")

    def _carry_out(self, key: int, row: Operation, fields: dict[str, Any], blob: bytes) -> None:
        args = fields["args"]
        if (name := fields.get("blob_for")) is not None:
            args[name] = blob
        if row.kind == WORKER:
            if row.fills_disk and self._processes.disk is not None:
                self._processes.disk.refuse_when_full(str(args.get("path", "")))
            self._start_worker(key, row, args)
            return
        part, _, method = row.handler.partition(".")
        handler = getattr(self.parts[part], method)
        if row.kind == AT_ONCE:
            self._reply(key, {"result": handler(args)}, b"")
        elif row.kind == COMMAND:
            self._start_command(key, handler, fields)
        elif (cancel := handler(args, self._replier(key))) is not None:  # it has not been answered yet
            self._cancels[key] = cancel

    def _start_command(self, key: int, handler: Callable[..., Any], fields: dict[str, Any]) -> None:
        args = fields["args"]
        args["request_id"] = fields.get("request_id")
        if fields.get("feeds"):
            args["feed"] = self._feeds[key] = InputStream(self._link, key)
        if fields.get("stream"):
            args["stream"] = self._streams[key] = OutputStream(self._link, key)
        self._cancels[key] = handler(args, self._replier(key), self._eventer(key))

    def run(self, args: dict[str, Any], reply: Reply, event: Callable[[str], None]) -> Callable[[], None]:
        """Run a command, and return a call that cancels it."""
        return run(self._processes, args, reply, event)

    def begin(self, args: dict[str, Any]) -> dict[str, Any]:
        """Begin the use of this sandbox, which stood by until now: set what depends on its user, and start the clocks."""
        self._place.environ = args["environ"]
        self._place.limits.update(args["limits"])
        self._lease.begin()
        self._processes.headroom.started = time.monotonic()
        if self._processes.lifetime is not None:
            self._processes.lifetime.begin(self._place.limits)
        return {}

    def live_for(self, args: dict[str, Any]) -> dict[str, Any]:
        """End the sandbox when so many seconds are over, whatever its lifetime was until now."""
        if self._processes.lifetime is not None:
            self._processes.lifetime.live_for(float(args["seconds"]))
        return {}

    def resumed(self, args: dict[str, Any]) -> dict[str, Any]:
        """Put off every timer by the seconds that the sandbox was paused: that time does not count for commands."""
        seconds = float(args["seconds"])
        self._reactor.postpone_timers(seconds)
        return {"seconds": seconds}

    def _is_first(self, key: int, fields: dict[str, Any], blob: bytes) -> bool:
        """Return whether to carry the request out; one that was made before gets the reply of the first."""
        if acknowledged := fields.get("acknowledged"):
            self._unacknowledged.acknowledge(acknowledged)
        book, ident = self._remembered, fields.get("request_id")
        if not isinstance(ident, str):
            book, ident = self._unacknowledged, fields.get("ask_id")
        if not isinstance(ident, str):
            return True
        try:
            known = book.begin(ident, key, fields["operation"], fields["args"], blob)
        except Fault as fault:
            self._reply(key, {"fault": fault}, b"")
            return False
        if isinstance(known, tuple):
            self._processes.pending_notices.remove(known[0].get("result"))
            self._send_reply(key, *known)
        elif known:
            self._books[key] = book
        else:
            self._wait_for_first(book.first_of(ident), key, fields["operation"])
        return known is True

    def _wait_for_first(self, first: int | None, key: int, operation: Any) -> None:
        """Have ``key`` wait for the same request, which is under way for the channel ``first``."""
        if first is None:
            return
        self._cancels[key] = lambda: self._cancels.get(first, _nothing)()
        if operation_named(operation).kind == COMMAND:
            self._link.message(Kind.NOTICE, key, {"event": "queued"})
            if first not in self._queued:  # it runs: a deadline from now on is late enough for its reply
                self._link.message(Kind.NOTICE, key, {"event": "started"})

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
        book = self._books.get(key)
        return [] if book is None else book.also_waiting(key)

    def _reply(self, key: int, fields: dict[str, Any], blob: bytes) -> None:
        self._calls.pop(key, None)
        self._streams.pop(key, None)
        self._feeds.pop(key, None)
        self._cancels.pop(key, None)
        self._queued.discard(key)
        fault = fields.pop("fault", None)
        if fault is not None:
            fields["fault"] = {"code": fault.code, "effects": fault.effects, "fields": json_data(fault.fields)}
            fields["result"] = fields.get("result") or fault.result
        result = fields.get("result")
        heard = any(map(self._link.reaches, chain((key,), self._also_waiting(key))))
        if not heard:
            self._processes.pending_notices.restore(fields)
        elif news := self._processes.news(result.get("id") if isinstance(result, dict) else None):
            fields["notices"] = [*fields.get("notices", ()), *news]
        fields, blob = self._send_reply(key, fields, blob)
        book = self._books.pop(key, None)
        for each in () if book is None else book.store(key, fields, blob):
            self._cancels.pop(each, None)
            self._send_reply(each, fields, blob)

    def _send_reply(self, key: int, fields: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a reply, or a fault in its place if it is too long. Returns what was sent."""
        fields, blob, message = self._answers.pack(key, fields, blob)
        self._link.send_packed(Kind.REPLY, key, message, blob)
        return fields, blob

    def _start_worker(self, key: int, row: Operation, args: dict[str, Any]) -> None:
        from .worker_call import WorkerCall  # imports threading

        call = WorkerCall(self._place, args, key, self._link, self._reactor, self._processes)
        self._calls[key] = call
        self._cancels[key] = call.cancel
        self._workers.submit(partial(call.carry_out, row, partial(self._finish_worker, key, row)))

    def _finish_worker(self, key: int, row: Operation, answer: dict[str, Any], blob: bytes) -> None:
        """Answer what a worker has carried out: in the reactor's thread, which owns all that replies are made of."""
        try:
            if row.fills_disk and "result" in answer:
                answer["notices"] = self._processes.headroom.notices_after_write()
            self._reply(key, answer, blob)
        except Exception as error:  # one request must not take the sandbox with it
            self._reply(key, {"fault": internal_fault(error, row.name)}, b"")


def _nothing() -> None:
    """Do nothing: the request has been answered already."""
