"""Talking with a command that runs: what it printed and waits for, what is typed into it. Lives in the reactor's thread."""

from __future__ import annotations

import os
import time
from functools import partial

from ..commands.command import Command
from ..commands.end_notices import end_of
from ..commands.processes import Processes
from ..commands.terminal import hides_input, on_terminal, set_window, typed, window
from ..loop.reactor import Reactor
from ..loop.workers import Workers
from ..protocol.faults import Fault
from ..watch.waiting import waiting_for
from .following import Following

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.jobs import Reply
    from .conditions import Conditions
    from .process_list import Census

    Wait = dict[str, Any] | None

# Workers may all be busy: what a command waits for is left out then, its answer must not be late for it.
LOOK_SECONDS = 0.2
# Output that pauses for this long, while the command waits for more input, is its answer. The pause grows, so that a long wait
# costs few looks into /proc.
QUIET_SECONDS, LONGEST_QUIET_SECONDS = 0.08, 1.0
# At most this much of what is new is shown; the rest is asked for by offset.
NEW_BYTES = 64 * 1024


class Interaction:
    """``operations`` are those it answers, each taking arguments and a reply; what they answer, if anything, cancels them."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers
        self._census: Census | None = None
        self._conditions: Conditions | None = None
        self.operations: dict[Any, Callable[[dict[str, Any], Reply], Callable[[], None] | None]] = {
            "logs": Following(reactor, processes, self.look).logs, "send": self.send, "resize": self.resize,
            "screen": self.screen, "wait_for": self.wait_for, "processes": self.processes,
        }  # fmt: skip
        processes.look = self.look
        processes.stall = self.stall

    def look(self, command: Command, report: Callable[[Wait], None]) -> None:
        """Call ``report`` with what ``command`` waits for; None where it does not run, or no worker was free in time."""
        self._examine(command, waiting_for, lambda wait: report(_with_echo(wait, command)))

    def stall(self, command: Command, report: Callable[[Wait], None]) -> None:
        """Call ``report`` with what keeps ``command`` from ending, see ``stalling``; None as in ``look``."""
        from ..watch.stalling import stalled

        self._examine(command, stalled, report)

    def _examine(
        self, command: Command, read: Callable[[int, str | None], Wait], report: Callable[[Wait], None]
    ) -> None:
        """Have a worker ``read`` of the processes below the command's runner, and ``report`` that, None after LOOK_SECONDS."""
        runner, source = command.runner, command.input
        if runner is None or not command.running:
            report(None)
            return
        spawner, told = self._processes.spawner, [False]
        spawner.hold(runner)

        def tell(wait: Wait) -> None:
            if not told[0]:
                told[0] = True
                timer.cancel()
                report(wait)

        def finish(wait: Wait) -> None:
            spawner.release(runner)
            tell(wait)

        def work() -> None:
            try:
                wait = read(runner.pid, source.name if source is not None else None)
            except (OSError, ValueError):  # what is read there changes while it is read
                wait = None
            self._reactor.hand_over(partial(finish, wait))

        timer = self._reactor.after(LOOK_SECONDS, lambda: tell(None))
        self._workers.submit(work, watching=True)

    # --- operations ------------------------------------------------------------------
    def wait_for(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """See ``conditions``, which is loaded when it is first asked for. Raises Fault."""
        if self._conditions is None:
            from .conditions import Conditions

            self._conditions = Conditions(self._reactor, self._processes, self._workers)
        return self._conditions.wait_for(args, reply)

    def processes(self, args: dict[str, Any], reply: Reply) -> None:
        """See ``census``, which is loaded when it is first asked for. Raises Fault."""
        if self._census is None:
            from .process_list import Census

            self._census = Census(self._reactor, self._processes, self._workers)
        self._census.processes(args, reply)

    def resize(self, args: dict[str, Any], reply: Reply) -> None:
        """Give a terminal another size. Raises Fault."""
        command = self._running(args["id"])
        self._processes.check_user(command, args.get("user"))
        on_terminal(lambda fd: set_window(fd, args["rows"], args["cols"]), command.input, command.id)
        command.window = (args["rows"], args["cols"])
        reply({"result": {"id": command.id, "rows": args["rows"], "cols": args["cols"]}}, b"")

    def screen(self, args: dict[str, Any], reply: Reply) -> None:
        """What ``logs`` answers, and the size of the terminal: the host draws the screen. Raises Fault."""
        command = self._processes.find(args["id"])
        if command.window is None:
            raise Fault("not_a_terminal", id=command.id)
        if command.input is not None and command.input.terminal is not None:
            command.window = window(command.input.terminal)  # the command itself may have changed it
        fields, data = self._processes.logs(args)
        rows, cols = command.window
        answer = {"rows": rows, "cols": cols, **fields}
        if fields["next_offset"] < fields["total_bytes"]:
            reply({"result": answer}, data)
        else:
            self.look(command, lambda wait: reply({"result": {**answer, "waiting_for": wait}}, data))

    def send(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """Type into a command; answer when it waits for more or is over, at the latest after ``wait_seconds``. Raises Fault."""
        command = self._processes.find(args["id"])
        self._processes.check_user(command, args.get("user"))
        if not (args["text"] or args["keys"] or args["eof"]) and not command.running:
            self.answer(command, None, reply)  # nothing was to be typed: the caller waits for the end
            return None
        command = self._running(command.id)
        source = command.input
        terminal = source is not None and source.terminal is not None
        steps = typed(args["text"], args["keys"], terminal, bool(args.get("application_keys")))
        if source is None and (args["eof"] or not all(isinstance(step, int) for step in steps)):
            raise Fault("stdin_closed", id=command.id)
        for step in [*steps, None] if args["eof"] else steps:
            if isinstance(step, int):
                _signal(command, step)
            elif source is not None:
                _give(source, step, command)
        conversation = Conversation(self._reactor, self, command, args["wait_seconds"], reply)
        conversation.listen()
        return conversation.cancel

    def answer(self, command: Command, wait: Wait, reply: Reply) -> None:
        """Say what is new of a command."""
        output = command.output
        start, data = output.read(max(command.told_bytes, output.total - NEW_BYTES), NEW_BYTES)
        exit_code, signal = command.outcome
        fields = {
            "id": command.id, "offset": start, "next_offset": start + len(data), "running": command.running,
            "skipped_bytes": max(0, start - command.told_bytes), "exit_code": exit_code, "signal": signal, "waiting_for": wait,
            "pending_bytes": command.input.pending if command.input is not None else 0,
            "terminal": command.window is not None,
        }  # fmt: skip
        command.told_bytes = start + len(data)
        reply({"result": fields}, data)

    def _running(self, ident: str) -> Command:
        command = self._processes.find(ident)
        if not command.running or command.stopping:
            raise Fault("command_ended", **end_of(command))
        return command


class Conversation:
    """Waits for the answer of a command to what was typed."""

    def __init__(
        self, reactor: Reactor, interaction: Interaction, command: Command, seconds: float, reply: Reply
    ) -> None:
        self._reactor = reactor
        self._interaction = interaction
        self._command = command
        # A timer, and not a time: those of the reactor are put off by a pause.
        self._deadline = reactor.after(seconds, lambda: None)
        self._reply = reply
        self._quiet = QUIET_SECONDS
        self._seen = -1
        self._cancelled = False

    def cancel(self) -> None:
        """Answer ``cancelled``; what was typed stays typed."""
        self._cancelled = True
        self._reply({"fault": Fault("cancelled", effects="unknown")}, b"")

    def listen(self) -> None:
        """Look again after a pause."""
        left = self._deadline.due - time.monotonic()
        self._reactor.after(max(0.0, min(self._quiet, left)), self._look)
        self._quiet = min(self._quiet * 1.3, LONGEST_QUIET_SECONDS)

    def _look(self) -> None:
        command = self._command
        if self._cancelled:
            return
        over = not command.running or time.monotonic() >= self._deadline.due
        if not over and command.output.total != self._seen:
            self._seen = command.output.total
            self.listen()
            return
        self._interaction.look(command, partial(self._judge, over))

    def _judge(self, over: bool, wait: Wait) -> None:
        if self._cancelled:
            return
        source = self._command.input
        waits = wait is not None and wait["kind"] == "stdin" and not (source is not None and source.unread)
        answered = waits and self._command.output.total == self._seen
        if over or answered or not self._command.running:
            self._deadline.cancel()
            self._interaction.answer(self._command, wait if self._command.running else None, self._reply)
        else:
            self.listen()


def _give(source: Any, data: bytes | None, command: Command) -> None:
    """Write ``data``, or end the input: on a terminal by what Ctrl-D types."""
    if data is None and source.terminal is None:
        source.close()
    else:
        try:
            source.write(b"\x04" if data is None else data)
        except Fault as fault:
            fault.fields["id"] = command.id
            raise


def _signal(command: Command, number: int) -> None:
    """Send a signal to the command's group, as a terminal does: the leader began it."""
    if command.runner is not None:
        try:
            os.killpg(command.runner.leader, number)
        except ProcessLookupError:  # it has just ended
            pass


def _with_echo(wait: Wait, command: Command) -> Wait:
    """Add that a terminal does not show what is typed."""
    source = command.input
    if wait is not None and wait["kind"] == "stdin" and source is not None and source.terminal is not None:
        hidden = hides_input(source.terminal)
        return {**wait, "detail": wait["detail"] + (", what is typed is not shown: a password?" if hidden else "")}
    return wait
