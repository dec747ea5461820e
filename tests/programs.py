"""``gamebox`` as a process of its own, without the second that each start costs: forked from one that has imported everything.

For tests of what the command does, and for services. Tests of how a process starts, or that send a command signals or give it a
terminal, start a real one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MOST_REQUEST_BYTES = 1 << 20


def run_gamebox(
    *args: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    input: str | None = None,  # noqa: A002 - as subprocess.run
    timeout: float = 240.0,
) -> subprocess.CompletedProcess[str]:
    """Run the command as ``subprocess.run`` would, with its output captured as text. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((input or "").encode("utf-8", "surrogateescape"))
        given.seek(0)
        started = Program([str(arg) for arg in args], (given, out, err), env=env, cwd=cwd)
        try:
            status = started.wait(timeout)
        except subprocess.TimeoutExpired:
            started.send_signal(signal.SIGKILL)
            raise subprocess.TimeoutExpired(started.args, timeout, _text(out), _text(err)) from None
        return subprocess.CompletedProcess(started.args, status, _text(out), _text(err))


class Program:
    """``gamebox`` with arguments, under way: what tests use of ``subprocess.Popen``. ``files`` become its descriptors 0 to 2."""

    def __init__(
        self,
        args: Sequence[str],
        files: tuple[IO[Any], IO[Any], IO[Any]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.args = ["gamebox", *args]
        self._status: int | None = None
        request = {"args": list(args), "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd())}
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # else pid and status may come as one
        with theirs:
            fds = [*(each.fileno() for each in files), theirs.fileno()]
            socket.send_fds(_server()[0], [json.dumps(request).encode()], fds)
        self.pid = int(self._answers.recv(64))

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self._status is None:
            self._answers.settimeout(timeout)
            try:
                self._status = int(self._answers.recv(64))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._answers.close()
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing if the process has ended."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "surrogateescape")


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that the others are forked from, and the way to it; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        ours.setsockopt(socket.SOL_SOCKET, option, MOST_REQUEST_BYTES)
    started = subprocess.Popen([sys.executable, "-m", "tests.programs", str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    return ours, started


def _serve(requests: socket.socket) -> None:
    _import_all()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, MOST_REQUEST_BYTES, 4)
        if not data:
            return
        if b'"--model"' in data:
            from agent.model import litellm_import

            litellm_import._loaded()  # four seconds, once
            gc.freeze()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _run(json.loads(data), fds)
            return
        for fd in fds:
            os.close(fd)


def _import_all() -> None:
    """Import what commands import when they need it, so that no child does it again: 0.3 seconds in each run of an agent.

    Not the adapters, whose frameworks are not there.
    """
    import agent
    import sandbox

    for package in (agent, sandbox):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(("sandbox.guest.", "sandbox.integrations.", "sandbox.testing", "sandbox.pytest_plugin")):
                importlib.import_module(module.name)
    for name in ("jsonschema", "typer.rich_utils", "yaml"):
        importlib.import_module(name)


def _run(request: dict[str, Any], fds: list[int]) -> None:
    """Run one command in a child of this process, and report its pid and its exit status."""
    pid = os.fork()
    if pid == 0:
        _become(request, fds)  # leaves as the command does
        raise AssertionError
    with socket.socket(fileno=fds[3]) as answers:
        answers.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        answers.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    for number in range(3):
        os.dup2(fds[number], number)
    for fd in fds:
        os.close(fd)
    # Those that Python has made know of the old files whether they can be searched.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # it may have another TMPDIR
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["args"]]
    sys.modules["__main__"].__dict__.update(__package__=None, __spec__=None)  # typer looks there for the program's name
    from agent.cli.app import main

    try:
        main()
        status = 0
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        status = error.code or 0
    # As at the end of any Python program, but without taking apart all that was imported, which takes longer than most commands.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
