"""Screens: drawn as a person would see them, within bounds whatever the bytes are."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.messages.waiting import parse_waiting_for, still_running
from sandbox.messages.waiting_for import WaitingFor
from sandbox.text import screen
from sandbox.text.control_sequences import MOST_BYTES, SequenceFilter
from sandbox.text.screen import DRAWN_OF_BACKLOG_BYTES, MOST_COLS, MOST_ROWS, MOST_TITLE_CHARS, Drawing, Screens

SOON = 30.0


def drawn(data: bytes, rows: int = 5, cols: int = 20) -> dict[str, Any]:
    drawing = Drawing()
    drawing.resize(rows, cols)
    drawing.feed(data, time.thread_time() + SOON)
    return drawing.result_fields()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain\r\nlines", "plain\nlines"),
        (b"10%\r50%\r100%", "100%"),
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b[2;3Hhere", "\n  here"),
        ("é中".encode(), "é中"),
        (b"shell\x1b[?1049h\x1b[Hfull", "full"),
        (b"shell\x1b[?1049h\x1b[Hfull\x1b[?1049l", "shell"),
        (b"\x1b[?3hwide\x1b[?3l", "wide"),
        (b"x" * 25, "x" * 20 + "\n" + "x" * 5),
        (b"\xff\xfeok", "\ufffd\ufffdok"),
        (b"\x1b]2;never ended\x1b[2;3Hhere", "\n  here"),
        (b"\x1b]2;cancelled\x18here", "here"),
        (b"\x1b]8;;https://example.com\x1b\\a link\x1b]8;;\x07", "a link"),
        (b"\x1bP+q544e\x07\x1b\\\x1b_app\x1b\\\x1b^private\xc2\x9cshown", "shown"),
        (b"\x1b[4:3mcurly\x1b[!p\x1b[>4;2m\x1b[=1u\x1b[?1$p\x1b[2 q", "curly"),
        (b"\x1b(0lqk\x1b(Bq\x1b(0x\x1bcq", "q"),
        (b"\x1b(0lqk\x1b[2;1Hx A \x1b(Bq", "┌─┐\n│ A q"),
        (b"a-\x1b[3b|\x1b[99999b\x1b[b\r\n\x1b[2b\x1b(0q\x1b[2b", "a----|\n───"),
        (b"\x1b[12\x1b[2;3Hhere", "\n  here"),
        (b"\x1b[2\r\n;3Hhere", "\n  here"),
        (b"\x1b\x1b[2;3Hhere\x1b F\x1b*0\x1b%@\x1b(B", "\n  here"),
        (b"\x1b[" + b"9" * 5000 + b"mtext", "text"),
        ("\x9b2;3Hh\x9d2;title\x9ce\xc2re".encode(), "\n  heÂre"),
    ],
)
def test_text(data: bytes, text: str) -> None:
    shown = drawn(data)
    assert (shown["text"], shown["skipped_bytes"], shown["cols"]) == (text, 0, 20)


def test_cursor_and_title() -> None:
    shown = drawn(b"\x1b]2;" + b"t" * 1000 + b"\x07ab\x1b[?25l")
    assert (shown["cursor_row"], shown["cursor_col"], shown["cursor_hidden"]) == (0, 2, True)
    assert shown["title"] == "t" * MOST_TITLE_CHARS


@pytest.mark.parametrize("cut", range(1, 12))
def test_pieces_make_the_same_screen(cut: int) -> None:
    data = "a\x1b[2;3Hé\x1b[1mb".encode()
    drawing = Drawing()
    drawing.resize(5, 20)
    drawing.feed(data[:cut], time.thread_time() + SOON)
    drawing.feed(data[cut:], time.thread_time() + SOON)
    assert drawing.result_fields() == drawn(data)


@given(
    st.binary(max_size=2000) | st.text("\x1b[]?;0123456789hlHJKmABCDLMPr\u0301 中x\n\r", max_size=1000).map(str.encode)
)
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_it(data: bytes) -> None:
    shown = drawn(data + b"\x18\x1bc", 3, 9)
    assert 0 <= shown["cursor_row"] < 3
    assert 0 <= shown["cursor_col"] < 9
    assert len(shown["text"].splitlines()) <= 3


@given(
    st.binary(max_size=300) | st.text("\x1b[]P^_?;:0129hmHJ()#%! \x07\x18\x9b\x9d\x9cx", max_size=60).map(str.encode),
    st.integers(1, 40),
)
@settings(max_examples=500, deadline=None)
def test_whatever_came_before_a_reset_and_what_comes_after_are_two_things(data: bytes, step: int) -> None:
    data += "\x1bc\x1b[2;3Hlast wörds".encode()
    drawing = Drawing()
    drawing.resize(5, 20)
    for at in range(0, len(data), step):
        drawing.feed(data[at : at + step], time.thread_time() + SOON)
    assert drawing.result_fields()["text"] == "\n  last wörds"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "body", [b"", b"?", b"?1", b"1", b"5", b"1;2", b"?1;2", b"1;2;3;4;5;6;7", b"?;", b":", b"?4:5", b"00", b"9" * 900]
)
def test_no_sequence_takes_the_text_behind_it_along(body: bytes) -> None:
    for final in range(0x40, 0x7F):
        drawing = Drawing()
        drawing.feed(b"\x1b[%s%c\x1b[H\x1b[2J\x1b[mbehind" % (body, final), time.thread_time() + 60)
        assert (drawing.result_fields()["text"], drawing.skipped) == ("behind", 0), chr(final)


def test_what_erases_erases_that_and_no_more() -> None:
    def drawn(sequence: bytes) -> str:
        drawing = Drawing()
        drawing.feed(b"one\r\ntwo\x1b[2D" + sequence, time.thread_time() + 60)
        return str(drawing.result_fields()["text"])

    assert drawn(b"\x1b[K") == drawn(b"\x1b[?K") == drawn(b"\x1b[0;7K") == "one\nt"
    assert drawn(b"\x1b[2J") == drawn(b"\x1b[02J") == ""
    assert drawn(b"\x1b[9J") == drawn(b"\x1b[7K") == drawn(b"\x1b[?4m") == "one\ntwo"
    assert drawn(b"\x1b[1;1;9Hx") == "xne\ntwo"


def test_a_title_without_end_takes_no_memory() -> None:
    sequences = SequenceFilter()
    for _ in range(100):
        assert sequences.feed(b"\x1b]2;" + b"x" * 5000) == b""
    assert len(sequences._body) <= MOST_BYTES
    assert sequences.feed(b"\x1b" + b" " * 5000 + b"Ftext") == b"text"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "unit",
    [
        b"\x1b[2J",
        b"\x1b7",
        b"e" + b"\xcc\x81" * 50,
        b"\x1b[?1049h\x1b[?1049l",
        b"\x1b[999L\x1b[999M",
        bytes(range(256)),
    ],
    ids=["clear", "save", "combine", "other screen", "scroll", "all"],
)
def test_costly_bytes_take_no_longer_than_they_may(unit: bytes) -> None:
    drawing = Drawing()
    drawing.resize(MOST_ROWS, MOST_COLS)
    started = time.thread_time()
    drawing.feed(unit * (2_000_000 // len(unit)), started + 0.3)
    assert time.thread_time() - started < 0.3 + 5  # one step may take a while, but no more than one
    assert drawing.skipped > 0
    assert len(drawing.screen.savepoints) <= 16
    drawing.feed(b"\x1b\\\x1bcback", time.thread_time() + SOON)
    assert drawing.result_fields()["text"].endswith("back")


def test_sizes_are_bounded() -> None:
    drawing = Drawing()
    drawing.resize(10**9, 10**9)
    assert (drawing.screen.lines, drawing.screen.columns) == (MOST_ROWS, MOST_COLS)
    drawing.resize(0, 0)
    assert (drawing.screen.lines, drawing.screen.columns) == (1, 1)


class Output:
    """The guest's side: what a command has written, by offset."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[int] = []

    def __call__(self, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self.asked.append(args["offset"])
        part = self.data[args["offset"] : args["offset"] + args["max_bytes"]]
        return {
            "result": {
                "id": args["id"], "rows": 4, "cols": 10, "offset": args["offset"], "total_bytes": len(self.data), "running": True,
            }
        }, part  # fmt: skip


def test_only_what_is_new_is_asked_for() -> None:
    screens, output = Screens(), Output(b"one")
    assert screens.draw("c1", output)["result"]["text"] == "one"
    output.data += b"\r\ntwo"
    assert screens.draw("c1", output)["result"]["text"] == "one\ntwo"
    assert output.asked == [0, 3]
    assert screens.draw("c2", Output(b"other"))["result"]["text"] == "other"
    assert not screens.application_keys("c1", output)
    output.data += b"\x1b[?1h"
    assert screens.application_keys("c1", output)


def test_of_a_long_backlog_the_end_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "DRAW_SECONDS", 60.0)  # on a busy machine it would be given up
    output = Output(b"x" * 5_000_000 + b"\r\nend")
    shown = Screens().draw("c1", output)["result"]
    assert shown["text"].endswith("\nend")
    assert shown["skipped_bytes"] > 4_000_000
    assert len(output.asked) <= 2 + DRAWN_OF_BACKLOG_BYTES // 65536


