"""``wait_for``: answers as soon as a port is open, a line was printed, a file is there, or a command has ended.

Lines and ends come by the reactor; ports and files are looked at in a worker, at short intervals.
"""

from __future__ import annotations

import time
from functools import partial

from ..commands.end_notices import end_of
from ..loop.reactor import Reactor
from ..loop.workers import Workers
from ..protocol.faults import Fault
from ..watch.sockets import open_at
from . import file_wait as filewait
from .following import Waiting
from .lines import LineWait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.command import Command
    from ..commands.jobs import Reply
    from ..commands.processes import Processes
    from .matcher import Matchers

    Probe = Callable[[], dict[str, Any] | None]

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 0.1
LAST_BYTES = 4096  # of the output that is shown with a wait that failed
KINDS = ("port", "log", "file", "exit")


class Conditions:
    """Answers ``wait_for``, as many callers as there are. Lives in the reactor's thread."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers
        self._matchers: Matchers | None = None

    def wait_for(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """Wait for one condition; answers a call that cancels, None where it has been answered already. Raises Fault."""
        command = self._processes.find(args["id"]) if args["id"] is not None else None
        wait = ConditionWait(self._reactor, self._processes, command, args, reply)
        if args["log"] is not None and command is not None:
            lines = LineWait(self._processes, command, args, self._patterns, wait.found, wait.refused, wait.ended)
            wait.waiting.undo.append(lines.close)
        elif args["exit"] and command is not None:
            wait.watch(lambda: None if command.running else wait.found({}))
        elif args["port"] is not None:
            Polling(self._reactor, self._workers, wait, lambda: _port(args["port"], args["host"])).start()
        else:
            probe = filewait.FileProbe(self._processes.place, args["file"], args["contains"])
            Polling(self._reactor, self._workers, wait, probe.look).start()
        if not wait.waiting.open:
            wait.waiting.call_undo()
            return None
        return wait.waiting.cancel

    def _patterns(self) -> Matchers:
        """What looks for expressions, for all waits; loaded when it is first asked for."""
        if self._matchers is None:
            from .matcher import Matchers

            self._matchers = Matchers(self._processes)
        return self._matchers


def _port(port: int, host: str | None) -> dict[str, Any] | None:
    address = open_at(port, host)
    return None if address is None else {"address": address}


class Polling:
    """Looks again and again; where the command ends, once more: what is waited for may have come with its end."""

    def __init__(self, reactor: Reactor, workers: Workers, wait: ConditionWait, probe: Probe) -> None:
        self._reactor = reactor
        self._workers = workers
        self._wait = wait
        self._probe = probe
        self._pause = FIRST_PAUSE_SECONDS
        self._looking = self._last = False
        self._timer = reactor.after(0.0, self._look)

    def start(self) -> None:
        """Look now, and then at intervals."""
        self._wait.waiting.undo.append(lambda: self._timer.cancel())
        self._wait.watch(lambda: self._look() if self._wait.over else None)

    def _look(self) -> None:
        if self._wait.waiting.open and not self._looking:
            self._looking, self._last = True, self._wait.over
            self._workers.submit(self._work, watching=True)

    def _work(self) -> None:
        """In a worker."""
        found: dict[str, Any] | None = None
        refused: Fault | None = None
        try:
            found = self._probe()
        except Fault as fault:
            refused = fault
        except (OSError, ValueError) as error:
            refused = Fault("io_error", problem=str(error)[:200])
        self._reactor.hand_over(partial(self._judge, found, refused))

    def _judge(self, found: dict[str, Any] | None, refused: Fault | None) -> None:
        self._looking = False
        if refused is not None:
            self._wait.refused(refused)
        elif found is not None:
            self._wait.found(found)
        elif self._last:
            self._wait.ended()
        elif self._wait.waiting.open:
            self._timer.cancel()
            self._timer = self._reactor.after(0.0 if self._wait.over else self._pause, self._look)
            self._pause = min(self._pause * 1.5, LONGEST_PAUSE_SECONDS)


class ConditionWait:
    """One ``wait_for`` from its request to its reply."""

    def __init__(
        self, reactor: Reactor, processes: Processes, command: Command | None, args: dict[str, Any], reply: Reply
    ) -> None:
        self._processes = processes
        self._command = command
        self._args = args
        self._reply = reply
        self._started = time.monotonic()
        self.waiting = Waiting(reactor, args["timeout_seconds"], self._late, reply)

    @property
    def over(self) -> bool:
        """Whether the command that is to do it cannot do it any more."""
        return self._command is not None and self._command.over

    def watch(self, call: Callable[[], None]) -> None:
        """Call ``call`` now and whenever something happens to the command."""
        if self._command is not None:
            self.waiting.undo.append(self._command.listen(call))
        call()

    def found(self, facts: dict[str, Any]) -> None:
        """It is so."""
        shown = bool(self._args["exit"])
        self.waiting.finish(lambda: self._answer({"result": {**self._state(), **facts}}, shown))

    def refused(self, fault: Fault) -> None:
        """It cannot be waited for."""
        self.waiting.finish(lambda: self._reply({"fault": fault}, b""))

    def ended(self) -> None:
        """The command has ended without it."""
        if self._command is not None:
            fault = Fault("command_ended", **self._what(), **end_of(self._command))
            self.waiting.finish(lambda: self._answer({"result": self._state(), "fault": fault}, True))

    def _late(self) -> None:
        seconds = round(time.monotonic() - self._started, 1)
        running = self._command is None or self._command.running
        named = {"id": self._args["id"]} if self._args["id"] is not None else {}
        fault = Fault("not_ready", **self._what(), **named, waited=seconds, running=running)
        self._answer({"result": self._state(), "fault": fault}, True)

    def _what(self) -> dict[str, Any]:
        names = ("port", "host", "log", "literal", "file", "contains", "exit")
        return {name: self._args[name] for name in names if self._args[name] not in (None, False)}

    def _state(self) -> dict[str, Any]:
        kind = next(kind for kind in KINDS if self._args[kind] not in (None, False))
        state = {"condition": kind, "waited_seconds": round(time.monotonic() - self._started, 3)}
        command = self._command
        if command is None:
            return state
        exit_code, signal = command.outcome
        return {
            **state, "id": command.id, "running": command.running, "exit_code": exit_code, "signal": signal,
            "stop_reason": command.stop_reason, "left_running": self._processes.left_below(command),
        }  # fmt: skip

    def _answer(self, fields: dict[str, Any], shown: bool) -> None:
        """Reply with the end of the command's output where it is to be ``shown``."""
        last = b""
        if shown and self._command is not None:
            output = self._command.output
            _, last = output.read(max(0, output.total - LAST_BYTES), LAST_BYTES)
        self._reply(fields, last)
