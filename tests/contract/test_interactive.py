"""Commands that are talked with: terminals, keys, screens, what a command waits for."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from sandbox import FakeEnvironment, LocalEnvironment
from sandbox.envelope import Envelope
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.guest.commands.launch.spawner import MOST_SPARES
from sandbox.operations import RunResult, ScreenResult, SendResult
from sandbox.testing import Ran

from .backends import SHELL
from .checks import begun, by_programs, codes_of, done, refused, with_more_time

pytestmark = pytest.mark.needs(SHELL)
# How long a test waits for what should come at once.
PATIENCE = 60.0
# A full-screen program: draws where keys have moved it, follows the size of its terminal, ends at q.
FULL_SCREEN = """
import curses
def main(window):
    keys = []
    while True:
        window.erase()
        window.addstr(1, 3, f"{curses.LINES}x{curses.COLS} " + " ".join(keys)); window.move(2, 5); window.refresh()
        key = curses.keyname(window.getch()).decode()
        if key == "q":
            return
        if key == "KEY_RESIZE":
            curses.update_lines_cols()
        keys.append(key)
curses.wrapper(main)
"""


def start(env: SandboxedEnvironment, command: str, **options: object) -> RunResult:
    """A command that has not ended after a moment."""
    envelope = env.run(command, **{"wait_seconds": 0.1, "session": None, **options})  # type: ignore[arg-type]
    ran = done(envelope)
    assert (ran.running, ran.exit_code, codes_of(envelope)[:1]) == (True, None, ["still_running"])
    return ran


def wait_kind(env: SandboxedEnvironment, ident: str, kind: str, words: str = "") -> str:
    """The detail of what a command waits for, once it is of that kind and has ``words`` in it."""
    seen = None
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        seen = done(env.logs(ident)).waiting_for
        if seen is not None and seen.kind == kind and words in seen.detail:
            return seen.detail
        time.sleep(0.02)
    raise AssertionError(f"never waited for {kind}, but {seen}")


def screen_with(env: SandboxedEnvironment, ident: str, text: str) -> ScreenResult:
    """The screen once it shows ``text``."""
    deadline = time.monotonic() + PATIENCE
    while text not in (shown := done(env.screen(ident))).text:
        assert time.monotonic() < deadline, shown.text
        time.sleep(0.02)
    return shown


def says(env: SandboxedEnvironment, ident: str, text: str, wanted: str, **options: object) -> SendResult:
    """The answer to ``text``, in which ``wanted`` stands, however long it takes."""
    sent = done(env.send(ident, text, **{"wait_seconds": 5, **options}))  # type: ignore[arg-type]
    output = sent.output
    deadline = time.monotonic() + PATIENCE
    while wanted not in output:
        assert time.monotonic() < deadline, output
        sent = done(env.send(ident, wait_seconds=0.2)) if sent.running else sent
        output += sent.output
    return sent


# --- standard input that stays open -----------------------------------------------------------------------------------------


def test_a_command_that_asks_is_answered(env: SandboxedEnvironment) -> None:
    def asked(envelope: Envelope[RunResult]) -> bool:
        ran = done(envelope)
        if asks := ran.output == "name? " and ran.waiting_for is not None:
            return asks
        done(env.kill(ran.id))  # its session is busy until then
        return False

    command = "printf 'name? '; read x; echo \"hello $x\""
    envelope = with_more_time(lambda seconds: env.run(command, wait_seconds=seconds, session="talk"), asked)
    ran = done(envelope)
    assert (ran.running, ran.output, ran.exit_code) == (True, "name? ", None)
    assert ran.waiting_for is not None
    assert (ran.waiting_for.kind, ran.waiting_for.program in ("bash", "sh")) == ("stdin", True)
    assert f"send(id='{ran.id}', text='...\\n')" in envelope.notices[0].hint
    assert "waits for input on stdin" in envelope.notices[0].message
    assert f"[still running with id {ran.id}]" in ran.to_text()
    answer = done(env.send(ran.id, "Ann\n", wait_seconds=PATIENCE))
    assert (answer.output, answer.running, answer.exit_code, answer.screen) == ("hello Ann\n", False, 0, None)
    refused(env.send(ran.id, "more"), "command_ended", ran.id, "exit code 0")
    assert done(env.run("printf next", session="talk")).output == "next"


def test_the_session_is_busy_until_the_command_ends(env: SandboxedEnvironment) -> None:
    ran = start(env, "read x; export TALKED=$x", session="talk")
    done(env.send(ran.id, "done\n", wait_seconds=0))
    assert done(env.run('printf %s "$TALKED"; unset TALKED', session="talk")).output == "done"


def test_input_and_its_end(env: SandboxedEnvironment) -> None:
    ran = start(env, "cat; printf over")
    assert says(env, ran.id, "one\n", "one\n").running
    says(env, ran.id, "two\n", "two\nover", eof=True)
    assert done(env.wait_for(id=ran.id, exit=True, timeout_seconds=PATIENCE)).exit_code == 0
    ran = start(env, "cat >/dev/null; printf over")
    says(env, ran.id, "", "over", keys=["ctrl-d"])
    assert done(env.wait_for(id=ran.id, exit=True, timeout_seconds=PATIENCE)).exit_code == 0
    ran = start(env, "sleep 30 <&0; cat", stdin="all of it")
    refused(env.send(ran.id, "more"), "stdin_closed", ran.id, "wait_seconds")
    done(env.kill(ran.id))


def test_more_input_than_is_read(env: SandboxedEnvironment) -> None:
    ran = start(env, "sleep 300")
    for _ in range(4):
        sent = done(env.send(ran.id, "x" * 65536, wait_seconds=0))
    assert 0 < sent.pending_bytes < 4 * 65536
    assert "were not read yet" in sent.to_text()
    for _ in range(20):
        last = env.send(ran.id, "x" * 65536, wait_seconds=0)
    refused(last, "invalid_arguments", "were not read yet")
    done(env.kill(ran.id))


def test_interrupt_without_a_terminal(env: SandboxedEnvironment) -> None:
    ran = start(env, "sleep 300; echo never")
    wait_kind(env, ran.id, "sleep")  # before that, the shell may be about to start it, and miss the signal as any shell does
    sent = done(env.send(ran.id, keys=["ctrl-c"], wait_seconds=PATIENCE))
    assert (sent.running, sent.signal, sent.output) == (False, "SIGINT", "")
    background = done(env.run("sleep 300", background=True))
    wait_kind(env, background.id, "sleep")
    refused(env.send(background.id, "x"), "stdin_closed", background.id)
    assert done(env.send(background.id, keys=["ctrl-c"], wait_seconds=PATIENCE)).signal == "SIGINT"


def test_it_ends_before_patience_does(env: SandboxedEnvironment) -> None:
    envelope = env.run("printf early; exit 3", wait_seconds=PATIENCE)
    assert (done(envelope).output, done(envelope).exit_code, codes_of(envelope)) == ("early", 3, [])


def test_in_the_background(env: SandboxedEnvironment) -> None:
    ran = with_more_time(
        lambda seconds: start(env, "printf up; read x; exit 4", background=True, wait_seconds=seconds, session="default"),
        lambda ran: ran.output == "up",
    )
    assert ran.output == "up"
    assert done(env.run("printf free")).output == "free"
    assert done(env.send(ran.id, "go\n", wait_seconds=PATIENCE)).exit_code == 4


def test_the_hard_timeout_still_holds(env: SandboxedEnvironment) -> None:
    marker = f"sleep {os.getpid() * 1000 + 77}"
    command = f"{marker} & setsid {marker} & read x"
    _, ran = begun(lambda most: env.run(command, pty=True, wait_seconds=0.1, timeout_seconds=most, session=None))
    assert ran.running
    deadline = time.monotonic() + PATIENCE
    while (logs := done(env.logs(ran.id))).running:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (logs.signal, logs.left_running) == ("SIGKILL", 0)
    counted = done(env.run(f"grep -lz '^{marker[6:]}$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l")).output
    assert counted.strip() == "0"
    refused(env.send(ran.id, "x"), "command_ended", "did not end within")


# --- what it waits for --------------------------------------------------------------------------------------------------------

LISTENER = "import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()"
SELECTOR = "import selectors, sys; s = selectors.DefaultSelector(); s.register(0, 1); s.select()"
THREADS = "import threading, time; t = threading.Thread(target=time.sleep, args=(300,)); t.start(); t.join()"
WAITS = [
    ("read x", "stdin", "standard input"),
    ("cat | sort", "stdin", "standard input"),
    (f'python3 -c "{SELECTOR}"', "stdin", "standard input"),
    ("python3 -c 'import select; select.select([0], [], [])'", "stdin", "standard input"),
    ("python3 -c 'import select; p = select.poll(); p.register(0, 1); p.poll()'", "stdin", "standard input"),
    ("exec 9>LOCK; flock 9; flock LOCK true", "lock", "flock"),
    (f'python3 -c "{LISTENER}"', "socket", "tcp 127.0.0.1:"),
    ("sleep 300", "sleep", "timer"),
    ("sleep 300 & wait", "sleep", "timer"),
    (f'python3 -c "{THREADS}"', "sleep", "timer"),
    ("while :; do :; done", "cpu", "computing"),
    ("mkfifo FIFO; cat FIFO", "other", "FIFO"),
    ("sh -c 'kill -STOP $$'", "other", "stopped"),
]


@pytest.mark.parametrize(("command", "kind", "detail"), by_programs(*WAITS), ids=[command[:30] for command, _, _ in WAITS])
def test_what_it_waits_for(env: SandboxedEnvironment, folder: str, command: str, kind: str, detail: str) -> None:
    ran = start(env, command, cwd=folder)
    assert detail in wait_kind(env, ran.id, kind, detail)
    done(env.kill(ran.id))
    assert done(env.logs(ran.id)).waiting_for is None


@pytest.mark.needs("debian")
def test_who_holds_a_lock(env: SandboxedEnvironment, folder: str) -> None:
    holder = start(env, "exec flock -o LOCK sleep 300", cwd=folder)
    wait_kind(env, holder.id, "sleep")
    ran = start(env, "flock LOCK true", cwd=folder)
    detail = wait_kind(env, ran.id, "lock", "held by process")
    assert f"/{folder}/LOCK" in detail
    assert "held by process" in detail
    done(env.kill(holder.id))
    assert done(env.send(ran.id, wait_seconds=PATIENCE)).exit_code == 0


# --- terminals ----------------------------------------------------------------------------------------------------------------


def test_a_terminal(env: SandboxedEnvironment) -> None:
    ran = done(env.run("stty size; printf %s $TERM", pty=True, rows=30, cols=99))
    assert ran.output == "30 99\r\nxterm-256color"
    assert (ran.stdout, ran.stderr, ran.exit_code) == (ran.output, "", 0)
    assert done(env.run("printf a; printf b >&2; printf c >/dev/tty", pty=True)).stdout == "abc"
    assert done(env.run("printf %s $TERM")).output == "dumb"
    assert done(env.run('test -O "$(tty)" && printf mine', pty=True)).output == "mine"
    assert done(env.run("exec <&- >&- 2>&-; exec >/dev/tty; printf back", pty=True)).output == "back"
    refused(env.screen(done(env.run("true")).id), "not_a_terminal", "pty=true")


def test_what_a_command_leaves_in_its_terminal_is_not_lost(env: SandboxedEnvironment) -> None:
    ran = done(env.run("seq 20000", pty=True, keep_output_bytes=1 << 18))
    assert ran.output.split() == [str(n) for n in range(1, 20001)]


@pytest.mark.needs("python")
def test_python_as_a_person_uses_it(env: SandboxedEnvironment) -> None:
    ran = start(env, "python3 -iq", pty=True)
    screen_with(env, ran.id, ">>>")
    answer = says(env, ran.id, "6 * 7\n", "42")
    assert answer.screen is not None
    assert ">>> 6 * 7\n42\n>>>" in screen_with(env, ran.id, "42\n>>>").text
    done(env.send(ran.id, "while True: pass\n\n", wait_seconds=0))
    wait_kind(env, ran.id, "cpu")
    deadline = time.monotonic() + PATIENCE
    while "KeyboardInterrupt" not in done(env.screen(ran.id)).text and time.monotonic() < deadline:
        done(env.send(ran.id, keys=["ctrl-c"], wait_seconds=1))  # one that comes before the loop is begun has no effect
    shown = screen_with(env, ran.id, "KeyboardInterrupt\n>>>")
    assert (shown.cursor_row, shown.cursor_col) == (len(shown.text.splitlines()) - 1, 4)
    says(env, ran.id, "1\n", "1\r\n>>>")  # else Python would end as interrupted
    ended = done(env.send(ran.id, keys=["ctrl-d"], wait_seconds=PATIENCE))
    assert (ended.running, ended.exit_code) == (False, 0)
    assert "KeyboardInterrupt" in done(env.screen(ran.id)).text


@pytest.mark.parametrize(
    "command",
    by_programs(
        "read -s -p 'Password: ' x; echo; echo \"it was $x\"",
        "python3 -c 'import getpass; print(\"it was\", getpass.getpass())'",
    ),
)
def test_a_password_is_not_shown(env: SandboxedEnvironment, command: str) -> None:
    ran = start(env, command, pty=True)
    screen_with(env, ran.id, "Password:")
    assert "password" in wait_kind(env, ran.id, "stdin")
    assert done(env.send(ran.id, "secret\n", wait_seconds=PATIENCE)).exit_code == 0
    text = done(env.screen(ran.id)).text
    assert (text.count("secret"), "it was secret" in text) == (1, True)


@pytest.mark.needs("python")
def test_a_full_screen_program(env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/full.py", FULL_SCREEN))
    ran = start(env, "printf before; python3 full.py", pty=True, cwd=folder, rows=10, cols=40)
    shown = screen_with(env, ran.id, "10x40")
    assert (shown.text, shown.rows, shown.cols) == ("\n   10x40", 10, 40)
    assert (shown.cursor_row, shown.cursor_col, shown.skipped_bytes) == (2, 5, 0)
    done(env.send(ran.id, "a", keys=["up", "f1", "page-down", "backspace", "enter"], wait_seconds=0))
    screen_with(env, ran.id, "a KEY_UP KEY_F(1) KEY_NPAGE")
    sized = done(env.resize(ran.id, 12, 100))
    assert (sized.rows, sized.cols) == (12, 100)
    shown = screen_with(env, ran.id, "12x100")
    assert "KEY_RESIZE" in shown.text
    assert done(env.send(ran.id, "q", wait_seconds=PATIENCE)).exit_code == 0
    assert done(env.screen(ran.id)).text == "before"


def test_resize_is_seen_by_stty(env: SandboxedEnvironment) -> None:
    ran = start(env, "stty size; while read x; do stty size; done", pty=True)
    screen_with(env, ran.id, "24 80")
    done(env.resize(ran.id, 50, 132))
    says(env, ran.id, "\n", "50 132")
    done(env.kill(ran.id))
    refused(env.resize(ran.id, 5, 5), "command_ended", ran.id)
    pipe = start(env, "cat")
    refused(env.resize(pipe.id, 5, 5), "not_a_terminal", pipe.id)
    refused(env.send(pipe.id, keys=["up"]), "invalid_arguments", "'up' needs a terminal")
    refused(env.send(pipe.id, keys=["hyper-x"]), "invalid_arguments", "'hyper-x'", "page-down")
    done(env.kill(pipe.id))


def test_unknown_commands(env: SandboxedEnvironment) -> None:
    refused(env.send("c999999", "x"), "unknown_command", "'c999999'")
    refused(env.screen("c999999"), "unknown_command", "'c999999'")
    refused(env.resize("c999999", 5, 5), "unknown_command", "'c999999'")


def test_hostile_terminals_are_drawn_all_the_same(env: SandboxedEnvironment) -> None:
    junk = r"printf '\033[%s;5mX\033[9999999999999999;1H\033]2;' $(head -c 5000 /dev/zero | tr '\0' 9); head -c 300000 /dev/urandom"
    ran = start(env, f"{junk}; printf '\\033c\\033[H\\033[2Jlast words'; read x", pty=True)
    wait_kind(env, ran.id, "stdin")
    shown = done(env.screen(ran.id))
    assert "last words" in shown.text
    assert len(shown.title) <= 200
    done(env.kill(ran.id))


# --- what is left ------------------------------------------------------------------------------------------------------------


def test_no_descriptor_and_no_process_is_left() -> None:
    with LocalEnvironment() as env:
        assert env.backend.process is not None
        guest = Path(f"/proc/{env.backend.process.pid}")

        def talk() -> int:
            for pty in (True, False):
                ran = start(env, "read x; sleep 300 & exit 0", pty=pty)
                done(env.send(ran.id, "\n", wait_seconds=PATIENCE))
                done(env.kill(ran.id))
                refused(env.run("true", pty=pty, cwd="none", wait_seconds=1), "working_directory_invalid")
                done(env.kill(start(env, "cat", pty=pty).id))
            return len(list((guest / "fd").iterdir()))

        first = talk()
        assert max(talk() for _ in range(4)) <= first + MOST_SPARES  # six commands each; how many runners wait ready varies
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # others' processes end meanwhile
                assert path.read_text().rsplit(")", 1)[1].split()[:2] != ["Z", str(env.backend.process.pid)]


def test_the_fake_says_what_it_cannot() -> None:
    env = FakeEnvironment(commands={"ls": "a\n", "slow": Ran(seconds=30)})
    assert done(env.run("ls", wait_seconds=1)).output == "a\n"
    refused(env.run("slow", wait_seconds=1), "operation_not_supported", "LocalEnvironment")
    refused(env.run("ls", pty=True), "operation_not_supported", "LocalEnvironment")
    ident = done(env.run("slow", background=True)).id
    refused(env.send(ident, "x"), "operation_not_supported", "send")
    refused(env.screen(ident), "operation_not_supported", "screen")
    refused(env.send("c9"), "unknown_command")
    done(env.kill(ident))
    refused(env.send(ident, "x"), "command_ended")
