"""The command ``gamebox shell``: a shell with a terminal in a sandbox."""

from __future__ import annotations

import codecs
import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast

import typer

from .errors import bad_input
from .run import USER_HELP, running, status_of
from .sandbox_options import OF_KEPT, Kept, sandbox_of, variable_of, with_sandbox_options
from .status_line import progress

if TYPE_CHECKING:
    from sandbox.client.environment import RemoteEnvironment
    from sandbox.client.terminal import RemoteTerminal
    from sandbox.environment.sandboxed import SandboxedEnvironment

EPILOG = """Examples:

  gamebox shell

  gamebox shell --image gamebox/codeact --workspace ./mylib

  gamebox shell work
"""
# The largest terminal of a sandbox.
_MOST_ROWS, _MOST_COLUMNS = 100, 300
_READ_BYTES = 4096


@with_sandbox_options(without=OF_KEPT)
def shell(
    sandbox: str | None = typer.Argument(
        None, metavar="[SANDBOX]", help="Id or name of a kept sandbox; a fresh one if left out."
    ),
    user: str | None = typer.Option(None, metavar="USER", help=USER_HELP),
    take_over: bool = typer.Option(False, "--take-over", help="Take the sandbox from a process that is using it."),
    **asked: Any,
) -> None:
    """Open a shell in a fresh sandbox, or in a kept one. Leave it with exit or Ctrl-D; a fresh sandbox ends with it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise bad_input(
            "gamebox shell needs a terminal.",
            "Run one command with: gamebox run -- COMMAND, or gamebox exec SANDBOX -- COMMAND.",
        )
    variables = dict(variable_of(text) for text in asked.pop("env"))
    from sandbox.operations.terminals import SHELL

    with progress() as report:
        made = sandbox_of(asked, kept=Kept(inside=sandbox, take_over=take_over), report=report)
        with running(made) as environment:
            report.done()
            last = attach_terminal(environment, list(SHELL), variables, user)
    raise typer.Exit(status_of(last.exit_code, last.signal))


class Ended(Protocol):
    """How a command has ended."""

    @property
    def exit_code(self) -> int | None:
        """Its exit code, if it has one."""

    @property
    def signal(self) -> str | None:
        """The signal that ended it, if one did."""


def attach_terminal(
    env: SandboxedEnvironment, argv: list[str], variables: dict[str, str], user: str | None = None
) -> Ended:
    """Run ``argv`` in a terminal connected to this process's own, until it ends; return its last state.

    The user's input goes in byte for byte (Ctrl-C too), and the terminal takes the window's size. ``user`` is the user of the image
    to run as. Raises SandboxError.
    """
    if hasattr(env, "terminal") and find_spec("websockets") is not None:
        return _attach_remote(cast("RemoteEnvironment", env), argv, variables, user)
    from sandbox.pipe.following import follow_logs

    rows, columns = _window()
    options: dict[str, Any] = {"background": True, "pty": True, "rows": rows, "cols": columns, "session": None}
    started = env.run(argv=argv, env=variables, user=user, **options).unwrap()
    with _raw(sys.stdin.fileno()), _Typing(_Requests(env, started.id, user)):
        for logs in follow_logs(env.logs, started.id):
            _show(logs.content_bytes)
    return logs


def _attach_remote(
    env: RemoteEnvironment, argv: list[str], variables: dict[str, str], user: str | None
) -> Ended:
    rows, columns = _window()
    with env.terminal(argv, env=variables, user=user, rows=rows, cols=columns) as terminal:
        with _raw(sys.stdin.fileno()), _Typing(_Wire(terminal)):
            terminal.run(_show)
        return terminal


def _show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


class _Keys(Protocol):
    """Where the user's input goes."""

    def write(self, data: bytes) -> bool:
        """Type it; return whether there is more to type into."""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal."""

    def hang_up(self) -> None:
        """The terminal here is gone: end the command."""


class _Requests:
    """Types with the operations of an environment."""

    def __init__(self, env: SandboxedEnvironment, command: str, user: str | None) -> None:
        self._env, self._command, self._user = env, command, user
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> bool:
        """See ``_Keys``."""
        text = self._decoder.decode(data)
        return not text or self._env.send(self._command, text, wait_seconds=0, user=self._user).ok

    def resize(self, rows: int, columns: int) -> None:
        """See ``_Keys``."""
        self._env.resize(self._command, rows, columns, user=self._user)

    def hang_up(self) -> None:
        """See ``_Keys``."""
        self._env.kill(self._command, user=self._user)


class _Wire:
    """Types over the WebSocket of a terminal of a service."""

    def __init__(self, terminal: RemoteTerminal) -> None:
        self._terminal = terminal

    def write(self, data: bytes) -> bool:
        """See ``_Keys``."""
        self._terminal.write(data)
        return True

    def resize(self, rows: int, columns: int) -> None:
        """See ``_Keys``."""
        self._terminal.resize(rows, columns)

    def hang_up(self) -> None:
        """See ``_Keys``."""
        self._terminal.kill()


class _Typing:
    """Passes the user's input and the size of the window on to the command, during a ``with`` block."""

    def __init__(self, keys: _Keys) -> None:
        self._keys = keys
        self._awake, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="typing", daemon=True)

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGWINCH, lambda *_: os.write(self._wake, b"w"))
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._before)
        os.write(self._wake, b"q")
        self._thread.join(2)
        os.close(self._awake)
        os.close(self._wake)

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([sys.stdin.fileno(), self._awake], [], [])
            if self._awake in ready:
                if b"q" in os.read(self._awake, 64):
                    return
                self._keys.resize(*_window())
            if sys.stdin.fileno() in ready and not self._type(os.read(sys.stdin.fileno(), _READ_BYTES)):
                return

    def _type(self, data: bytes) -> bool:
        if not data:  # the terminal is gone
            self._keys.hang_up()
            return False
        return self._keys.write(data)


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _window() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return min(size.lines, _MOST_ROWS), min(size.columns, _MOST_COLUMNS)
