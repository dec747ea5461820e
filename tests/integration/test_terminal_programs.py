"""Programs that people use in a terminal, driven as a person does: look at the screen, type, look again."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterator

import docker
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.images.runtime import MOUNT_POINT
from sandbox.operations import ScreenResult

from .made_images import remove_image

# All in one worker: the image is made once.
pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("terminal programs"), pytest.mark.timeout(300)]

PATIENCE = 20.0
# gdb alone is not in gamebox/base (68 MB); the others are installed only where an older base lacks them.
RECIPE = b"""FROM gamebox/base
RUN apt-get update -q && apt-get install -y -q --no-install-recommends gdb less vim-tiny && rm -rf /var/lib/apt/lists/*
"""
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
int inner(int x) { return x + 1; }
int main(int argc, char **argv) {
    int got = inner(20);
    printf("got %d\\n", got);
    while (argc > 1) pause();
    return got;
}
"""


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> Iterator[str]:
    name = f"gamebox-test/{uuid.uuid4().hex}"
    client.images.build(fileobj=io.BytesIO(RECIPE), tag=name, rm=True, forcerm=True)
    yield name
    remove_image(client, name)


@pytest.fixture(scope="module")
def env(image: str) -> Iterator[DockerEnvironment]:
    with DockerEnvironment(image, limits=Limits(memory_bytes=512 << 20)) as made:
        yield made


class Driven:
    """A program in a terminal of its own of 12 lines; ``shows`` waits until the screen is as wanted."""

    def __init__(self, env: DockerEnvironment, command: str, rows: int = 12, cols: int = 60) -> None:
        self.env = env
        ran = env.run(command, pty=True, rows=rows, cols=cols, session=None, wait_seconds=0.05).unwrap()
        assert ran.running, ran.output
        self.id = ran.id

    def shows(self, wanted: str | Callable[[ScreenResult], object]) -> ScreenResult:
        """The screen once ``wanted`` is on it, or true of it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            shown = self.env.screen(self.id).unwrap()
            if wanted in shown.text if isinstance(wanted, str) else wanted(shown):
                return shown
            assert time.monotonic() < deadline, f"never shown: {wanted}\n{shown.to_text()}"
            time.sleep(0.02)

    def type(self, text: str = "", *keys: str) -> None:
        """Type it, then those keys."""
        self.env.send(self.id, text, keys=list(keys), wait_seconds=0).unwrap()

    def waits_for(self) -> str | None:
        """What it was found to wait for at this moment."""
        waiting = self.env.logs(self.id).unwrap().waiting_for
        return None if waiting is None else waiting.kind

    def ends(self) -> ScreenResult:
        """The last screen, once the program has ended and nothing of it is left."""
        shown = self.shows(lambda now: not now.running)
        assert self.env.logs(self.id).unwrap().left_running == 0
        return shown


def lines(shown: ScreenResult) -> list[str]:
    return shown.text.splitlines()


def at(row: int, col: int) -> Callable[[ScreenResult], bool]:
    return lambda shown: (shown.cursor_row, shown.cursor_col) == (row, col)


def test_vim(env: DockerEnvironment) -> None:
    env.write("notes.txt", "one\ntwo\n").unwrap()
    vim = Driven(env, "printf 'before\\n'; vi notes.txt")
    # Its message comes before the text.
    shown = vim.shows(lambda now: "notes.txt" in now.text and lines(now)[:3] == ["one", "two", "~"] and at(0, 0)(now))
    assert "before" not in shown.text
    vim.type("Gothree", "escape")
    assert lines(vim.shows(at(2, 4)))[:4] == ["one", "two", "three", "~"]
    vim.type("", "up", "up", "home")
    vim.shows(at(0, 0))
    vim.type("/two\n")
    vim.shows(at(1, 0))
    vim.type("dd")
    assert lines(vim.shows(lambda now: "two" not in lines(now)))[:2] == ["one", "three"]
    vim.type("u")
    vim.shows(lambda now: lines(now)[:3] == ["one", "two", "three"])
    env.resize(vim.id, 20, 100).unwrap()
    shown = vim.shows(lambda now: lines(now)[17:18] == ["~"])
    assert (shown.rows, shown.cols) == (20, 100)
    vim.type(":set number\n")
    assert lines(vim.shows(" 3 three"))[0].split() == ["1", "one"]
    vim.type(":wq\n")
    shown = vim.ends()
    assert (shown.exit_code, shown.text) == (0, "before")
    assert env.read("notes.txt").unwrap().content == "one\ntwo\nthree\n"


def test_vim_without_saving(env: DockerEnvironment) -> None:
    env.write("kept.txt", "as it was\n").unwrap()
    vim = Driven(env, "vi kept.txt")
    vim.shows("as it was")
    vim.type("x:q\n")
    vim.shows("E37")  # no write since the last change
    vim.type(":q!\n")
    assert vim.ends().exit_code == 0
    assert env.read("kept.txt").unwrap().content == "as it was\n"


def test_less(env: DockerEnvironment) -> None:
    env.run("seq 1 100 > numbers").unwrap()
    less = Driven(env, "printf 'before\\n'; less numbers", rows=10)
    shown = less.shows("numbers")
    assert lines(shown)[:9] == [str(n) for n in range(1, 10)]
    less.type(" ")
    less.shows(lambda now: lines(now)[:9] == [str(n) for n in range(10, 19)])
    less.type("", "down")
    less.shows(lambda now: lines(now)[0] == "11")
    less.type("", "page-up")
    less.shows(lambda now: lines(now)[0] == "2")
    less.type("/55\n")
    less.shows(lambda now: lines(now)[0] == "55")
    less.type("/none such\n")
    less.shows("Pattern not found")
    less.type("\n")
    less.shows(":")
    less.type("G")
    less.shows(lambda now: lines(now)[8:] == ["100", "(END)"])
    env.resize(less.id, 20, 60).unwrap()
    less.shows(lambda now: lines(now)[8:] == ["100", *["~"] * 10, "(END)"])
    less.type("g")
    less.shows(lambda now: lines(now)[:19] == [str(n) for n in range(1, 20)])
    less.type("q")
    shown = less.ends()
    assert (shown.exit_code, shown.text) == (0, "before")


def test_the_pager_of_another_program(env: DockerEnvironment) -> None:
    author = "-c user.name=a -c user.email=a@example.com"
    making = f"git init -q r && cd r && git {author} commit -q --allow-empty"
    env.run(f'{making} -m "$(seq -f "line %g" 60)"', session=None).unwrap()
    log = Driven(env, "GIT_PAGER=less git -C r log")
    assert lines(log.shows(lambda now: lines(now)[-1:] == [":"]))[0].startswith("commit ")
    log.type("G")
    log.shows("line 60")
    log.type("q")
    assert log.ends().exit_code == 0
    at_once = env.run(
        f"git -C r log | tail -1; git -C r {author} commit --allow-empty --amend", timeout_seconds=20
    ).unwrap()
    assert "line 60" in at_once.output
    assert (at_once.exit_code, "EDITOR" in at_once.output) == (1, True), "without a terminal nobody waits for an editor"


def test_gdb(env: DockerEnvironment) -> None:
    env.write("program.c", PROGRAM).unwrap()
    assert env.run("gcc -g -O0 -o program program.c").unwrap().exit_code == 0
    gdb = Driven(env, "gdb -q ./program", rows=40, cols=100)
    gdb.shows("(gdb)")
    gdb.type("break inner\n")
    gdb.shows("Breakpoint 1 at")
    gdb.type("run\n")
    gdb.shows("Breakpoint 1, inner (x=20)")
    gdb.type("backtrace\n")
    text = gdb.shows("in main (argc=1").text
    assert text.index("#0  inner (x=20)") < text.index("#1  ")
    gdb.type("print x * 2\n")
    gdb.shows("$1 = 40")
    gdb.type("continue\n")
    gdb.shows("exited with code 025]")  # 21, as gdb says it
    assert "got 21" in gdb.shows("(gdb)").text
    gdb.type("clear inner\n")
    gdb.shows("Deleted breakpoint 1")
    gdb.type("run forever\n")
    gdb.shows(lambda now: now.text.count("got 21") == 2)
    gdb.type("", "ctrl-c")
    gdb.shows("received signal SIGINT")
    gdb.type("quit\n")
    gdb.shows("Quit anyway? (y or n)")
    gdb.type("y\n")
    assert gdb.ends().exit_code == 0


def test_python(env: DockerEnvironment) -> None:
    python = Driven(env, "python3 -q", cols=80)
    python.shows(">>>")
    python.type("for n in range(2):\n")
    python.shows("...")
    python.type("    print('n is', n)\n\n")
    python.shows("n is 0\nn is 1\n>>>")
    python.type("1 / 0\n")
    python.shows("ZeroDivisionError: division by zero\n>>>")
    python.type("", "up")
    python.shows(lambda now: lines(now)[-1] == ">>> 1 / 0")
    python.type("", "backspace")
    python.type("4\n")
    python.shows("0.25\n>>>")
    python.type("import string\nstring.asc\t")
    python.shows("string.ascii_")
    python.type("letters[:3]\n")
    python.shows("'abc'")
    python.type("", "ctrl-d")
    assert python.ends().exit_code == 0


def test_a_shell_with_jobs(env: DockerEnvironment) -> None:
    shell = Driven(env, "PS1='$ ' bash --norc --noprofile -i", cols=80)
    assert shell.shows("$").text == "$", "no complaint that there is no job control"
    shell.type("sleep 300\n")
    shell.shows("sleep 300")
    deadline = time.monotonic() + PATIENCE
    while "Stopped" not in env.screen(shell.id).unwrap().text and time.monotonic() < deadline:
        env.send(shell.id, keys=["ctrl-z"], wait_seconds=0.2).unwrap()  # the shell itself does not mind it
    shell.shows("Stopped")
    shell.type("jobs; fg\n")
    shell.shows(lambda now: lines(now)[-1] == "sleep 300")
    deadline = time.monotonic() + PATIENCE
    while shell.waits_for() != "sleep" and time.monotonic() < deadline:  # only then does it have the terminal
        time.sleep(0.02)
    assert shell.waits_for() == "sleep"
    shell.type("", "ctrl-c")
    shell.shows(lambda now: lines(now)[-1] == "$")
    shell.type("echo $((6 * 7))\n")
    shell.shows("\n42\n")
    shell.type("", "ctrl-l")
    shell.shows(lambda now: now.text == "$" and now.cursor_row == 0)
    shell.type("exit 3\n")
    assert shell.ends().exit_code == 3


def test_top(env: DockerEnvironment) -> None:
    top = Driven(env, "top -d 0.2", rows=24, cols=80)
    assert "PID" in top.shows("load average").text
    top.type("q")
    assert top.ends().exit_code == 0


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_boxes(env: DockerEnvironment, locale: str) -> None:
    program = "import curses; curses.wrapper(lambda w: (w.box(), w.addstr(1, 1, 'quick'), w.getch()))"
    box = Driven(env, f'LC_ALL={locale} python3 -c "{program}"', rows=4, cols=10)
    assert lines(box.shows("┘"))[:2] == ["┌────────┐", "│quick   │"]
    box.type("x")
    assert box.ends().exit_code == 0


def test_openssl_asks_for_a_password(env: DockerEnvironment) -> None:
    asked = Driven(env, "openssl passwd -5 -salt abcdefgh")
    waiting = asked.shows(lambda now: now.text == "Password:" and now.waiting_for is not None).waiting_for
    assert waiting is not None
    assert (waiting.kind, "password" in waiting.detail) == ("stdin", True)
    assert "secret" not in asked.shows("Password:").text
    asked.type("secret\n")
    shown = asked.ends()
    assert (shown.exit_code, "secret" in shown.text, "$5$abcdefgh$" in shown.text) == (0, False, True)


def test_git_asks_for_credentials(env: DockerEnvironment) -> None:
    asking = Driven(env, "printf 'protocol=https\\nhost=example.com\\n\\n' | git credential fill", cols=80)
    asking.shows("Username for 'https://example.com':")
    asking.type("ann\n")
    asking.shows("Password for 'https://ann@example.com':")
    asking.type("secret\n")
    shown = asking.ends()
    assert shown.exit_code == 0
    assert [line for line in lines(shown) if "secret" in line] == ["password=secret"]
    assert MOUNT_POINT not in shown.text
