"""Run the processes that read pages for ``browse``; one stays for the next page. Use it only in the reactor's thread.

A process takes 40 ms to start, and as much until it can read HTML. So one that has opened a page stays for IDLE_SECONDS, unless the
sandbox is short of memory or processes. The sandbox's user may kill it at any time; the next page then gets a new one.
"""

from __future__ import annotations

from ..commands.command import Command, parse_status
from ..commands.launch.packets import Spec
from ..loop.context import HelperResult
from ..protocol.faults import Fault
from ..watch.procfs import find_descendants
from .lines import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..commands.processes import Processes
    from ..loop.reactor import Timer

    Report = Callable[[HelperResult | Fault], None]

IDLE_SECONDS = 30.0
# A kill that takes effect slowly on a busy machine may escalate to a kill of everything, so a process gets time to end by itself.
CLOSE_SECONDS = 1.0
ANSWER_BYTES = 8 << 20


class PageReaders:
    """Each page has a process to itself while it is read; ``waiting`` is the one that the next page gets."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.waiting: _Reader | None = None
        processes.memory_watch.on_nearly_full = self.end_waiting

    def read(self, request: bytes, seconds: float, report: Report) -> Callable[[], None]:
        """Have a process answer ``request``, a line, and call ``report`` with its answer as standard output, or a Fault.

        Whatever it does is ended after ``seconds``. Returns a function that ends it at once.
        """
        page = _Page(request, report)
        page.timer = self.processes.reactor.after(seconds, lambda: page.stop("timeout"))
        self.serve(page)
        return lambda: page.stop("cancelled")

    def serve(self, page: _Page) -> None:
        """Give a page to the process that waits, or to a new one."""
        reader, self.waiting = self.waiting, None
        page.reader = _Reader(self) if reader is None else reader
        page.reader.read(page)

    def keep(self, reader: _Reader) -> None:
        """Let a process wait that has answered, or end it."""
        if self.waiting is None and not self._is_tight() and reader.is_alone():
            self.waiting = reader
        else:
            reader.close()

    def end_waiting(self) -> None:
        """End the process that waits."""
        reader, self.waiting = self.waiting, None
        if reader is not None:
            reader.close()

    def _is_tight(self) -> bool:
        count, most = self.processes.cgroup.processes() or 0, int(self.processes.place.limits["pids"])
        return self.processes.memory_watch.is_nearly_full() or 2 * count > most


class _Page:
    """A page that is asked for. ``report`` is called once."""

    __slots__ = ("answered", "reader", "report", "request", "stopped", "timer")

    def __init__(self, request: bytes, report: Report) -> None:
        self.request = request
        self.report = report
        self.answered = self.stopped = False
        self.reader: _Reader
        self.timer: Timer

    def stop(self, reason: str) -> None:
        """Kill the process that reads it, which is then reported. Does nothing once it is answered: then that may read another."""
        if self.answered:
            return
        self.stopped = True
        self.reader.stop(reason)

    def answer(self, found: HelperResult | Fault) -> None:
        """Report what was found."""
        self.answered = True
        self.timer.cancel()
        self.report(found)


class _Reader:
    """One process. ``page.py`` says how it answers."""

    def __init__(self, readers: PageReaders) -> None:
        self._readers = readers
        self._processes = readers.processes
        self._page: _Page | None = None
        self._taken = False  # whether it may have asked the server for the page
        self._pages = 0
        self._timer: Timer | None = None
        self._lines = Lines(ANSWER_BYTES)
        self._command = Command("helper", self._lines, self._processes.reactor, self._ended)
        self._command.keeps_stdin_open = True
        self._command.listen(self._readable)

    def read(self, page: _Page) -> None:
        """Read ``page``."""
        self._page, self._taken = page, False
        self._pages += 1
        self._processes.starts += 1  # it works from now on, like a process that was started
        self._cancel_timer()
        if not self._command.started:
            self._start()
        try:
            if self._command.input is not None:
                self._command.input.write(page.request)
        except Fault:  # it has ended, which is reported
            pass

    def stop(self, reason: str) -> None:
        """Kill the process and everything below it. The page that it reads, if any, is reported."""
        if self._command.running and not self._command.stopping:
            self._processes.stop(self._command, reason, lambda _: None)

    def close(self) -> None:
        """Let the process end by itself; kill it if it does not."""
        self._cancel_timer()
        if self._command.input is not None:
            self._command.input.close()
        self._timer = self._processes.reactor.after(CLOSE_SECONDS, lambda: self.stop("killed"))

    def is_alone(self) -> bool:
        """Return whether it lives and has left nothing else running: what a page left could reach the next one."""
        runner = self._command.runner
        return self._command.running and runner is not None and len(find_descendants(runner.pid)) == 1

    def _start(self) -> None:
        place = self._processes.place
        # Not with -m, for which the interpreter would import ten modules more, and with no garbage collection: saves 8 and 3 ms.
        program = f"import gc, sys; gc.disable(); from {__package__}.page import main; sys.exit(main())"
        argv = [*place.interpreter, "-c", program]
        env = {**place.environ, "PYTHONSAFEPATH": "1"}  # nothing in the working folder is imported
        if place.ca_bundle is not None:  # the bundle of the runtime: the image may have no certificates at all
            env.setdefault("SSL_CERT_FILE", place.ca_bundle)
        self._command.start(self._processes.spawner, Spec(argv, env, "/"), b"", None)

    def _readable(self) -> None:
        while (line := self._lines.take()) is not None:
            if self._page is None:  # nothing was asked
                self.stop("killed")
            elif not self._taken:
                self._taken = True
            else:
                page, self._page = self._page, None
                page.answer(HelperResult(0, line, b"", False, False))
                self._timer = self._processes.reactor.after(0.0, self._rest)
        if self._lines.overflown:
            self.stop("killed")

    def _rest(self) -> None:
        if self._command.running:
            self._timer = self._processes.reactor.after(IDLE_SECONDS, self._idle)
            self._readers.keep(self)

    def _idle(self) -> None:
        if self._readers.waiting is self:
            self._readers.end_waiting()

    def _ended(self, command: Command) -> None:
        self._cancel_timer()
        if self._readers.waiting is self:
            self._readers.waiting = None
        page, self._page = self._page, None

        def finish(_: int = 0) -> None:
            if page is not None and self._pages > 1 and not self._taken and not page.stopped:
                self._readers.serve(page)  # it was killed while it waited
            elif page is not None:
                page.answer(command.fault or self._failure())
            command.close()

        if command.tree_empty or command.stopping:
            finish()
        else:
            self._processes.stop(command, "killed", finish)

    def _failure(self) -> HelperResult:
        exit_code, _ = parse_status(self._command.exit_status)
        timed_out = self._command.stop_reason == "timeout"
        return HelperResult(exit_code, b"", self._lines.log, False, timed_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
