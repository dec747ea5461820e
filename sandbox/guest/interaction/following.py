"""Output of a command from an offset on, now or as soon as there is some. Lives in the reactor's thread."""

from __future__ import annotations

from ..loop.reactor import Reactor
from ..protocol.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.command import Command
    from ..commands.jobs import Reply
    from ..commands.output import Output
    from ..commands.processes import Look, Processes


class Waiting:
    """A request that waits and is ended once: by ``finish``, by its time (which calls ``late``) or by ``cancel``.

    ``undo`` collects what is to be called then, whatever ends it.
    """

    def __init__(self, reactor: Reactor, seconds: float, late: Callable[[], None], reply: Reply) -> None:
        self.open = True
        self.undo: list[Callable[[], None]] = []
        self._reply = reply
        self._timer = reactor.after(seconds, lambda: self.finish(late))

    def finish(self, then: Callable[[], None]) -> None:
        """End it and call ``then``; does nothing where it has ended."""
        if self.open:
            self.open = False
            self._timer.cancel()
            self.call_undo()
            then()

    def call_undo(self) -> None:
        """Undo what was noted; each once."""
        while self.undo:
            self.undo.pop()()

    def cancel(self) -> None:
        """The caller has given up."""
        self.finish(lambda: self._reply({"fault": Fault("cancelled")}, b""))


class Following:
    """Answers ``logs``, as many callers as there are."""

    def __init__(self, reactor: Reactor, processes: Processes, look: Look) -> None:
        self._reactor = reactor
        self._processes = processes
        self._look = look

    def logs(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """Output of a command; with ``follow`` once there is some, or it has ended. Answers a call that cancels. Raises Fault."""
        command = self._processes.find(args["id"])
        args = {**args, "offset": first_byte(command.output, args, self._processes.place.limits["read_bytes"])}

        def there() -> bool:
            return command.output.total > args["offset"] or not command.running

        def answer() -> None:
            try:
                self._answer(command, args, reply)
            except Fault as fault:  # it could not be started, and was forgotten while this waited
                reply({"fault": fault}, b"")

        if not args["follow"] or there():
            answer()
            return None
        waiting = Waiting(self._reactor, args["wait_seconds"], answer, reply)
        waiting.undo.append(command.listen(lambda: waiting.finish(answer) if there() else None))
        return waiting.cancel

    def _answer(self, command: Command, args: dict[str, Any], reply: Reply) -> None:
        fields, data = self._processes.logs(args)
        if args["follow"] and data:  # who follows wants it at once, and again and again
            reply({"result": fields}, data)
        else:
            self._look(command, lambda wait: reply({"result": {**fields, "waiting_for": wait}}, data))


def first_byte(output: Output, args: dict[str, Any], most: int) -> int:
    """Where to begin: ``offset``, from the end where it is negative; with ``tail_lines`` at the last so many lines, as far as
    they fit into one answer (``max_bytes``, at most ``most``).

    A place counted from the end is moved on to the beginning of a character.
    """
    if args.get("tail_lines") is not None:
        size = min(args["max_bytes"], most)
        at, data = output.read(max(0, output.total - size), size)
        start = len(data) - 1 if data.endswith(b"\n") else len(data)
        for _ in range(args["tail_lines"]):
            start = data.rfind(b"\n", 0, max(start, 0))
            if start < 0:
                return at + _torn(data) if at else 0
        return at + start + 1
    if args["offset"] >= 0:
        return int(args["offset"])
    at, data = output.read(max(0, output.total + args["offset"]), 4)
    return at + _torn(data) if at else 0


def _torn(data: bytes) -> int:
    """How many bytes at the start are the rest of a character."""
    torn = 0
    while torn < min(3, len(data)) and data[torn] & 0xC0 == 0x80:
        torn += 1
    return torn
