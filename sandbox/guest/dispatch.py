"""The guest's server: frames in, handlers, replies out."""

from __future__ import annotations

import os
import select
import sys
import time

from . import wire
from .arguments import check_arguments
from .calls import WorkerCall
from .context import Place
from .faults import Fault, fault_of
from .handlers import handler, has_handler
from .interaction import Interaction
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
# A host that sends nothing for this long is gone, though the pipe may stand (an engine restarted under live-restore).
LEASE_SECONDS = 120.0
_WRITING = frozenset({"write", "edit", "upload"})


class Server:
    """Serves one host until the pipe ends, the bytes on it are not the protocol's, or the lease runs out."""

    def __init__(self, reactor: Reactor, in_fd: int, decoder: wire.Decoder, link: Link, place: Place, processes: Processes,
                 workers: Workers) -> None:  # fmt: skip
        self._reactor = reactor
        self._in = in_fd
        self._decoder = decoder
        self._link = link
        self._place = place
        self._processes = processes
        self._workers = workers
        self._interaction = Interaction(reactor, processes, workers)
        self._at_once: dict[Any, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "end_session": processes.end_session, "usage": processes.usage,
        }  # fmt: skip
        self._assembler = wire.Assembler()
        self._calls: dict[int, WorkerCall] = {}
        self._streams: dict[int, OutputStream] = {}
        self._remembered = Remembered()
        self._cancels: dict[int, Callable[[], None]] = {}
        self._heard = time.monotonic()
        os.set_blocking(in_fd, False)
        reactor.watch(in_fd, select.EPOLLIN, self._readable)
        reactor.after(LEASE_SECONDS, self._check_lease)

    def _check_lease(self) -> None:
        left = self._heard + LEASE_SECONDS - time.monotonic()
        if left <= 0:
            self._reactor.stop()
        else:
            self._reactor.after(left, self._check_lease)

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
        self._heard = time.monotonic()
        try:
            self.feed(data)
        except wire.WireError as error:
            print(f"the pipe is broken: {error}", file=sys.stderr)
            self._reactor.stop()

    def feed(self, data: bytes) -> None:
        """Serve the frames in ``data``. Raises WireError."""
        for kind, channel, payload in self._decoder.feed(data):
            self.frame(kind, channel, payload)

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        """Serve one frame. Raises WireError."""
        call = self._calls.get(channel)
        if kind == Kind.REQUEST:
            self._request(channel, self._assembler.finish(channel, payload))
        elif kind == Kind.PART:
            self._assembler.add(channel, payload)
        elif kind == Kind.DATA and call is not None:
            call.feed(payload)
        elif kind == Kind.END and call is not None:
            call.finish_body(payload[:500].decode("utf-8", "replace"))
        elif kind == Kind.CREDIT:
            taker = call or self._streams.get(channel)
            if taker is not None:
                taker.credit(int.from_bytes(payload[:4], "big"))
        elif kind == Kind.CANCEL:
            self._assembler.drop(channel)  # of a request that was given up while it was sent
            self._cancels.get(channel, _nothing)()
        elif kind == Kind.PING:
            self._link.frame(Kind.PONG, channel, payload[:64])

    def _request(self, channel: int, message: bytes) -> None:
        if channel in self._calls or channel in self._cancels:
            raise wire.WireError("request on a channel that is in use")
        fields, blob = wire.unpack_message(message, exact=True)
        operation, args = fields.get("operation"), fields.get("args")
        if not isinstance(args, dict):
            raise wire.WireError("request without arguments")
        try:
            check_arguments(operation, args)
        except Fault as fault:
            self._reply(channel, {"fault": fault}, b"")
            return
        if isinstance(fields.get("request_id"), str) and not self._is_first(
            fields["request_id"], channel, fields, blob
        ):
            return
        self._processes.touch(str(operation))
        try:
            self._carry_out(channel, str(operation), fields, blob)
        except Fault as fault:
            self._reply(channel, {"fault": fault}, b"")
        except Exception as error:  # one request must not take the sandbox with it
            self._reply(channel, {"fault": _unforeseen(error, str(operation))}, b"")

    def _carry_out(self, channel: int, operation: str, fields: dict[str, Any], blob: bytes) -> None:
        args = fields["args"]
        if operation == "run":
            self._run(channel, fields, blob)
        elif operation in self._interaction.operations:
            self._interact(channel, operation, args)
        elif operation == "kill":
            self._processes.kill(args, self._replier(channel))
        elif operation in self._at_once:
            self._reply(channel, {"result": self._at_once[operation](args)}, b"")
        elif has_handler(operation):
            if operation in _WRITING and self._processes.disk is not None:
                self._processes.disk.refuse_when_full(str(args.get("path", "")))
            self._start_worker(channel, operation, args)
        else:
            raise Fault("unknown_tool", name=operation[:100])

    def _run(self, channel: int, fields: dict[str, Any], blob: bytes) -> None:
        args = fields["args"]
        if fields.get("stdin_blob"):
            args["stdin"] = blob
        if fields.get("stream"):
            args["stream"] = self._streams[channel] = OutputStream(self._link, channel)
        self._cancels[channel] = self._processes.run(args, self._replier(channel), self._eventer(channel))

    def _interact(self, channel: int, operation: Any, args: dict[str, Any]) -> None:
        cancel = self._interaction.operations[operation](args, self._replier(channel))
        if cancel is not None:  # it has not been answered yet
            self._cancels[channel] = cancel

    def _is_first(self, ident: str, channel: int, fields: dict[str, Any], blob: bytes) -> bool:
        """Whether the request is to be carried out; one that was made before gets the first one's reply."""
        operation = fields["operation"]
        try:
            known = self._remembered.ask(ident, channel, operation, fields["args"], blob)
        except Fault as fault:
            self._reply(channel, {"fault": fault}, b"")
            return False
        if isinstance(known, tuple):
            self._link.message(Kind.REPLY, channel, *known)
        elif not known and operation == "run":
            self._eventer(channel)("queued")
        return known is True

    # --- replies ------------------------------------------------------------------
    def _replier(self, channel: int) -> Callable[[dict[str, Any], bytes], None]:
        return lambda fields, blob: self._reply(channel, fields, blob)

    def _eventer(self, channel: int) -> Callable[[str], None]:
        return lambda event: self._link.message(Kind.NOTICE, channel, {"event": event})

    def _reply(self, channel: int, fields: dict[str, Any], blob: bytes) -> None:
        self._calls.pop(channel, None)
        self._streams.pop(channel, None)
        self._cancels.pop(channel, None)
        fault = fields.pop("fault", None)
        if fault is not None:
            fields["fault"] = {"code": fault.code, "effects": fault.effects, "fields": _plain(fault.fields)}
            fields["result"] = fields.get("result") or fault.result
        result = fields.get("result")
        if news := self._processes.news(result.get("id") if isinstance(result, dict) else None):
            fields["notices"] = [*fields.get("notices", ()), *news]
        for each in (channel, *self._remembered.answered(channel, fields, blob)):
            self._link.message(Kind.REPLY, each, fields, blob)

    # --- workers ------------------------------------------------------------------
    def _start_worker(self, channel: int, operation: str, args: dict[str, Any]) -> None:
        call = WorkerCall(self._place, args, channel, self._link, self._reactor, self._processes)
        self._calls[channel] = call
        self._cancels[channel] = call.cancel

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
                answer = {"fault": _unforeseen(error, operation)}
            self._calls.pop(channel, None)
            self._reply(channel, answer, blob)

        self._workers.submit(work)


def _plain(value: Any) -> Any:
    """Fields of a fault as JSON-ready data."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return os.fsdecode(value).encode("utf-8", "replace").decode()
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _unforeseen(error: Exception, operation: str) -> Fault:
    """The fault for a mistake of the guest's own; the traceback goes to its log."""
    sys.excepthook(type(error), error, error.__traceback__)
    return Fault("io_error", problem=f"{type(error).__name__} in {operation}", effects="unknown")


def _nothing() -> None:
    """Cancel nothing: the request has been answered already."""
