"""Lines of a terminal: answers where something is asked, else words to the agent."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import threading
import time
from collections.abc import Iterator

import pytest

from agent import Memory
from agent.core.loop.hooks import Step
from agent.layers.inbox import Inbox
from agent.views.screen import Screen
from agent.views.terminal_approvals import ask_user_on
from agent.views.terminal_input import LOOK_SECONDS, TypedLines, _current, listening, read_line


class Terminal:
    """A pseudo-terminal that is listened to; there is no session on it, so it counts as ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ours, self.theirs = pty.openpty()
        self.inbox, self.shown = Inbox(), io.StringIO()
        self.foreground = True
        monkeypatch.setattr("agent.views.terminal_input._in_foreground", lambda descriptor: self.foreground)
        self.lines = TypedLines(self.theirs, self.inbox, Screen(self.shown))
        self.lines.start()

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def said(self) -> list[str]:
        memory = Memory()
        self.inbox.before_step(Step(1), memory)
        return [message["content"] for message in memory.items]

    def wait_for(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + 120
        while self.shown.getvalue().count(text) < times:
            assert time.monotonic() < deadline, self.shown.getvalue()
            time.sleep(0.01)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(monkeypatch)
    yield made
    made.lines.stop()
    os.close(made.ours)
    os.close(made.theirs)


def test_a_line_is_said_and_an_empty_one_is_not(terminal: Terminal) -> None:
    terminal.type("be brief\n\n  \nand kind\nhalf a li")
    terminal.wait_for("Sent:", 2)
    assert terminal.said() == ["be brief", "and kind"]
    terminal.type("ne\n")
    terminal.wait_for("Sent:", 3)
    assert terminal.said() == ["half a line"]


def test_a_question_gets_the_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one pasted after it, if another question follows; what comes later is said."""
    monkeypatch.setattr("agent.views.terminal_input.PASTED_SECONDS", 60.0)
    answers: list[str] = []

    def ask() -> None:
        answers.extend(terminal.lines.read_line() for _ in range(2))

    asking = threading.Thread(target=ask)
    asking.start()
    assert terminal.lines._asking.wait(60)
    terminal.type("r\nbecause\n")
    asking.join(60)
    assert answers == ["r\n", "because\n"]
    monkeypatch.setattr("agent.views.terminal_input.PASTED_SECONDS", 0.0)
    terminal.type("be brief\n")
    terminal.wait_for("Sent:")
    assert terminal.said() == ["be brief"]


def test_the_end_of_the_input_answers_every_question(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr("agent.views.terminal_input._in_foreground", lambda descriptor: True)
    lines = TypedLines(read, Inbox(), Screen(io.StringIO()))
    lines.start()
    os.close(write)
    assert [lines.read_line(), lines.read_line()] == ["", ""]
    lines.stop()
    os.close(read)


def test_a_line_typed_as_soon_as_a_question_is_seen_answers_it(terminal: Terminal) -> None:
    """Nobody reads it yet; the next line is said."""

    class Quick(Screen):
        def line(self, text: str, style: str = "") -> None:
            super().line(text, style)
            terminal.type("a.txt\n")
            while terminal.lines._answers.empty():
                assert "Sent:" not in terminal.shown.getvalue()
                time.sleep(0.01)

    token = _current.set(terminal.lines)
    try:
        ask = ask_user_on(Quick(terminal.shown), read_line)
        assert ask is not None
        assert ask("Which file?") == "a.txt"
    finally:
        _current.reset(token)
    assert not terminal.lines._asking.is_set()
    time.sleep(0.6)
    terminal.type("be brief\n")
    terminal.wait_for("Sent:")
    assert terminal.said() == ["be brief"]


def test_what_is_typed_for_a_question_that_was_broken_off_answers_no_other(terminal: Terminal) -> None:
    with contextlib.suppress(BrokenPipeError), terminal.lines.expecting():
        terminal.type("yes\n")
        while terminal.lines._answers.empty():
            time.sleep(0.01)
        raise BrokenPipeError
    asking = threading.Thread(target=lambda: answers.append(terminal.lines.read_line()))
    answers: list[str] = []
    asking.start()
    assert terminal.lines._asking.wait(60)
    assert not answers
    terminal.type("no\n")
    asking.join(60)
    assert answers == ["no\n"]


@pytest.mark.exhaustive
def test_in_the_background_nothing_is_read(terminal: Terminal) -> None:
    """The kernel would stop the process."""
    terminal.foreground = False
    time.sleep(2 * LOOK_SECONDS)
    terminal.type("for the shell\n")
    time.sleep(3 * LOOK_SECONDS)
    assert terminal.said() == []
    terminal.foreground = True
    terminal.wait_for("Sent:")
    assert terminal.said() == ["for the shell"]


def test_without_a_terminal_nothing_is_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO("a line\n"))
    with listening(Inbox(), Screen(shown)):
        assert read_line() == "a line\n"
    assert shown.getvalue() == ""
