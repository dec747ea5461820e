"""The guest's side of ``matcher_program``: a pool of its processes, in which one that takes too long is given up.

Lives in the reactor's thread.
"""

from __future__ import annotations

import json
from collections import deque

from ..commands.command import Command
from ..commands.launch.packets import Spec
from ..commands.output import Output
from ..protocol.faults import Fault
from .matcher_program import GROUP_CHARS, LENGTH, MOST_GROUPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.processes import Processes
    from ..loop.reactor import Timer

    Answer = Callable[[int | None, list[str | None]], None]

MOST_PROCESSES = 16
# For one block of lines. A starved sandbox takes seconds to start a process at all.
BLOCK_SECONDS, START_SECONDS = 5.0, 20.0
# A kill that takes effect slowly on a busy machine may escalate to a kill of everything, so a process gets time to end by itself.
CLOSE_SECONDS = 1.0
ANSWER_BYTES = 64 * 1024


class MatcherPool:
    """Matches patterns in at most MOST_PROCESSES processes, and in no more than there are searches.

    A process matches one block of lines at a time, for any search. Searches without a free process wait for their turn.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._searches = 0
        self._queue: deque[Search] = deque()
        self._matchers: list[_Matcher] = []

    def open(self, pattern: str, failed: Callable[[Fault], None]) -> Search:
        """Open a search for ``pattern``. ``failed`` is called once if it cannot be carried out."""
        self._searches += 1
        search = Search(self, pattern, failed)
        search.ask([], lambda _index, _groups: None)  # finds out whether the pattern is valid
        return search

    def put(self, search: Search) -> None:
        """Ask the question of ``search`` as soon as a process is free."""
        self._queue.append(search)
        self.serve()

    def leave(self, search: Search) -> None:
        """Forget a search, and end processes that are no longer needed."""
        self._searches -= 1
        if search in self._queue:
            self._queue.remove(search)
        for matcher in self._matchers:
            if matcher.search is search:
                matcher.close()
        open_ones = [matcher for matcher in self._matchers if not matcher.closed]
        for matcher in [each for each in open_ones if each.search is None][: max(0, len(open_ones) - self._searches)]:
            matcher.close()

    def serve(self) -> None:
        """Give questions to free processes, and start the processes that are missing."""
        for matcher in tuple(self._matchers):
            if matcher.free and self._queue:
                matcher.ask(self._queue.popleft())
        starting = sum(not matcher.ready and not matcher.closed for matcher in self._matchers)
        for _ in range(min(len(self._queue) - starting, MOST_PROCESSES - len(self._matchers))):
            self._matchers.append(_Matcher(self))

    def lost(self, matcher: _Matcher, fault: Fault) -> None:
        """Fail the search that a process was serving, or would have served first: the process cannot go on."""
        search = matcher.search
        if search is None and not matcher.ready and self._queue:
            search = self._queue.popleft()
        if search is not None:
            search.fail(fault)

    def gone(self, matcher: _Matcher) -> None:
        """Forget a process of which nothing is left, and start another one if it is needed."""
        if matcher in self._matchers:
            self._matchers.remove(matcher)
        self.processes.reactor.after(0.0, self.serve)


class Search:
    """The search for one pattern, for one wait."""

    def __init__(self, pool: MatcherPool, pattern: str, failed: Callable[[Fault], None]) -> None:
        self.pattern = pattern
        self._pool = pool
        self._failed = failed
        self._closed = False
        self._questions: deque[tuple[bytes, Answer]] = deque()

    def ask(self, lines: list[str], answer: Answer) -> None:
        """Call ``answer(index, groups)`` for the first line that matches, or ``answer(None, [])`` if none does."""
        parts = [text.encode("utf-8", "replace") for text in (self.pattern, "\n".join(lines))]
        self._questions.append((b"".join(LENGTH.pack(len(part)) + part for part in parts), answer))
        if len(self._questions) == 1:
            self._pool.put(self)

    @property
    def question(self) -> bytes:
        """The bytes to send to a process."""
        return self._questions[0][0]

    def take_answer(self, fields: dict[str, Any]) -> None:
        """Take what a process answered. It is hostile: the sandbox's user may have changed it."""
        if fields.get("error"):
            self.fail(Fault("invalid_pattern", pattern=self.pattern, problem=str(fields["error"])[:500]))
            return
        _, answer = self._questions.popleft()
        if self._questions:
            self._pool.put(self)
        index = fields.get("index")
        answer(index if type(index) is int else None, _groups(fields.get("groups")))

    def fail(self, fault: Fault) -> None:
        """End the search with ``fault``."""
        if not self._closed:
            self.close()
            self._failed(fault)

    def close(self) -> None:
        """End the search, and the process that is working on it. May be called more than once."""
        if not self._closed:
            self._closed = True
            self._pool.leave(self)


