"""The guest's side of ``matching``: asks its processes, and gives one up that takes too long. Lives in the reactor's thread."""

from __future__ import annotations

import json
from collections import deque

from ..commands.command import Command
from ..commands.output import Output
from ..protocol.faults import Fault
from .matching import GROUP_CHARS, LENGTH, MOST_GROUPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes
    from ..loop.reactor import Timer

    Answer = Callable[[int | None, list[str | None]], None]

# Processes at once, whatever the number of waits.
MOST = 16
# For one block of lines. A starved sandbox takes seconds to start a process at all.
BLOCK_SECONDS, START_SECONDS = 5.0, 20.0
# A kill that is slow to take effect on a busy machine may end in a kill of everything: it is the second choice.
CLOSE_SECONDS = 1.0
ANSWER_BYTES = 64 * 1024


class Matchers:
    """Looks for patterns in at most MOST processes, no more than there are waits.

    A process serves one block of lines at a time, whoever asks; those for whom none is free wait their turn.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._waits = 0
        self._queue: deque[Matcher] = deque()
        self._helpers: list[_Helper] = []

    def open(self, pattern: str, failed: Callable[[Fault], None]) -> Matcher:
        """What looks for ``pattern`` for one wait; ``failed`` is called once where it cannot."""
        self._waits += 1
        matcher = Matcher(self, pattern, failed)
        matcher.ask([], lambda _index, _groups: None)  # whether it is a pattern at all
        return matcher

    def put(self, matcher: Matcher) -> None:
        """Look for it as soon as a process is free."""
        self._queue.append(matcher)
        self.serve()

    def leave(self, matcher: Matcher) -> None:
        """One wait less."""
        self._waits -= 1
        if matcher in self._queue:
            self._queue.remove(matcher)
        for helper in self._helpers:
            if helper.matcher is matcher:
                helper.close()
        open_ones = [helper for helper in self._helpers if not helper.closed]
        for helper in [each for each in open_ones if each.matcher is None][: max(0, len(open_ones) - self._waits)]:
            helper.close()

    def serve(self) -> None:
        """Give free processes something to do, and start those that are missing."""
        for helper in tuple(self._helpers):
            if helper.free and self._queue:
                helper.look(self._queue.popleft())
        starting = sum(not helper.ready and not helper.closed for helper in self._helpers)
        for _ in range(min(len(self._queue) - starting, MOST - len(self._helpers))):
            self._helpers.append(_Helper(self))

    def lost(self, helper: _Helper, fault: Fault) -> None:
        """A process cannot serve: whoever it served, or should have served first, is told."""
        matcher = helper.matcher
        if matcher is None and not helper.ready and self._queue:
            matcher = self._queue.popleft()
        if matcher is not None:
            matcher.fail(fault)

    def gone(self, helper: _Helper) -> None:
        """Nothing of a process is left: there is room for another."""
        if helper in self._helpers:
            self._helpers.remove(helper)
        self.processes.reactor.after(0.0, self.serve)


class Matcher:
    """Looks for one pattern, for one wait."""

    def __init__(self, matchers: Matchers, pattern: str, failed: Callable[[Fault], None]) -> None:
        self.pattern = pattern
        self._matchers = matchers
        self._failed = failed
        self._closed = False
        self._questions: deque[tuple[bytes, Answer]] = deque()

    def ask(self, lines: list[str], answer: Answer) -> None:
        """Call ``answer(index, groups)`` with the first line that matches (None, [] for none)."""
        parts = [text.encode("utf-8", "replace") for text in (self.pattern, "\n".join(lines))]
        self._questions.append((b"".join(LENGTH.pack(len(part)) + part for part in parts), answer))
        if len(self._questions) == 1:
            self._matchers.put(self)

    @property
    def question(self) -> bytes:
        """What is to be asked."""
        return self._questions[0][0]

    def answered(self, said: dict[str, Any]) -> None:
        """What a process said; hostile: the sandbox's user may have meddled with it."""
        if said.get("error"):
            self.fail(Fault("invalid_pattern", pattern=self.pattern, problem=str(said["error"])[:500]))
            return
        _, answer = self._questions.popleft()
        if self._questions:
            self._matchers.put(self)
        index = said.get("index")
        answer(index if type(index) is int else None, _groups(said.get("groups")))

    def fail(self, fault: Fault) -> None:
        """It cannot be looked for."""
        if not self._closed:
            self.close()
            self._failed(fault)

    def close(self) -> None:
        """Look no more; a process that is at it is ended. May be called more than once."""
        if not self._closed:
            self._closed = True
            self._matchers.leave(self)


