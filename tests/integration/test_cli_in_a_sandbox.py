"""``gamebox exec``, ``shell``, ``cp`` and ``logs`` in a kept sandbox, as a person types them."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import run_gamebox

pytestmark = pytest.mark.engine
COMMAND = [sys.executable, "-c", "from agent.cli.app import main; main()"]
PATIENCE_SECONDS = 60.0


def gamebox(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return run_gamebox(*args, input=stdin)


@pytest.fixture(scope="module")
def kept() -> Iterator[str]:
    """The name of a sandbox that stays."""
    name = f"cli-{os.getpid()}"
    made = gamebox("run", "--keep", "--name", name, "--", "true")
    assert made.returncode == 0, made.stderr
    yield name
    gamebox("rm", name)


def test_exec_exits_as_the_command_and_its_sessions_stay(kept: str) -> None:
    assert gamebox("exec", kept, "--", "sh", "-c", "exit 3").returncode == 3
    assert gamebox("exec", "-i", kept, "--", "cat", stdin="given").stdout == "given"
    assert gamebox("exec", kept, "--session", "s", "--", "mkdir -p sub && cd sub && export A=1").returncode == 0
    assert gamebox("exec", kept, "--session", "s", "--", "echo $PWD $A").stdout == "/workspace/sub 1\n"
    gone = gamebox("exec", "no-such-sandbox", "--", "true")
    assert (gone.returncode, "gamebox ls" in gone.stderr) == (125, True)


def test_cp_goes_both_ways_and_keeps_what_is_there(kept: str, tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/a.txt").write_text("one")
    assert gamebox("cp", str(tmp_path / "in"), f"{kept}:tree").returncode == 0
    assert gamebox("cp", str(tmp_path / "in/deep/a.txt"), f"{kept}:tree").returncode == 0  # into the folder
    assert gamebox("cp", f"{kept}:tree/a.txt", "-").stdout == "one"
    target = tmp_path / "out"
    assert gamebox("cp", f"{kept}:tree", str(target)).returncode == 0
    assert (target / "deep/a.txt").read_text() == "one"
    mine = tmp_path / "a.txt"
    mine.write_text("mine")
    refused = gamebox("cp", f"{kept}:tree/a.txt", str(tmp_path))
    assert (refused.returncode, "--force" in refused.stderr, mine.read_text()) == (2, True, "mine")
    assert gamebox("cp", "--force", f"{kept}:tree/a.txt", str(tmp_path)).returncode == 0
    assert mine.read_text() == "one"
    assert gamebox("cp", "--force", f"{kept}:tree/nothing", str(tmp_path / "a.txt")).returncode == 2
    assert mine.read_text() == "one"


def test_logs_of_a_background_command(kept: str) -> None:
    gamebox("exec", kept, "--session", "bg", "--", "sh -c 'for n in 1 2 3; do echo line $n; sleep 0.2; done' & wait")
    several = gamebox("logs", kept)
    assert several.returncode == 2
    assert "Name one, as in: gamebox logs" in several.stderr
    ident = several.stderr.split()[0]
    assert gamebox("logs", kept, ident, "--tail", "1").stdout == "line 3\n"
    assert gamebox("logs", kept, ident, "--follow").stdout == "line 1\nline 2\nline 3\n"


def shell(*args: str) -> tuple[int, subprocess.Popen[bytes]]:
    """Our end of the terminal of a shell, and its process."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "shell", *args], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    return ours, process


def until(ours: int, words: bytes) -> None:
    """Read what the terminal shows until it has shown ``words``."""
    seen, end = b"", time.monotonic() + PATIENCE_SECONDS
    while words not in seen:
        assert time.monotonic() < end, seen
        if select.select([ours], [], [], 0.2)[0]:
            seen += os.read(ours, 65536)


def test_a_shell_can_be_that_of_another_user() -> None:
    """Review: `gamebox shell` had no --user; what is typed needs the same user as the command."""
    ours, process = shell("--profile", "root-on-request", "--user", "root", "--disk", "512m", "--memory", "256m")
    until(ours, b"# ")
    os.write(ours, b"exit $((7 + $(id -u)))\r")
    assert process.wait(PATIENCE_SECONDS) == 7
    os.close(ours)


def test_a_shell_has_a_terminal_keys_and_a_size(kept: str) -> None:
    ours, process = shell(kept)
    until(ours, b"$ ")
    os.write(ours, b"tty; sleep 1000\r")
    until(ours, b"/dev/pts/")
    time.sleep(0.3)
    os.write(ours, b"\x03")
    until(ours, b"$ ")  # bash may lose what is typed before its prompt
    os.write(ours, b"echo in''terrupted $?\r")
    until(ours, b"interrupted 130")
    os.write(ours, "echo ün'-'ï; exit 7\r".encode())
    until(ours, "ün-ï".encode())
    assert process.wait(PATIENCE_SECONDS) == 7
    os.close(ours)
