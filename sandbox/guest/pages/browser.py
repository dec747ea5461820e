"""The browser of a sandbox: its driver as a process of the guest, started on demand and kept, asked one request at a time.

Lives in the reactor's thread. It runs as a user of its own (BROWSER_UID), which has no access to the files of the sandbox's user.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque

from ..commands.command import Command
from ..commands.launch.packets import Spec
from ..protocol.constants import BROWSER_UID
from ..protocol.faults import Fault
from ..users import User
from .checked import parse_answer
from .lines import LOG_BYTES, Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes
    from ..loop.reactor import Timer

    Report = Callable[["dict[str, Any] | Fault"], None]

# Of one answer. The largest has a text and an outline of 200,000 characters each, of which JSON in ASCII has at most 12 bytes.
LINE_BYTES = 8 << 20
# On a machine without a free processor Chromium takes many seconds to start.
START_SECONDS = 30.0
# The driver keeps to the deadlines itself; if it does not, the browser is ended.
GRACE_SECONDS = 10.0
LATE_SECONDS = 2.0  # a timer that fires later than this after its time: the sandbox was paused
BASES = ("/tmp", "/var/tmp", "/dev/shm")
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Browser:
    """The driver of Chromium, and requests that wait for it."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._queue: deque[_Request] = deque()
        self._active: _Request | None = None
        self._command: Command | None = None
        self._lines: Lines | None = None
        self._ready = self._dying = False
        self._memory_kills = 0
        self.failure: dict[str, Any] = {}
        self.confined: bool | None = None  # whether the kernel keeps it from files that anybody may read
        self.pictures = 0

    def ask(self, request: dict[str, Any], seconds: float, report: Report) -> Callable[[], None]:
        """Have the driver answer a request within ``seconds``; it gets the seconds that are left then as "seconds".

        Returns a function that gives the request up: its answer is ignored.
        """
        asked = _Request(request, time.monotonic() + seconds, report)
        asked.timer = self._processes.reactor.after(seconds + GRACE_SECONDS, lambda: self._too_late(asked))
        self._queue.append(asked)
        self._serve()

        def give_up() -> None:
            if asked in self._queue:
                self._queue.remove(asked)
            asked.answer(Fault("cancelled"))

        return give_up

    def _serve(self) -> None:
        if self._active is not None or not self._queue:
            return
        if self._command is None:
            self._start()
        elif self._ready and not self._dying:
            self._send(self._queue.popleft())

    def _send(self, asked: _Request) -> None:
        self._active = asked
        if self._command is not None:
            self._command.refusals.clear()  # each answer has those of its own pages
        left = max(0.2, asked.deadline - time.monotonic())
        self._write({**asked.request, "seconds": round(left, 3)})

    def _write(self, fields: dict[str, Any]) -> None:
        try:
            if self._command is not None and self._command.input is not None:
                self._command.input.write(json.dumps(fields).encode() + b"\n")
        except Fault:  # it has ended, which is reported
            pass

    def _start(self) -> None:
        place = self._processes.place
        self.failure, self._ready = {}, False
        self._memory_kills = self._processes.cgroup.memory_kills()
        self._lines = Lines(LINE_BYTES)
        command = self._command = Command("browser", self._lines, self._processes.reactor, self._ended)
        command.keeps_stdin_open = True
        command.answered = True  # so that refusals of its pages go into the next answer
        command.details = {"text": "the browser"}
        command.listen(self._readable)
        command.timer = self._processes.reactor.after(START_SECONDS, lambda: self._kill(command, "slow"))
        argv = [*place.interpreter, "-m", f"{__package__}.driver.program"]
        environ = {"PYTHONSAFEPATH": "1", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
        user = User("browser", BROWSER_UID, BROWSER_UID, "/")
        self._processes.browser_command = command
        command.start(self._processes.spawner, Spec(argv, environ, "/", user=user), b"", None)
        direct = place.environ.get("no_proxy", "").replace(",", ";")
        self._write(
            {
                "base": next((base for base in BASES if os.path.isdir(base)), "/"),
                "readable": [sys.prefix, sys.base_prefix, PACKAGE_ROOT],
                "proxy": place.environ.get("http_proxy", ""),
                "direct": direct,
            }
        )

    def _readable(self) -> None:
        while self._lines is not None and (line := self._lines.take()) is not None:
            if self._ready and self._active is None and not _says_that_it_ends(line):  # nobody asked
                self._lines.overflow()
                break
            answer = parse_answer(line)
            if not self._ready:
                if answer.get("ready") is True:
                    self._ready, self.confined = True, answer.get("confined") is True
                    if self._command is not None and self._command.timer is not None:
                        self._command.timer.cancel()
                    self._serve()
                else:
                    self._note_failure(answer)
            elif self._active is not None:
                if "failed" in answer:
                    self._note_failure(answer)
                    break  # it is about to end
                asked, self._active = self._active, None
                asked.answer(answer)
                self._serve()
        if self._lines is not None and self._lines.overflown and self._command is not None and not self._dying:
            self._kill(self._command, "protocol")

    def _note_failure(self, answer: dict[str, Any]) -> None:
        for name in ("failed", "log"):
            if isinstance(answer.get(name), str):
                self.failure[name] = answer[name].encode("utf-8", "replace").decode()[:300]

    def _too_late(self, asked: _Request) -> None:
        if asked.done:
            return
        if time.monotonic() > asked.deadline + GRACE_SECONDS + LATE_SECONDS and not asked.forgiven:
            asked.forgiven = True
            asked.timer = self._processes.reactor.after(GRACE_SECONDS, lambda: self._too_late(asked))
            return
        if asked in self._queue:
            self._queue.remove(asked)
            asked.answer(Fault("timeout", browser_busy=True))
            return
        asked.answer(Fault("browser_failed", hung=True))
        if self._command is not None and self._active is asked:
            self._active = None
            self._kill(self._command, "hung")

    def _kill(self, command: Command, reason: str) -> None:
        self.failure.setdefault("reason", reason)
        self._dying = True  # what is asked for meanwhile waits for the next one
        if command.running:
            self._processes.stop(command, "killed", lambda _: None)

    def _ended(self, command: Command) -> None:
        if command is not self._command:
            return
        if command.timer is not None:
            command.timer.cancel()
        kills = self._processes.cgroup.memory_kills()
        fields = {**self.failure, "memory": kills > self._memory_kills}
        if self._lines is not None and "log" not in fields:
            fields["log"] = self._lines.log.decode("utf-8", "replace").strip()[-300:]
        fault = command.fault or Fault("browser_failed", **fields)
        failed = [self._active] if self._active is not None else []
        if not self._ready:  # it cannot start: that fails those that wait, too
            failed += self._queue
            self._queue.clear()
        self._command = self._active = self._lines = None
        self._ready = self._dying = False
        self._processes.browser_command = None
        for asked in failed:
            if asked is not None:
                asked.answer(fault)
        if not command.tree_empty and not command.stopping:
            self._processes.stop(command, "killed", lambda _: command.close())
        else:
            command.close()
        self._processes.reactor.after(0.0, self._serve)


class _Request:
    """A request that waits for the driver, or for its answer."""

    def __init__(self, request: dict[str, Any], deadline: float, report: Report) -> None:
        self.request = request
        self.deadline = deadline
        self.timer: Timer | None = None
        self.done = self.forgiven = False
        self._report = report

    def answer(self, found: dict[str, Any] | Fault) -> None:
        """Report the answer, once."""
        if self.done:
            return
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
        self._report(found)


def _says_that_it_ends(line: bytes) -> bool:
    return len(line) <= 4 * LOG_BYTES and "failed" in parse_answer(line)
