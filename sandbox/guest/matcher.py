"""The guest's side of ``matching``: asks its process, and gives it up where it takes too long. Lives in the reactor's thread."""

from __future__ import annotations

import json

from .commands import Command
from .faults import Fault
from .matching import GROUP_CHARS, LENGTH, MOST_GROUPS
from .output import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .processes import Processes
    from .reactor import Timer

    Answer = Callable[[int | None, list[str | None]], None]

# For one block of lines. A starved sandbox takes seconds to start a process at all.
BLOCK_SECONDS, START_SECONDS = 5.0, 20.0
# A kill that is slow to take effect on a busy machine may end in a kill of everything: it is the second choice.
CLOSE_SECONDS = 1.0
ANSWER_BYTES = 64 * 1024


class Matcher:
    """One process that looks for ``pattern``; ``failed`` is called once where it cannot. Its answers are hostile: the sandbox's
    user may have meddled with it.
    """

    def __init__(self, processes: Processes, pattern: str, failed: Callable[[Fault], None]) -> None:
        self._processes = processes
        self._pattern = pattern
        self._failed = failed
        self._closed = self._ready = False
        self._answered = 0
        self._waiting: tuple[bytes, Answer] | None = None
        self._asked: Answer | None = None
        place = processes.place
        output = Output(b"", ANSWER_BYTES, 0, lambda: False)
        output.spill_truncated = True  # no spill file
        self._command = Command("helper", output, processes.reactor, self._ended)
        self._command.stays_open = True
        self._command.listen(self._heard)
        self._timer: Timer = processes.reactor.after(START_SECONDS, self._too_slow)
        argv = [*place.interpreter, "-m", f"{__package__}.matching", pattern]
        env = {**place.environ, "PYTHONSAFEPATH": "1"}
        spec = {"argv": argv, "env": env, "cwd": "/", "state_fd": None, "announce": False}
        self._command.start(processes.spawner, spec, b"", None)

    def ask(self, lines: list[str], answer: Answer) -> None:
        """Call ``answer(index, groups)`` with the first line that matches (None, [] for none). One question at a time."""
        text = "\n".join(lines).encode("utf-8", "replace")
        self._waiting = (LENGTH.pack(len(text)) + text, answer)
        if self._ready:
            self._ask()

    def close(self) -> None:
        """End the process: it goes by itself at the end of its input, if it does not compute. May be called more than once."""
        if not self._closed:
            self._closed = True
            self._timer.cancel()
            if self._command.input is not None:
                self._command.input.close()
            if self._command.running:
                self._timer = self._processes.reactor.after(CLOSE_SECONDS, self._kill)

    def _kill(self) -> None:
        if self._command.running:
            self._processes.stop(self._command, "killed", lambda _: None)

    def _ask(self) -> None:
        if self._waiting is None or self._command.input is None:
            return
        (block, self._asked), self._waiting = self._waiting, None
        self._timer.cancel()
        self._timer = self._processes.reactor.after(BLOCK_SECONDS, self._too_slow)
        try:
            self._command.input.write(block)
        except Fault:
            self._fail(_gone())

    def _heard(self) -> None:
        if self._closed:
            return
        start, data = self._command.output.read(self._answered, ANSWER_BYTES)
        line, end, _ = data.partition(b"\n")
        if not end:
            return
        self._answered = start + len(line) + 1
        self._timer.cancel()
        answer = _parsed(line)
        if not self._ready:
            self._ready = True
            if answer.get("error"):
                problem = str(answer["error"])[:500]
                self._fail(Fault("invalid_pattern", pattern=self._pattern, problem=problem))
            else:
                self._ask()
        elif self._asked is not None:
            asked, self._asked = self._asked, None
            index = answer.get("index")
            asked(index if type(index) is int else None, _groups(answer.get("groups")))

    def _ended(self, command: Command) -> None:
        if not self._closed:  # it ends by itself only after an error
            self._heard()
        self._fail(command.fault or _gone())
        self._timer.cancel()
        command.close()

    def _too_slow(self) -> None:
        problem = f"it takes longer than {BLOCK_SECONDS:g} seconds to match"
        started = Fault("invalid_pattern", pattern=self._pattern, problem=problem, slow=True)
        self._fail(
            started if self._ready else Fault("io_error", problem="the process that matches lines did not start")
        )

    def _fail(self, fault: Fault) -> None:
        if not self._closed:
            self.close()
            self._failed(fault)


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
