"""The status line of a terminal, looked at through a terminal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyte
import pytest

from sandbox.cli.status_line import OUTPUT_LINES, StatusLine
from tests.contract.checks import with_more_time
from tests.unit.sandbox.cli.terminals import screens

PROGRAM = """
import os, sys, time
from sandbox.cli.status_line import Progress, terminal

status = terminal()
status.above_input = {above}
report = Progress()
report("building an image")
time.sleep(2.3)
report("starting the sandbox")
time.sleep(0.4)
{look}
report.done()
sys.stderr.write("over\\n")
"""
MEANWHILE = """
status.clear()
sys.stderr.write("a line\\n")
while not status._drawn:
    time.sleep(0.01)
sys.stderr.write("typed")
sys.stderr.flush()
while not os.path.exists({seen!r}):
    time.sleep(0.01)
"""


@pytest.mark.exhaustive
def test_a_step_is_shown_with_its_seconds_and_a_long_one_leaves_a_line() -> None:
    code = PROGRAM.format(above=False, look="pass")

    def shown(seconds: float) -> tuple[list[str], str]:
        """The numbers of seconds that were shown, each once, and what is left at the end."""
        seen = screens(code.replace("2.3", str(seconds)))
        numbers = re.findall(r"building an image · (\d+) s", "\n".join(line for lines in seen for line in lines))
        return list(dict.fromkeys(numbers)), "\n".join(line for line in seen[-1] if line)

    def right(found: tuple[list[str], str]) -> bool:
        numbers, left = found
        return numbers[:1] == ["0"] and len(numbers) >= 3 and left == f"building an image · {numbers[-1]} s\nover"

    found = with_more_time(shown, right, 2.3)
    assert right(found), found


@pytest.mark.exhaustive
def test_what_is_printed_meanwhile_and_typed_below_is_left_alone(tmp_path: Path) -> None:
    goes_on = tmp_path / "seen"

    def look(lines: list[str]) -> None:
        if "typed" in lines and re.search("starting the sandbox · [2-9] s", "\n".join(lines)):
            goes_on.touch()

    seen = screens(PROGRAM.format(above=True, look=MEANWHILE.format(seen=str(goes_on))), look=look)
    typed = [lines for lines in seen if "typed" in lines]
    assert typed
    assert all(lines[lines.index("typed") - 1].startswith("starting the sandbox · ") for lines in typed[:-1])
    assert goes_on.exists()
    assert "a line" in seen[-1]


def test_off_a_terminal_each_step_is_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(above=False, look="pass").replace("2.3", "0")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "building an image\nstarting the sandbox\nover\n"


def test_long_lines_of_the_live_view_are_wrapped_at_words_and_indented() -> None:
    code = "from agent.views.screen import Screen; Screen().line('    ' + 'word ' * 12)"
    lines = [line for line in screens(code)[-1] if line]
    assert lines == ["    word word word word word word word", "      word word word word word"]


def test_an_error_is_wrapped_at_words() -> None:
    code = "import sys; from agent.cli.app import main; main(['run', '--memory', 'very much indeed', '--', 'true'])"
    lines = [line for line in screens(code, status=125)[-1] if line]
    assert len(lines) > 2
    assert all(line.startswith(("error: ", "hint: ", "       ")) for line in lines)


def test_a_narrow_table_keeps_ids_whole_and_leaves_out_what_matters_least() -> None:
    code = """
import sys
sys.stdout = sys.stderr
from sandbox.cli.table import write_table
row = ("20261122-134431-67e1", "2026-11-22 13:44:31", "finished", "some words of a long task that goes on")
write_table(("RUN", "BEGAN", "STATUS", "TASK"), [row], spare=("BEGAN",))
"""
    lines = [line for line in screens(code)[-1] if line]
    assert lines[0].split() == ["RUN", "STATUS"] or lines[0].split() == ["RUN", "STATUS", "TASK"], lines
    assert lines[1].startswith("20261122-134431-67e1 ")
    assert all(len(line) <= 40 for line in lines)


def test_the_status_line_is_there_before_anything_heavy_is_imported() -> None:
    """So that it is seen within 200 ms, of which the start of the command line takes half."""
    code = """
import sys
import agent.cli.app
from sandbox.cli.status_line import StatusLine

def show(self, text):
    heavy = {name.split(".")[0] for name in sys.modules} & {"docker", "pydantic", "rich", "requests", "litellm", "jsonschema"}
    sys.stderr.write(f"{text}: {sorted(heavy)}\\n")
    raise SystemExit(7)