class _Matcher:
    """One process. ``search`` is the one it is serving."""

    def __init__(self, pool: MatcherPool) -> None:
        self._pool = pool
        self._processes = pool.processes
        self.search: Search | None = None
        self.ready = self.closed = False
        self._read_bytes = 0
        place = self._processes.place
        output = Output(b"", ANSWER_BYTES, 0, lambda: False)
        output.spill_truncated = True  # no spill file
        self._command = Command("helper", output, self._processes.reactor, self._ended)
        self._command.keeps_stdin_open = True
        self._command.listen(self._readable)
        self._timer: Timer = self._processes.reactor.after(START_SECONDS, self._too_slow)
        # Not started in the constructor: if it cannot be started, that is reported at once.
        self._start_timer = self._processes.reactor.after(0.0, self._start)
        argv = [*place.interpreter, "-m", f"{__package__}.matcher_program"]
        env = {**place.environ, "PYTHONSAFEPATH": "1"}
        self._spec = Spec(argv, env, "/")

    @property
    def free(self) -> bool:
        """Whether it can take a question."""
        return self.ready and not self.closed and self.search is None

    def ask(self, search: Search) -> None:
        """Send the question of ``search``."""
        self.search = search
        self._timer = self._processes.reactor.after(BLOCK_SECONDS, self._too_slow)
        try:
            if self._command.input is not None:
                self._command.input.write(search.question)
        except Fault:
            self._fail(_ended_fault())

    def close(self) -> None:
        """End the process: by the end of its input, or by a kill if it goes on computing. May be called more than once."""
        if self.closed:
            return
        self.closed = True
        self._timer.cancel()
        self._start_timer.cancel()
        if self._command.input is not None:
            self._command.input.close()
        if not self._command.started:
            self._pool.gone(self)
        elif self._command.running:
            self._timer = self._processes.reactor.after(CLOSE_SECONDS, self._kill)

    def _start(self) -> None:
        self._command.start(self._processes.spawner, self._spec, b"", None)

    def _kill(self) -> None:
        if self._command.running:
            self._processes.stop(self._command, "killed", lambda _: None)

    def _readable(self) -> None:
        if self.closed:
            return
        start, data = self._command.output.read(self._read_bytes, ANSWER_BYTES)
        line, end, _ = data.partition(b"\n")
        if not end:
            return
        self._read_bytes = start + len(line) + 1
        self._timer.cancel()
        search, self.search = self.search, None
        if not self.ready:
            self.ready = True
        elif search is not None:
            search.take_answer(_parse_answer(line))
        self._pool.serve()

    def _ended(self, command: Command) -> None:
        self._timer.cancel()
        if not self.closed:
            self._readable()
        self._fail(command.fault or _ended_fault())
        self._timer.cancel()
        command.close()
        self._pool.gone(self)

    def _too_slow(self) -> None:
        if self.search is None:
            self._fail(Fault("io_error", problem="the process that matches lines did not start"))
        else:
            problem = f"it takes longer than {BLOCK_SECONDS:g} seconds to match"
            self._fail(Fault("invalid_pattern", pattern=self.search.pattern, problem=problem, slow=True))

    def _fail(self, fault: Fault) -> None:
        if not self.closed:
            self.close()
            self._pool.lost(self, fault)


def _ended_fault() -> Fault:
    return Fault("io_error", problem="the process that matches lines was ended")


def _parse_answer(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _groups(value: Any) -> list[str | None]:
    if not isinstance(value, list):
        return []
    return [group[:GROUP_CHARS] if isinstance(group, str) else None for group in value[:MOST_GROUPS]]
