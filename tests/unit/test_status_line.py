"""The status line of a terminal, looked at through a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time

import pyte

PROGRAM = """
import sys, time
from sandbox.status_line import Progress, terminal

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
time.sleep(0.5)
sys.stderr.write("typed")
sys.stderr.flush()
time.sleep(1.2)
"""


def screens(code: str, seconds: float, status: int = 0) -> list[list[str]]:
    """What a terminal of 40 columns shows, each time something is written to it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (10, 40))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    screen = pyte.Screen(40, 10)
    stream = pyte.ByteStream(screen)
    seen, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:
                break
            seen.append([line.rstrip() for line in screen.display])
    os.close(ours)
    assert process.wait(10) == status
    return seen


def test_a_step_is_shown_with_its_seconds_and_a_long_one_leaves_a_line() -> None:
    seen = screens(PROGRAM.format(above=False, look="pass"), 30)
    assert ["building an image · 0 s" in lines for lines in seen].count(True) > 0
    assert any("building an image · 1 s" in lines for lines in seen)
    assert [line for line in seen[-1] if line] == ["building an image · 2 s", "over"]


def test_what_is_printed_meanwhile_and_typed_below_is_left_alone() -> None:
    seen = screens(PROGRAM.format(above=True, look=MEANWHILE), 30)
    typed = [lines for lines in seen if "typed" in lines]
    assert typed
    assert all(lines[lines.index("typed") - 1].startswith("starting the sandbox · ") for lines in typed[:-1])
    assert any("starting the sandbox · 2 s" in lines for lines in typed)
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
    code = "from agent.show import Screen; Screen().line('    ' + 'word ' * 12)"
    lines = [line for line in screens(code, 10)[-1] if line]
    assert lines == ["    word word word word word word word", "      word word word word word"]


def test_an_error_is_wrapped_at_words() -> None:
    code = "import sys; from agent.cli import main; main(['run', '--memory', 'very much indeed', '--', 'true'])"
    lines = [line for line in screens(code, 10, status=125)[-1] if line]
    assert len(lines) > 2
    assert all(line.startswith(("error: ", "hint: ", "       ")) for line in lines)


def test_a_narrow_table_keeps_ids_whole_and_leaves_out_what_matters_least() -> None:
    code = """
import sys
sys.stdout = sys.stderr
from sandbox.table import write_table
row = ("20261122-134431-67e1", "2026-11-22 13:44:31", "finished", "some words of a long task that goes on")
write_table(("RUN", "BEGAN", "STATUS", "TASK"), [row], spare=("BEGAN",))
"""
    lines = [line for line in screens(code, 10)[-1] if line]
    assert lines[0].split() == ["RUN", "STATUS"] or lines[0].split() == ["RUN", "STATUS", "TASK"], lines
    assert lines[1].startswith("20261122-134431-67e1 ")
    assert all(len(line) <= 40 for line in lines)


def test_the_status_line_is_there_before_anything_heavy_is_imported() -> None:
    """So that it is seen within 200 ms, of which the start of the command line takes half."""
    code = """
import sys
import agent.cli
from sandbox.status_line import StatusLine

def show(self, text):
    heavy = {name.split(".")[0] for name in sys.modules} & {"docker", "pydantic", "rich", "requests", "litellm", "jsonschema"}
    sys.stderr.write(f"{text}: {sorted(heavy)}\\n")
    raise SystemExit(7)

StatusLine.show = show
agent.cli.main(COMMAND)
"""
    for command in (["run", "--", "true"], ["agent", "x", "--script", "y"], ["--debug", "exec", "work", "--", "true"]):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("COMMAND", repr(command))], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (7, "starting: []\n")
