"""Lines that the user types while an agent works: the answer to a question, or else a message to the agent."""

from __future__ import annotations

import os
import queue
import select
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar

from agent.layers.inbox import Inbox
from sandbox.cli.status_line import terminal

from .screen import Screen

# How often the thread checks whether it should stop, in seconds.
LOOK_SECONDS = 0.2
# A line that comes so soon after an answer was pasted with it. The next question gets it, if it is asked within that time.
PASTED_SECONDS = 0.5
_CHUNK = 4096


class TypedLines:
    """Reads the lines of a terminal in a thread: a line answers the ``read_line`` that waits, or else goes to ``inbox``."""

    def __init__(self, descriptor: int, inbox: Inbox, screen: Screen) -> None:
        self._descriptor, self._inbox, self._screen = descriptor, inbox, screen
        self._answers: queue.Queue[str] = queue.Queue()
        self._asking = threading.Event()
        self._expected = False
        self._answered = -PASTED_SECONDS
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="typed lines", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._over.set()
        self._thread.join(5 * LOOK_SECONDS)

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Let the next line be the answer of the first ``read_line`` in the block, also if it comes before that is called."""
        self._asking.set()
        self._expected = True
        try:
            yield
        finally:
            if self._expected:  # nobody has asked
                self._end_question()
                with suppress(queue.Empty):
                    self._answers.get_nowait()

    def read_line(self) -> str:
        """Return the next line with its line feed; "" at the end of the input."""
        if not self._expected:
            self._asking.set()
        try:
            return self._answers.get()
        finally:
            self._end_question()

    def _end_question(self) -> None:
        self._expected = False
        self._asking.clear()

    def _listen(self) -> None:
        held = b""
        while not self._over.is_set():
            data = self._data()
            if data is None:
                continue
            held += data
            *lines, held = held.split(b"\n")
            for line in lines:
                self._take(line.decode("utf-8", "replace") + "\n")
            if not data:  # the end of the input: every question gets "" from now on
                while not self._over.wait(LOOK_SECONDS):
                    if self._asking.is_set() and self._answers.empty():
                        self._answers.put("")

    def _data(self) -> bytes | None:
        """Return what was typed; b"" at the end of the input, None if it was nothing. In the background nothing is read: the kernel
        would stop the process.
        """
        try:
            readable, _, _ = select.select([self._descriptor], [], [], LOOK_SECONDS)
            if not readable or not _in_foreground(self._descriptor):
                self._over.wait(LOOK_SECONDS if readable else 0)
                return None
            return os.read(self._descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            return b""

    def _take(self, line: str) -> None:
        pasted = time.monotonic() - self._answered < PASTED_SECONDS
        if self._asking.wait(PASTED_SECONDS if pasted else 0):
            self._asking.clear()  # one line for each question
            self._answered = time.monotonic()
            self._answers.put(line)
            return
        if not line.strip():
            return
        try:
            self._inbox.say(line.rstrip("\n"))
        except ValueError as error:
            self._screen.line(f"Message not sent: {error}", "red")
        else:
            self._screen.line("Sent: the agent reads it before its next decision.", "dim")


_current: ContextVar[TypedLines | None] = ContextVar("gamebox_typed_lines", default=None)


@contextmanager
def listening(inbox: Inbox, screen: Screen) -> Iterator[None]:
    """Send what is typed on the terminal to ``inbox`` while the block runs, unless there is none, or another program reads it."""
    if not _is_ours():
        yield
        return
    lines = TypedLines(sys.stdin.fileno(), inbox, screen)
    screen.line("Type a line to send a message to the agent. Ctrl-C ends or pauses the run.", "dim")
    token = _current.set(lines)
    terminal().above_input = True
    lines.start()
    try:
        yield
    finally:
        _current.reset(token)
        lines.stop()
        terminal().hide()
        terminal().above_input = False


def expecting() -> AbstractContextManager[None]:
    """Let the next line be the answer of the first ``read_line`` in the block. A question is shown within it."""
    lines = _current.get()
    return nullcontext() if lines is None else lines.expecting()


def read_line() -> str:
    """Return the next line of standard input with its line feed, "" at its end; from the thread if one reads the terminal."""
    lines = _current.get()
    return sys.stdin.readline() if lines is None else lines.read_line()


def _is_ours() -> bool:
    try:
        piped = stat.S_ISFIFO(os.fstat(1).st_mode)  # such as into a pager, which reads the terminal itself
        return sys.stdin.isatty() and sys.stderr.isatty() and not piped
    except (OSError, ValueError):
        return False


def _in_foreground(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
