"""Output as a model reads it: what a terminal would show, and never at a price."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.operations import LogsResult, RunResult
from sandbox.text.plain_text import overwrites, plain

_pieces = st.sampled_from(
    ["a", "bc", "é", " ", "\t", "\n", "\r", "\r\n", "\b", "\x1b", "\x1b[", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[31m",
     "\x1b]0;t\x07", "\x1b]8;;u", "\x1b\\", "\x1b(B", "\x00", "\x9b", "[K", "12", "m"]
)  # fmt: skip
_texts = st.lists(_pieces, max_size=40).map("".join)


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("plain\ttext\n\n  as it is  \n", "plain\ttext\n\n  as it is  \n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        (" 10%\r 55%\r100%\ndone\n", "100%\ndone\n"),
        ("downloading...\rok\n", "okwnloading...\n"),
        ("downloading...\r\x1b[Kok\n", "ok\n"),
        ("long line\r\x1b[2Kok", "ok"),
        ("abc\x1b[1Kd", "   d"),
        ("abc\x1b[2Kd", "   d"),
        ("typo\b\bed", "tyed"),
        ("\b\bx", "x"),
        ("N\bNA\bAM\bME\bE", "NAME"),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;2;1;2;3mmore\x1b[m", "red and more"),
        ("\x1b]0;title\x07prompt \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "<]0;title>prompt <]8;;http://x>link<]8;;>"),
        ("echo hello \x1b]0;x; CMD; : \x07!", "echo hello <]0;x; CMD; : >!"),
        ("bell\x07 and \x1b(B\x1b=rest\x0c", "bell and rest"),
        ("cut off \x1b[31", "cut off [31"),
    ],
)
def test_what_is_seen(raw: str, seen: str) -> None:
    assert plain(raw) == seen


@given(_texts)
def test_nothing_is_left_to_collapse_and_no_line_gets_lost(text: str) -> None:
    seen = plain(text)
    assert plain(seen) == seen
    assert not set(seen) & {"\r", "\b", "\x1b", "\x00", "\x9b"}
    assert len(seen) <= len(text)
    assert seen.count("\n") == text.count("\n")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_text_without_controls_is_left_alone(text: str) -> None:
    assert plain(text) is text


@pytest.mark.parametrize(
    "piece", ["\x1b[", "\x1b]", "\x1b]8;;", "\x1b[2K", "\x1b[1K", "\x1b[K", "x\x1b[2K", "x\r", "\b", "\x1b[0;", "\x1b \x1b"]
)
def test_the_price_grows_with_the_text_alone(piece: str) -> None:
    """Counts the lines of Python that are carried out, which does not depend on the machine."""

    def price(count: int) -> int:
        steps = 0

        def count_steps(frame: object, event: str, arg: object) -> object:
            nonlocal steps
            steps += 1
            return count_steps

        text = "y" * count + piece * count + "z" * count
        before = sys.gettrace()
        sys.settrace(count_steps)  # type: ignore[arg-type]
        try:
            plain(text)
        finally:
            sys.settrace(before)
        return steps

    assert price(400) < 3 * price(200) + 100


def test_results_keep_the_raw_output() -> None:
    raw = " 10%\r100%\n\x1b[32mok\x1b[0m\n"
    ran = RunResult(id="c1", exit_code=0, output=raw)
    assert (ran.output, ran.to_text()) == (raw, "100%\nok\n[exit code 0]")
    logs = LogsResult(id="c1", content=raw, next_offset=9, total_bytes=9, exit_code=0)
    assert logs.to_text() == "100%\nok\n[exit code 0; bytes 0-9 of 9]"


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("plain\r\nlines\r\n", False), ("\x1b[1;31m\x1b[Kred\x1b[m\x1b[K and more", False), ("\x1b]0;title\x07prompt", False),
        (" 10%\r 55%\r100%\n", True), ("CMD\rok ", True), ("typo\b\bed", True), ("CMD\x1b[2K\rok", True), ("CMD\x1b[1Kok", True),
    ],
)
def test_c20_what_a_program_wrote_over_is_known(text: str, lost: bool) -> None:
    assert overwrites(text) is lost