class _Helper:
    """One process. ``matcher`` is whom it serves just now."""

    def __init__(self, matchers: Matchers) -> None:
        self._matchers = matchers
        self._processes = matchers.processes
        self.matcher: Matcher | None = None
        self.ready = self.closed = False
        self._answered = 0
        place = self._processes.place
        output = Output(b"", ANSWER_BYTES, 0, lambda: False)
        output.spill_truncated = True  # no spill file
        self._command = Command("helper", output, self._processes.reactor, self._ended)
        self._command.stays_open = True
        self._command.listen(self._heard)
        self._timer: Timer = self._processes.reactor.after(START_SECONDS, self._too_slow)
        # Not started within the constructor: where it cannot be, that is told at once.
        self._start = self._processes.reactor.after(0.0, self._begin)
        argv = [*place.interpreter, "-m", f"{__package__}.matching"]
        env = {**place.environ, "PYTHONSAFEPATH": "1"}
        self._spec = {"argv": argv, "env": env, "cwd": "/", "state_fd": None, "announce": False}

    @property
    def free(self) -> bool:
        """Whether it may be given something to do."""
        return self.ready and not self.closed and self.matcher is None

    def look(self, matcher: Matcher) -> None:
        """Ask what ``matcher`` asks."""
        self.matcher = matcher
        self._timer = self._processes.reactor.after(BLOCK_SECONDS, self._too_slow)
        try:
            if self._command.input is not None:
                self._command.input.write(matcher.question)
        except Fault:
            self._fail(_gone())

    def close(self) -> None:
        """End the process: it goes by itself at the end of its input, if it does not compute. May be called more than once."""
        if self.closed:
            return
        self.closed = True
        self._timer.cancel()
        self._start.cancel()
        if self._command.input is not None:
            self._command.input.close()
        if not self._command.started:
            self._matchers.gone(self)
        elif self._command.running:
            self._timer = self._processes.reactor.after(CLOSE_SECONDS, self._kill)

    def _begin(self) -> None:
        self._command.start(self._processes.spawner, self._spec, b"", None)

    def _kill(self) -> None:
        if self._command.running:
            self._processes.stop(self._command, "killed", lambda _: None)

    def _heard(self) -> None:
        if self.closed:
            return
        start, data = self._command.output.read(self._answered, ANSWER_BYTES)
        line, end, _ = data.partition(b"\n")
        if not end:
            return
        self._answered = start + len(line) + 1
        self._timer.cancel()
        matcher, self.matcher = self.matcher, None
        if not self.ready:
            self.ready = True
        elif matcher is not None:
            matcher.answered(_parsed(line))
        self._matchers.serve()

    def _ended(self, command: Command) -> None:
        self._timer.cancel()
        if not self.closed:
            self._heard()
        self._fail(command.fault or _gone())
        self._timer.cancel()
        command.close()
        self._matchers.gone(self)

    def _too_slow(self) -> None:
        if self.matcher is None:
            self._fail(Fault("io_error", problem="the process that matches lines did not start"))
        else:
            problem = f"it takes longer than {BLOCK_SECONDS:g} seconds to match"
            self._fail(Fault("invalid_pattern", pattern=self.matcher.pattern, problem=problem, slow=True))

    def _fail(self, fault: Fault) -> None:
        if not self.closed:
            self.close()
            self._matchers.lost(self, fault)


def _gone() -> Fault:
    return Fault("io_error", problem="the process that matches lines was ended")


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _groups(value: Any) -> list[str | None]:
    if not isinstance(value, list):
        return []
    return [group[:GROUP_CHARS] if isinstance(group, str) else None for group in value[:MOST_GROUPS]]
