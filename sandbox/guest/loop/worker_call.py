"""One request under way in a worker: its body, its stream back, its helper programs."""

from __future__ import annotations

import os
import threading

from ..builtin import Lock, deque, partial
from ..commands.launch.packets import Spec
from ..commands.processes import Processes
from ..protocol import wire
from ..protocol.faults import Fault, fault_of, internal_fault
from .context import HelperResult, Place
from .link import Link
from .reactor import Reactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .operations import Operation


class WorkerCall:
    """Implements ``context.Call``. ``feed``, ``finish_body``, ``credit`` and ``cancel`` are the reactor's side."""

    def __init__(
        self, place: Place, args: dict[str, Any], channel: int, link: Link, reactor: Reactor, processes: Processes
    ):
        self.place = place
        self.args = args
        self._channel = channel
        self._link = link
        self._reactor = reactor
        self.processes = processes
        self._lock = Lock()  # for the two windows
        self._bell = Lock()  # what the worker waits for; a Condition is slower to make, and to wait for
        self._bell.acquire()
        self._chunks: deque[bytes] = deque()
        self._incoming = wire.ReceiveWindow(wire.WINDOW)
        self._outgoing = wire.SendWindow(wire.WINDOW)
        self._ended: str | None = None
        self._cancelled = False
        self._stop_helper: Callable[[], None] | None = None

    def carry_out(self, row: Operation, finish: Callable[[dict[str, Any], bytes], None]) -> None:
        """Carry out an operation, in the worker; the reactor then calls ``finish`` with {"result"} or {"fault"}, and bytes."""
        answer: dict[str, Any]
        blob = b""
        try:
            result = row.in_worker()(self)
            if isinstance(result, tuple):
                result, blob = result
            answer = {"result": result}
        except Fault as fault:
            answer = {"fault": fault}
        except OSError as error:
            answer = {"fault": fault_of(error, str(self.args.get("path", "")))}
        except Exception as error:
            answer = {"fault": internal_fault(error, row.name)}
        if row.changed_paths:
            changed = (str(self.args[name]) for name in row.changed_paths if name in self.args)
            self.processes.changes.absorb(*changed)
        self._reactor.hand_over(partial(finish, answer, blob))

    def body(self) -> Iterator[bytes]:
        """See ``context.Call``."""
        while True:
            while not self._chunks and self._ended is None and not self._cancelled:
                self._bell.acquire()
            if self._cancelled:
                raise Fault("cancelled")
            if not self._chunks:
                break
            chunk = self._chunks.popleft()
            with self._lock:
                self._incoming.consume(len(chunk))
                credit = self._incoming.credit() if self._incoming.credit_due else b""
            if credit:
                self._link.frame(wire.Kind.CREDIT, self._channel, credit)
            yield chunk
        if self._ended:
            raise Fault("transfer_incomplete", problem=self._ended)

    def send(self, chunk: bytes) -> None:
        """See ``context.Call``."""
        view = memoryview(chunk)
        while view:
            while self._outgoing.left <= 0 and not self._cancelled and not self._link.lost:
                self._bell.acquire()
            if self._cancelled or self._link.lost:
                raise Fault("cancelled")
            with self._lock:
                piece = view[: min(self._outgoing.left, wire.MAX_PAYLOAD)]
                self._outgoing.use(len(piece))
            self._link.frame(wire.Kind.DATA, self._channel, piece)
            view = view[len(piece) :]

    def run_helper(
        self,
        argv: list[str],
        *,
        timeout_seconds: float,
        max_output_bytes: int,
        cwd_fd: int | None = None,
        stdin: bytes | int = b"",
        env: dict[str, str] | None = None,
    ) -> HelperResult:
        """See ``context.Call``."""
        environ = {**self.place.environ, **(env or {})}
        spec = Spec(argv, environ, None if cwd_fd is not None else "/")
        source = os.dup(stdin) if isinstance(stdin, int) else stdin
        folder = os.dup(cwd_fd) if cwd_fd is not None else None

        def start(report: Callable[[HelperResult | Fault], None]) -> Callable[[], None]:
            return self.processes.run_helper(spec, source, folder, timeout_seconds, max_output_bytes, report)

        finished: HelperResult = self.await_report(start)
        return finished

    def await_report(self, start: Callable[[Callable[[Any], None]], Callable[[], None]]) -> Any:
        """See ``context.StateCall``."""
        done = threading.Event()
        outcome: list[Any] = []

        def report(found: Any) -> None:
            outcome.append(found)
            done.set()

        def begin() -> None:
            self._stop_helper = start(report)
            if self._cancelled:
                self._stop_helper()

        self._reactor.hand_over(begin)
        done.wait()
        self._stop_helper = None
        if self._cancelled:
            raise Fault("cancelled")
        if isinstance(outcome[0], Fault):
            raise outcome[0]
        return outcome[0]

    def hand_over(self, work: Callable[[], None]) -> None:
        """See ``context.Call``."""
        done = threading.Event()
        failed: list[Exception] = []

        def attempt() -> None:
            try:
                work()
            except Exception as error:  # the request's, not the reactor's, which all others need
                failed.append(error)
            finally:
                done.set()

        self._reactor.hand_over(attempt)
        done.wait()
        if failed:
            raise failed[0]

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take a piece of the body, in the reactor's thread. Raises WireError if the host sends more than it was credited."""
        chunk = bytes(chunk)  # a view is valid only now
        with self._lock:
            self._incoming.receive(len(chunk))
            if self._incoming.overrun:
                raise wire.WireError("body beyond its credit")
        self._chunks.append(chunk)
        self._ring()

    def finish_body(self, problem: str) -> None:
        """Note the end of the body; ``problem`` says why it is incomplete, "" that it is complete."""
        self._ended = problem
        self._ring()

    def credit(self, size: int) -> None:
        """Note that the host took ``size`` bytes of the stream."""
        with self._lock:
            self._outgoing.add_credit(size)
        self._ring()

    def cancel(self) -> None:
        """End the helper program at once, and the call as soon as the worker touches its streams again."""
        self._cancelled = True
        self._ring()
        stop = self._stop_helper
        if stop is not None:
            stop()

    def _ring(self) -> None:
        """Have the worker look again. Only the reactor calls this: two that found the bell held would both release it."""
        if self._bell.locked():
            self._bell.release()