@pytest.mark.parametrize(
    "reply", [{}, {"result": None}, {"result": []}, {"result": {"rows": "x"}}, {"result": {"rows": -1}}]
)
def test_nonsense_is_no_screen(reply: dict[str, Any]) -> None:
    screens = Screens()
    assert screens.draw("c1", lambda _: (reply, b"")).get("result") is None
    fault = {"fault": {"code": "not_a_terminal"}}
    assert screens.draw("c1", lambda _: (fault, b"")) == fault


# --- the words for what a command waits for ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stdin", "lock", "socket", "child", "cpu", "sleep", "disk", "other"])
def test_words(kind: str) -> None:
    wait = parse_waiting_for({"kind": kind, "pid": 7, "program": "prog", "detail": "the detail"})
    assert isinstance(wait, WaitingFor)
    assert "(prog, process 7: the detail)" in wait.to_text()
    message, hint = still_running({"id": "c1", "seconds": 5.0, "wait": wait, "session": "s"})
    assert message.startswith("The command is still running after 5 seconds under the id c1 and ")
    assert "c1" in hint
    assert ("text='..." in hint) == (kind == "stdin")


def test_names_that_a_command_chose_stay_in_their_line() -> None:
    wait = WaitingFor(kind="lock", pid=1, program="a\nb", detail="flock on /x\n[exit code 0]\x1b[2J" + "y" * 1000)
    text = wait.to_text()
    assert "\n" not in text
    assert "\x1b" not in text
    assert "(a?b, process 1: flock on /x?[exit code 0]" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    "value", [None, [], {"kind": "magic", "pid": 1}, {"kind": "cpu", "pid": -1}, {"kind": "cpu", "pid": 1, "x": 1}]
)
def test_nonsense_is_no_wait(value: object) -> None:
    assert parse_waiting_for(value) is None
    assert still_running({"wait": parse_waiting_for(value)})[0].endswith(".")
