"""``wait_for``: answer as soon as a port is open, a line was printed, a file exists, or a command has ended.

Lines and ends are noticed in the reactor's thread. Ports and files are polled in a worker, at short intervals.
"""

from __future__ import annotations

import os
import re
import time
from functools import partial

from ..commands.command import Command, describe_end
from ..files.roots import readable_roots_of
from ..loop.context import Place
from ..loop.reactor import Reactor
from ..loop.workers import Workers
from ..protocol.faults import Fault
from ..protocol.output_offsets import find_start_offset
from ..watch.sockets import find_open_address
from .logs import PendingRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes, Reply
    from .matcher_pool import MatcherPool, Search

    Probe = Callable[[], dict[str, Any] | None]

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 0.1
LAST_BYTES = 4096  # of the output, in the answer of a wait that failed
KINDS = ("port", "log", "file", "exit")

READ_BYTES = 64 * 1024
# A line without an end is kept up to this size, and matched as it is once no more came for QUIET_SECONDS: it may be a prompt.
LINE_BYTES = 64 * 1024
QUIET_SECONDS = 0.1
_PLAIN = re.compile(r"[^\\.^$*+?{}\[\]|()]*")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^_`-~])")

FILE_READ_BYTES = 256 * 1024
# A file up to this size is searched as a whole whenever it has changed; of a larger one that grew, what was added.
WHOLE_BYTES = 1 << 20
LOOK_BYTES = 64 << 20  # in one look; the next one goes on from there
_MISSING = ("path_not_found", "not_a_directory")


class WaitFor:
    """Answers ``wait_for``. Lives in the reactor's thread."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers
        self._pool: MatcherPool | None = None

    def wait_for(self, args: dict[str, Any], reply: Reply) -> Callable[[], None] | None:
        """Wait for one condition. Returns a function that cancels the wait, None if it is answered already. Raises Fault."""
        command = self._processes.find(args["id"]) if args["id"] is not None else None
        wait = ConditionWait(self._reactor, self._processes, command, args, reply)
        if args["log"] is not None and command is not None:
            lines = LineWait(self._reactor, command, args, self._matcher_pool, wait)
            wait.request.cleanup.append(lines.close)
        elif args["exit"] and command is not None:
            wait.watch(lambda: None if command.running else wait.found({}))
        elif args["port"] is not None:
            Polling(self._reactor, self._workers, wait, lambda: _probe_port(args["port"], args["host"])).start()
        else:
            probe = FileProbe(self._processes.place, args["file"], args["contains"])
            Polling(self._reactor, self._workers, wait, probe.look).start()
        if not wait.request.open:
            wait.request.clean_up()
            return None
        return wait.request.cancel

    def _matcher_pool(self) -> MatcherPool:
        """Return what matches regular expressions for all waits; it is loaded for the first one."""
        if self._pool is None:
            from .matcher_pool import MatcherPool

            self._pool = MatcherPool(self._processes)
        return self._pool


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
        self.request = PendingRequest(reactor, args["timeout_seconds"], self._late, reply)

    @property
    def command_finished(self) -> bool:
        """Whether there is a command that should fulfil the condition, and it has ended with all its processes."""
        return self._command is not None and self._command.finished

    def watch(self, call: Callable[[], None]) -> None:
        """Call ``call`` now and whenever something happens to the command."""
        if self._command is not None:
            self.request.cleanup.append(self._command.listen(call))
        call()

    def found(self, facts: dict[str, Any]) -> None:
        """Answer that the condition is fulfilled."""
        with_output = bool(self._args["exit"])
        self.request.finish(lambda: self._answer({"result": {**self._state(), **facts}}, with_output))

    def failed(self, fault: Fault) -> None:
        """Answer that the condition cannot be waited for."""
        self.request.finish(lambda: self._reply({"fault": fault}, b""))

    def missed(self) -> None:
        """Answer that the command has ended without fulfilling the condition."""
        if self._command is not None:
            fault = Fault("command_ended", **self._condition(), **describe_end(self._command))
            self.request.finish(lambda: self._answer({"result": self._state(), "fault": fault}, True))

    def _late(self) -> None:
        seconds = round(time.monotonic() - self._started, 1)
        running = self._command is None or self._command.running
        ident = {"id": self._args["id"]} if self._args["id"] is not None else {}
        fault = Fault("not_ready", **self._condition(), **ident, waited=seconds, running=running)
        self._answer({"result": self._state(), "fault": fault}, True)

    def _condition(self) -> dict[str, Any]:
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
            **state,
            "id": command.id,
            "running": command.running,
            "exit_code": exit_code,
            "signal": signal,
            "stop_reason": command.stop_reason,
            "left_running": command.count_left_running(),
        }

    def _answer(self, fields: dict[str, Any], with_output: bool) -> None:
        """Reply, with the end of the command's output if ``with_output``."""
        last = b""
        if with_output and self._command is not None:
            output = self._command.output
            _, last = output.read(max(0, output.total - LAST_BYTES), LAST_BYTES)
        self._reply(fields, last)


class Polling:
    """Calls a probe again and again. When the command ends, it is called once more: its end may fulfil the condition."""

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
        self._wait.request.cleanup.append(lambda: self._timer.cancel())
        self._wait.watch(lambda: self._look() if self._wait.command_finished else None)

    def _look(self) -> None:
        if self._wait.request.open and not self._looking:
            self._looking, self._last = True, self._wait.command_finished
            self._workers.submit(self._work, watching=True)

    def _work(self) -> None:
        """Call the probe in a worker."""
        found: dict[str, Any] | None = None
        failed: Fault | None = None
        try:
            found = self._probe()
        except Fault as fault:
            failed = fault
        except (OSError, ValueError) as error:
            failed = Fault("io_error", problem=str(error)[:200])
        self._reactor.hand_over(partial(self._judge, found, failed))

    def _judge(self, found: dict[str, Any] | None, failed: Fault | None) -> None:
        self._looking = False
        if failed is not None:
            self._wait.failed(failed)
        elif found is not None:
            self._wait.found(found)
        elif self._last:
            self._wait.missed()
        elif self._wait.request.open:
            self._timer.cancel()
            self._timer = self._reactor.after(0.0 if self._wait.command_finished else self._pause, self._look)
            self._pause = min(self._pause * 1.5, LONGEST_PAUSE_SECONDS)


def _probe_port(port: int, host: str | None) -> dict[str, Any] | None:
    address = find_open_address(port, host)
    return None if address is None else {"address": address}


class FileProbe:
    """Looks for ``path``: a file, folder or socket, or with ``text`` a regular file that contains it.

    Called in a worker that acts as the sandbox's user.
    """

    def __init__(self, place: Place, path: str, text: str | None) -> None:
        self._roots = readable_roots_of(place)
        self._path = path
        self._text = None if text is None else text.encode("utf-8", "surrogateescape")
        self._seen: tuple[int, ...] = ()
        self._offset = 0

    def look(self) -> dict[str, Any] | None:
        """Return the facts about the file, or None if there is no such file yet. Raises Fault if there never will be."""
        if self._roots.is_missing(self._path):
            self._seen = ()
            return None
        try:
            if self._text is None:
                os.close(self._roots.open(self._path, os.O_PATH))
                return {"path": self._roots.display(self._path)}
            fd, status = self._roots.open_regular(self._path)
        except Fault as fault:
            if fault.code in _MISSING:
                self._seen = ()
                return None
            raise
        try:
            found = self._contains(fd, status, self._text)
        except OSError as error:
            raise self._roots.fault_for(error, self._path) from None
        finally:
            os.close(fd)
        return {"path": self._roots.display(self._path)} if found else None

    def _contains(self, fd: int, status: os.stat_result, text: bytes) -> bool:
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if state != self._seen:
            grew = state[:2] == self._seen[:2] and status.st_size > max(self._seen[2], WHOLE_BYTES)
            self._offset = self._offset if grew else 0
            self._seen = state
        until = self._offset + LOOK_BYTES
        while self._offset < until:
            start = max(0, self._offset - len(text) + 1)  # the text may lie across the border
            chunk = os.pread(fd, FILE_READ_BYTES + len(text), start)
            if text in chunk:
                return True
            if start + len(chunk) <= self._offset:
                break
            self._offset = start + len(chunk)
        return False


class LineWait:
    """Waits for a line in the output of a command, printed already or later. It is matched without escape codes.

    Calls ``found`` of ``wait`` with the first line that matches, ``missed`` when the output has ended without one, or ``failed``. A
    pattern that is plain text is searched for here, any other by a process of the pool.
    """

    def __init__(
        self,
        reactor: Reactor,
        command: Command,
        args: dict[str, Any],
        pool: Callable[[], MatcherPool],
        wait: ConditionWait,
    ) -> None:
        self._reactor = reactor
        self._command = command
        self._wait = wait
        self._text: str | None = args["log"] if args["literal"] or _PLAIN.fullmatch(args["log"]) else None
        self._needle = None if self._text is None else self._text.encode("utf-8", "replace")
        self._offset = find_start_offset(command.output, args, READ_BYTES)
        self._partial_line = b""
        self._matching = self._closed = False
        self._matched_until = -1  # where the output ended when a line without an end was matched
        self._search: Search | None = None
        if self._text is None:
            self._search = pool().open(args["log"], wait.failed)
        self._timer = reactor.after(0.0, self._look)
        self._unlisten = command.listen(self._look)

    def close(self) -> None:
        """Stop looking."""
        self._closed = True
        self._unlisten()
        self._timer.cancel()
        if self._search is not None:
            self._search.close()

    def _look(self) -> None:
        """Match the next part of the output, if the last part is done."""
        if self._matching or self._closed:
            return
        self._timer.cancel()
        output = self._command.output
        # An offset beyond the end: there is nothing to match yet.
        start, data = output.read(self._offset, READ_BYTES) if output.total > self._offset else (self._offset, b"")
        if start > self._offset:  # a part of the output is no longer kept
            self._partial_line = b""
        self._offset = start + len(data)
        if data:
            block = self._partial_line + data
            cut = block.rfind(b"\n") + 1
            self._partial_line = block[cut:][-LINE_BYTES:]
            end = self._offset - (len(block) - cut)
            if cut and (self._needle is None or self._needle in block or b"\x1b" in block):
                self._match(block[: cut - 1].split(b"\n"), end)
            else:
                self._timer = self._reactor.after(0.0, self._look)  # everything else gets its turn in between
        elif self._command.finished:
            self._match_last()
        elif self._partial_line and self._matched_until != output.total:
            self._timer = self._reactor.after(QUIET_SECONDS, self._match_prompt)

    def _match_prompt(self) -> None:
        if not self._matching and self._command.output.total == self._offset:
            self._match_partial_line()

    def _match_last(self) -> None:
        if self._partial_line and self._matched_until != self._offset:
            self._match_partial_line()
        else:
            self._wait.missed()

    def _match_partial_line(self) -> None:
        self._matched_until = self._offset
        self._match([self._partial_line], self._offset, complete=False)

    def _match(self, lines: list[bytes], end: int, complete: bool = True) -> None:
        """Match lines, the last of which ends before the byte ``end`` of the output, then go on."""
        texts = [_without_escapes(line) for line in lines]

        def judge(index: int | None, groups: list[str | None]) -> None:
            self._matching = False
            if self._closed:
                return
            if index is None or not 0 <= index < len(lines):
                self._timer = self._reactor.after(0.0, self._look)
                return
            after = sum(len(line) + 1 for line in lines[index + 1 :])
            next_offset = end - after
            offset = max(0, next_offset - len(lines[index]) - (1 if complete else 0))
            line = texts[index][:LINE_BYTES]
            self._wait.found({"line": line, "groups": groups, "offset": offset, "next_offset": next_offset})

        self._matching = True
        if self._search is None:
            text = self._text or ""
            judge(next((index for index, line in enumerate(texts) if text in line), None), [])
        else:
            self._search.ask(texts, judge)


def _without_escapes(line: bytes) -> str:
    text = line.rstrip(b"\r").decode("utf-8", "replace")
    return _ESCAPES.sub("", text) if "\x1b" in text else text