StatusLine.show = show
agent.cli.app.main(COMMAND)
"""
    for command in (["run", "--", "true"], ["agent", "x", "--script", "y"], ["--debug", "exec", "work", "--", "true"]):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("COMMAND", repr(command))], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (7, "starting: []\n")


class Terminal(io.StringIO):
    """A terminal of 80 columns and 24 rows on which everything is kept that was written to it."""

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """What it shows, without empty rows."""
        screen = pyte.Screen(80, 24)
        pyte.Stream(screen).feed(self.getvalue())
        return [line.rstrip() for line in screen.display if line.strip()]

    def wait_for(self, text: str) -> list[str]:
        end = time.monotonic() + 30
        while text not in "\n".join(self.rows()):
            assert time.monotonic() < end, self.rows()
            time.sleep(0.02)
        return self.rows()


@pytest.mark.exhaustive
@pytest.mark.parametrize("above", [False, True])
def test_the_last_lines_of_output_are_drawn_in_place(above: bool) -> None:
    """UX 5: bounded, without a flicker, and with every character shown that steers a terminal (C20)."""
    stream = Terminal()
    status = StatusLine(stream)
    status.above_input = above
    status.add_output("stdout", "before any step\n")
    status.show("run", with_output=True)
    if above:
        stream.write("typed")
    for number in range(1, 9):
        status.add_output("stdout", f"line {number}\n\n")
        rows = stream.wait_for(f"line {number}")
        first = max(1, number - OUTPUT_LINES + 1)
        assert rows[: number - first + 1] == [f"    line {each}" for each in range(first, number + 1)]
        assert [row.partition(" · ")[0] for row in rows[number - first + 1 :]] == ["run", *(["typed"] if above else [])]
    status.add_output("stderr", "10%\r20%\r\x1b[31mred\x1b[0m \x1b]0;hidden\x07\r")
    status.add_output("stderr", "\n日" + "語" * 100)
    status.add_output("stderr", "x" * 5000)
    rows = stream.wait_for("xxx")
    assert rows[:3] == ["    10%", "    20%", "    red \\x1b]0;hidden\\x07"], rows
    assert "\x1b[J" not in stream.getvalue()
    status.show("thinking")
    status.add_output("stdout", "of no step\n")
    rows = stream.wait_for("thinking")
    status.hide()
    assert len(rows) == 1
    assert stream.rows() == []


def test_a_step_comes_back_with_its_output_after_a_question() -> None:
    """UX 5: after an approval nothing said what was running, nor for how long."""
    stream = Terminal()
    status = StatusLine(stream)
    status.show("run", with_output=True)
    status.add_output("stdout", "before\n")
    stream.wait_for("before")
    with status.hidden():
        assert stream.rows() == []
    status.add_output("stdout", "after\n")
    assert [row.partition(" · ")[0] for row in stream.wait_for("after")] == ["    after", "run"]
    status.hide()
    with status.hidden():
        pass
    assert stream.rows() == []


@pytest.mark.exhaustive
def test_the_agents_live_view_shows_what_a_command_prints_while_it_runs(tmp_path: Path) -> None:
    """UX 5: and nothing of it twice when the result is there. Off a terminal there is the result alone, as before."""
    steps = [{"tool": "run", "args": {"command": "sh go.sh"}}, {"tool": "finish", "args": {"summary": "done"}}]
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    (tmp_path / "repo").mkdir()
    one, two = tmp_path / "one", tmp_path / "two"  # there once it was seen
    wait = "until [ -e {} ]; do sleep 0.02; done"
    script = f"echo one; {wait.format(one)}; printf '\\033[2Jtwo\\n'; {wait.format(two)}; echo three"
    (tmp_path / "repo" / "go.sh").write_text(script)

    def look(lines: list[str]) -> None:
        if "    one" in lines and re.match(r"run \d+ s · step 1/\d+ · Ctrl-C", lines[lines.index("    one") + 1]):
            one.touch()
        if any("two" in line for line in lines):
            two.touch()

    command = ["agent", "x", "--agent", "coder", "--local", "--no-log"]
    command += ["--repo", f"{tmp_path}/repo", "--script", f"{tmp_path}/steps.json"]
    code = f"import sys; from agent.cli.app import main; sys.exit(main({command!r}))"
    seen = screens(code, look=look)
    assert one.exists()
    assert any("    \\x1b[2Jtwo" in lines and "    three" not in lines for lines in seen)
    ended = next(lines for lines in seen if "    [exit code 0]" in lines)
    assert [line for line in ended if line.startswith("    ")] == ["    one", "    two", "    three", "    [exit code 0]"]
    assert not any(line.startswith("run · ") for line in ended)
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert plain.count("    one\n") == plain.count("    three\n") == 1
    assert "\x1b" not in plain


def test_output_is_taken_while_the_terminal_is_stopped() -> None:
    """After Ctrl-S a command waited for the person who looks on, and its own time ran out."""
    writing, going_on = threading.Event(), threading.Event()

    class Stopped(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            writing.set()
            going_on.wait(60)
            return len(text)

    status = StatusLine(Stopped())
    showing = threading.Thread(target=lambda: status.show("run", with_output=True))
    taking = threading.Thread(target=lambda: status.add_output("stdout", "a line\n"))
    showing.start()
    assert writing.wait(60)
    taking.start()
    taking.join(10)
    taken = not taking.is_alive()
    going_on.set()
    showing.join(60)
    taking.join(60)
    status.hide()
    assert taken
