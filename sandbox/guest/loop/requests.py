"""Requests of the host: each is carried out once, by the reactor or by a worker, and answered once, always by the reactor."""

from __future__ import annotations

import os
from functools import partial
from itertools import chain

from ..commands.processes import Processes
from ..commands.run import run
from ..commands.streams import InputStream, OutputStream
from ..interaction.operations import Interaction
from ..protocol import wire
from ..protocol.faults import Fault, fault_of, internal_fault, json_data
from ..protocol.wire import Kind
from .answer_sizes import Answers
from .arguments import check_arguments, expand_home
from .context import Place
from .handlers import handler, has_handler
from .link import Link
from .reactor import Reactor
from .reply_cache import ReplyCache
from .worker_call import WorkerCall
from .workers import Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WRITING = frozenset({"write", "edit", "upload", "restore"})
_CHANGING = {"write": ("path",), "edit": ("path",), "upload": ("path",), "make_dir": ("path",), "delete": ("path",),
             "move": ("source", "target"), "restore": ("path",)}  # fmt: skip


class Requests:
    """All requests under way, by the key of their channel."""

    def __init__(self, reactor: Reactor, link: Link, place: Place, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._link = link
        self._place = place
        self._processes = processes
        self._workers = workers
        self._interaction = Interaction(reactor, processes, workers)
        self._at_once: dict[Any, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "end_session": processes.sessions.end_session, "open_session": processes.sessions.open_session,
            "sessions": processes.sessions.list_sessions,
            "usage": processes.usage, "resumed": self._resumed,
        }  # fmt: skip
        self._calls: dict[int, WorkerCall] = {}
        self._streams: dict[int, OutputStream] = {}
        self._feeds: dict[int, InputStream] = {}
        self._answers = Answers()
        self._remembered = ReplyCache()
        self._unacknowledged = ReplyCache(strict=True)
        self._queued: set[int] = set()  # runs that wait for their session
        self._cancels: dict[int, Callable[[], None]] = {}

    # --- hosts ------------------------------------------------------------------
    def forget_host(self) -> None:
        """Another host comes: it will not ask for what the earlier one did not acknowledge."""
        for reply in self._unacknowledged.replies():
            self._processes.pending_notices.restore(reply)
        self._unacknowledged = ReplyCache(strict=True)

    def end_streams(self) -> None:
        """Streams of an earlier host lead nowhere."""
        for stream in list(self._streams.values()):
            stream.abandon()
        self._streams.clear()
        for worker_call in list(self._calls.values()):
            worker_call.cancel()
        for key in list(self._feeds):  # a part of its input is not to be taken for the whole
            self.cancel(key)
        self._feeds.clear()

    def acknowledge(self, ask_ids: Any) -> None:
        """The host has these answers."""
        self._unacknowledged.acknowledge(ask_ids)

    # --- in ------------------------------------------------------------------
    def stream(self, kind: int, key: int, payload: bytes) -> None:
        """DATA, END or CREDIT of a request."""
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
        """The host gives the request up."""
        self._cancels.get(key, _nothing)()

    def take(self, key: int, message: bytes) -> None:
        """A request. Raises WireError."""
        if key in self._calls or key in self._cancels:
            raise wire.WireError("request on a channel that is in use")
        fields, blob = wire.unpack_message(message, exact=True)
        operation, args = fields.get("operation"), fields.get("args")
        if not isinstance(args, dict):
            raise wire.WireError("request without arguments")
        self._answers.expect(key, str(operation), fields.get("max_reply_bytes"))
        try:
            check_arguments(operation, args)
            expand_home(args, os.fsdecode(self._place.home))
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
            self._reply(key, {"fault": internal_fault(error, str(operation))}, b"")

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
        if fields.get("feeds"):
            args["feed"] = self._feeds[key] = InputStream(self._link, key)
        if fields.get("stream"):
            args["stream"] = self._streams[key] = OutputStream(self._link, key)
        self._cancels[key] = run(self._processes, args, self._replier(key), self._eventer(key))

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
            known = book.begin(ident, key, fields["operation"], fields["args"], blob)
        except Fault as fault:
            self._reply(key, {"fault": fault}, b"")
            return False
        if isinstance(known, tuple):
            self._processes.pending_notices.remove(known[0].get("result"))
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
        fields, blob, data = self._answers.pack(key, fields, blob)
        others = [*self._remembered.store(key, fields, blob), *self._unacknowledged.store(key, fields, blob)]
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
            except Fault as fault:
                answer = {"fault": fault}
            except OSError as error:
                answer = {"fault": fault_of(error, str(args.get("path", "")))}
            except Exception as error:
                answer = {"fault": internal_fault(error, operation)}
            if operation in _CHANGING:
                self._processes.changes.absorb(*(str(args[name]) for name in _CHANGING[operation] if name in args))
            self._reactor.hand_over(partial(self._worked, key, operation, answer, blob))

        self._workers.submit(work)

    def _worked(self, key: int, operation: str, answer: dict[str, Any], blob: bytes) -> None:
        """A worker is done: answer, in the reactor's thread like all else that replies are made of."""
        try:
            if operation in _WRITING and "result" in answer:
                answer["notices"] = self._processes.headroom.notices()
            self._reply(key, answer, blob)
        except Exception as error:  # one request must not take the sandbox with it
            self._reply(key, {"fault": internal_fault(error, operation)}, b"")


def _nothing() -> None:
    """Cancel nothing: the request has been answered already."""
