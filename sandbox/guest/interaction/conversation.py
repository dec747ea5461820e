"""Talk with a running command: type into it, and show what it printed and waits for. Lives in the reactor's thread."""

from __future__ import annotations

import os
import time

from ..builtin import partial
from ..commands.command import Command, describe_end
from ..commands.processes import Processes
from ..commands.terminal import encode_input, hides_input, read_window_size, require_terminal, set_window_size
from ..loop.reactor import Reactor
from ..loop.workers import Workers
from ..protocol.faults import Fault
from .logs import Logs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Reply
    from ..commands.terminal import Input
    from .process_list import ProcessList
    from .wait_for import WaitFor

    Wait = dict[str, Any] | None

# All workers may be busy. What a command waits for is left out then: the answer must not be late for it.
EXAMINE_SECONDS = 0.2
# When the output pauses for this long while the command waits for more input, its answer is complete. The pause grows, so that a
# long wait costs few looks into /proc.
QUIET_SECONDS, LONGEST_QUIET_SECONDS = 0.08, 1.0
# The most of the new output that ``send`` returns; the rest can be read by its offset.
NEW_BYTES = 64 * 1024


class Interaction:
    """Carries out operations on running commands. Each takes arguments and a reply; what it returns, if anything, cancels it."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers
        self._process_list: ProcessList | None = None
        self._wait_for: WaitFor | None = None
        self.logs = Logs(reactor, processes, self.find_wait).logs
        processes.find_wait = self.find_wait
        processes.find_stall = self.find_stall

    def find_wait(self, command: Command, report: Callable[[Wait], None]) -> None:
        """Call ``report`` with what ``command`` waits for, or with None if it has ended or no worker was free in time."""
        self._examine(command, _explain_wait, lambda wait: report(_with_echo(wait, command)))

    def find_stall(self, command: Command, report: Callable[[Wait], None]) -> None:
        """Call ``report`` with what keeps ``command`` from ending, see ``explain_stall``; None as in ``find_wait``."""
        self._examine(command, _explain_stall, report)

    def _examine(
        self, command: Command, read: Callable[[int, str | None], Wait], report: Callable[[Wait], None]
    ) -> None:
        """Call ``read`` in a worker for the processes below the command's runner, and ``report`` with what it returns.

        ``report`` gets None after EXAMINE_SECONDS.
        """
        runner, source = command.runner, command.input
        if runner is None or not command.running:
            report(None)
            return
        spawner, reported = self._processes.spawner, [False]
        spawner.hold(runner)

        def report_once(wait: Wait) -> None:
            if not reported[0]:
                reported[0] = True
                timer.cancel()
                report(wait)

        def finish(wait: Wait) -> None:
            spawner.release(runner)
            report_once(wait)

        def work() -> None:
            try:
                wait = read(runner.pid, source.name if source is not None else None)
            except (OSError, ValueError):  # /proc changes while it is read
                wait = None
            self._reactor.hand_over(partial(finish, wait))

        timer = self._reactor.after(EXAMINE_SECONDS, lambda: report_once(None))
        self._workers.submit(work, watching=True)

    def wait_for(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """Carry out ``wait_for``; its module is loaded for the first call. Raises Fault."""
        if self._wait_for is None:
            from .wait_for import WaitFor

            self._wait_for = WaitFor(self._reactor, self._processes, self._workers)
        return self._wait_for.wait_for(args, reply)

    def processes(self, args: dict[str, Any], reply: Reply) -> None:
        """Carry out ``processes``; its module is loaded for the first call. Raises Fault."""
        if self._process_list is None:
            from .process_list import ProcessList

            self._process_list = ProcessList(self._reactor, self._processes, self._workers)
        self._process_list.processes(args, reply)

    def resize(self, args: dict[str, Any], reply: Reply) -> None:
        """Set the size of a terminal. Raises Fault."""
        command = self._find_running(args["id"])
        self._processes.check_user(command, args.get("user"))
        set_window_size(require_terminal(command.input, command.id), args["rows"], args["cols"])
        command.window_size = (args["rows"], args["cols"])
        reply({"result": {"id": command.id, "rows": args["rows"], "cols": args["cols"]}}, b"")

    def screen(self, args: dict[str, Any], reply: Reply) -> None:
        """Answer with what ``logs`` returns and the size of the terminal: the host draws the screen. Raises Fault."""
        command = self._processes.find(args["id"])
        if command.window_size is None:
            raise Fault("not_a_terminal", id=command.id)
        if command.input is not None and command.input.terminal is not None:
            command.window_size = read_window_size(command.input.terminal)  # the command may have changed it
        fields, data = self._processes.logs(args)
        rows, cols = command.window_size
        answer = {"rows": rows, "cols": cols, **fields}
        if fields["next_offset"] < fields["total_bytes"]:
            reply({"result": answer}, data)
        else:
            self.find_wait(command, lambda wait: reply({"result": {**answer, "waiting_for": wait}}, data))

    def send(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """Type into a command. Answers when it waits for more or has ended, at the latest after ``wait_seconds``. Raises Fault."""
        command = self._processes.find(args["id"])
        self._processes.check_user(command, args.get("user"))
        if not (args["text"] or args["keys"] or args["eof"]) and not command.running:
            self.answer(command, None, reply)  # nothing is typed: the caller waits for the end
            return None
        command = self._find_running(command.id)
        source = command.input
        terminal = source is not None and source.terminal is not None
        steps = encode_input(args["text"], args["keys"], terminal, bool(args.get("application_keys")))
        if source is None and (args["eof"] or not all(isinstance(step, int) for step in steps)):
            raise Fault("stdin_closed", id=command.id)
        for step in [*steps, None] if args["eof"] else steps:
            if isinstance(step, int):
                _signal(command, step)
            elif source is not None:
                _write(source, step, command)
        conversation = Conversation(self._reactor, self, command, args["wait_seconds"], reply)
        conversation.listen()
        return conversation.cancel

    def answer(self, command: Command, wait: Wait, reply: Reply) -> None:
        """Answer with the output of a command since the last answer, and its state."""
        output = command.output
        start, data = output.read(max(command.reported_bytes, output.total - NEW_BYTES), NEW_BYTES)
        exit_code, signal = command.outcome
        fields = {
            "id": command.id,
            "offset": start,
            "next_offset": start + len(data),
            "running": command.running,
            "skipped_bytes": max(0, start - command.reported_bytes),
            "exit_code": exit_code,
            "signal": signal,
            "waiting_for": wait,
            "pending_bytes": command.input.pending if command.input is not None else 0,
            "terminal": command.window_size is not None,
        }
        command.reported_bytes = start + len(data)
        reply({"result": fields}, data)

    def _find_running(self, ident: str) -> Command:
        command = self._processes.find(ident)
        if not command.running or command.stopping:
            raise Fault("command_ended", **describe_end(command))
        return command


class Conversation:
    """Waits for a command to respond to what was typed."""

    def __init__(
        self, reactor: Reactor, interaction: Interaction, command: Command, seconds: float, reply: Reply
    ) -> None:
        self._reactor = reactor
        self._interaction = interaction
        self._command = command
        # A timer, not a time: a pause of the sandbox puts off the timers of the reactor.
        self._deadline = reactor.after(seconds, lambda: None)
        self._reply = reply
        self._quiet = QUIET_SECONDS
        self._seen = -1
        self._cancelled = False

    def cancel(self) -> None:
        """Answer with the fault ``cancelled``. What was typed stays typed."""
        self._cancelled = True
        self._reply({"fault": Fault("cancelled", effects="unknown")}, b"")

    def listen(self) -> None:
        """Look at the command after a pause."""
        left = self._deadline.due - time.monotonic()
        self._reactor.after(max(0.0, min(self._quiet, left)), self._look)
        self._quiet = min(self._quiet * 1.3, LONGEST_QUIET_SECONDS)

    def _look(self) -> None:
        command = self._command
        if self._cancelled:
            return
        ends = not command.running or time.monotonic() >= self._deadline.due
        if not ends and command.output.total != self._seen:
            self._seen = command.output.total
            self.listen()
            return
        self._interaction.find_wait(command, partial(self._judge, ends))

    def _judge(self, ends: bool, wait: Wait) -> None:
        if self._cancelled:
            return
        source = self._command.input
        waits = wait is not None and wait["kind"] == "stdin" and not (source is not None and source.unread)
        answered = waits and self._command.output.total == self._seen
        if ends or answered or not self._command.running:
            self._deadline.cancel()
            self._interaction.answer(self._command, wait if self._command.running else None, self._reply)
        else:
            self.listen()


def _write(source: Input, data: bytes | None, command: Command) -> None:
    """Write ``data``; None ends the input, on a terminal with what Ctrl-D types. Raises Fault."""
    if data is None and source.terminal is None:
        source.close()
    else:
        try:
            source.write(b"\x04" if data is None else data)
        except Fault as fault:
            fault.fields["id"] = command.id
            raise


def _signal(command: Command, number: int) -> None:
    """Send a signal to the process group of the command's leader, as a terminal does."""
    if command.runner is not None:
        try:
            os.killpg(command.runner.leader, number)
        except ProcessLookupError:  # it has just ended
            pass


def _explain_wait(root: int, stdin: str | None) -> Wait:
    from ..watch.waiting import explain_wait  # first needed long after the start, and loaded in a worker

    return explain_wait(root, stdin)


def _explain_stall(root: int, stdin: str | None) -> Wait:
    from ..watch.waiting import explain_stall

    return explain_stall(root, stdin)


def _with_echo(wait: Wait, command: Command) -> Wait:
    """Add to ``wait`` that the terminal does not echo what is typed."""
    source = command.input
    if wait is not None and wait["kind"] == "stdin" and source is not None and source.terminal is not None:
        hidden = hides_input(source.terminal)
        return {**wait, "detail": wait["detail"] + (", what is typed is not shown: a password?" if hidden else "")}
    return wait
