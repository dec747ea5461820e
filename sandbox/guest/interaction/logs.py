"""Read the output of a command from an offset on, now or as soon as there is some. Lives in the reactor's thread."""

from __future__ import annotations

from ..loop.reactor import Reactor
from ..protocol.faults import Fault
from ..protocol.output_offsets import find_start_offset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.command import Command
    from ..commands.processes import Examine, Processes, Reply


class PendingRequest:
    """A request that waits and ends once: by ``finish``, by its timeout (which calls ``late``) or by ``cancel``.

    The functions in ``cleanup`` are called then, whichever way it ends.
    """

    def __init__(self, reactor: Reactor, seconds: float, late: Callable[[], None], reply: Reply) -> None:
        self.open = True
        self.cleanup: list[Callable[[], None]] = []
        self._reply = reply
        self._timer = reactor.after(seconds, lambda: self.finish(late))

    def finish(self, then: Callable[[], None]) -> None:
        """End it and call ``then``. Does nothing if it has ended."""
        if self.open:
            self.open = False
            self._timer.cancel()
            self.clean_up()
            then()

    def clean_up(self) -> None:
        """Call each function in ``cleanup`` once."""
        while self.cleanup:
            self.cleanup.pop()()

    def cancel(self) -> None:
        """End it with the fault ``cancelled``."""
        self.finish(lambda: self._reply({"fault": Fault("cancelled")}, b""))


class Logs:
    """Answers ``logs``. ``find_wait`` finds out what a command waits for."""

    def __init__(self, reactor: Reactor, processes: Processes, find_wait: Examine) -> None:
        self._reactor = reactor
        self._processes = processes
        self._find_wait = find_wait

    def logs(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """Answer with output of a command; with ``follow`` as soon as there is some, or the command has ended. Raises Fault.

        Returns a function that cancels the request, or None if it is answered already.
        """
        command = self._processes.find(args["id"])
        args = {**args, "offset": find_start_offset(command.output, args, self._processes.place.limits["read_bytes"])}

        def available() -> bool:
            return command.output.total > args["offset"] or not command.running

        def answer() -> None:
            try:
                self._answer(command, args, reply)
            except Fault as fault:  # it could not be started, and was forgotten while this request waited
                reply({"fault": fault}, b"")

        if not args["follow"] or available():
            answer()
            return None
        request = PendingRequest(self._reactor, args["wait_seconds"], answer, reply)
        request.cleanup.append(command.listen(lambda: request.finish(answer) if available() else None))
        return request.cancel

    def _answer(self, command: Command, args: dict[str, Any], reply: Reply) -> None:
        fields, data = self._processes.logs(args)
        if args["follow"] and data:  # a caller that follows wants it at once, and again and again
            reply({"result": fields}, data)
        else:
            self._find_wait(command, lambda wait: reply({"result": {**fields, "waiting_for": wait}}, data))
