"""Speak to an engine of another host through ssh: each connection is an ``ssh`` that runs ``docker system dial-stdio`` there.

The user's own ssh does it, with the keys, names and options of its configuration; docker-py would bring an ssh of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from urllib.parse import unquote, urlsplit

from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool

from sandbox.errors import ErrorCode, SandboxError

# Of ssh itself, until it is connected.
_CONNECT_SECONDS = 15
_LAST_WORDS_BYTES = 4096
_END_SECONDS = 2.0
_lock = threading.Lock()
_running: list[subprocess.Popen[bytes]] = []


def command(address: str) -> list[str]:
    """Return the command that connects its standard input and output with the engine at ``ssh://[USER@]HOST[:PORT][/SOCKET]``.

    Raises SandboxError ``invalid_configuration``.
    """
    try:
        parts = urlsplit(address)
        host, port = _host(parts.netloc), parts.port
        name = unquote(parts.username or "", errors="strict")
    except ValueError:
        host, port, name = "", None, ""
    if not host or not name.isprintable() or parts.password is not None or parts.query or parts.fragment:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"{address!r} does not name an engine over ssh.",
            "Use ssh://USER@HOST, with :PORT or /PATH/OF/THE/SOCKET behind it if they are not the usual ones; keys belong into "
            "the configuration of ssh.",
        )
    user = ["-l", name] if name else []
    named = ["-p", str(port)] if port else []
    there = ["--host", f"unix://{parts.path}"] if parts.path.strip("/") else []
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
    return ["ssh", *options, *user, *named, "--", host, *map(_quoted, ["docker", *there, "system", "dial-stdio"])]


def _host(netloc: str) -> str:
    """Return the host as it was written: names in ssh's configuration have a case, and ``hostname`` has not."""
    place = netloc.rpartition("@")[2]
    return place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]


def dial(address: str) -> socket.socket:
    """Return a new connection to the engine. It ends with its ssh, and its ssh with it. Raises OSError, SandboxError."""
    return _dial(address, subprocess.DEVNULL)[0]


def _dial(address: str, stderr: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            # In a session of its own: Ctrl-C is for this process, which ends the connection when it has tidied up.
            process = subprocess.Popen(
                command(address), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=stderr, start_new_session=True
            )
        except BaseException:
            ours.close()
            raise
    with _lock:
        _running[:] = [each for each in _running if each.poll() is None]
        _running.append(process)
    return ours, process


def _end_all() -> None:
    """End what is left at the end of the interpreter, as the end of its connections would."""
    for process in _running:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if process.poll() is None:
                process.terminate()
                process.wait(_END_SECONDS)


# What tidies up over such connections is registered later, and so is called before.
atexit.register(_end_all)


def explain(address: str) -> str:
    """Return what ssh says if it cannot reach the engine, "" if it can, or says nothing."""
    # A file, since ssh would wait for a reader of a pipe that is full.
    with tempfile.TemporaryFile() as words:
        return _explained(address, words.fileno())


def _explained(address: str, words: int) -> str:
    ours, process = _dial(address, words)
    with ours:
        ours.settimeout(_CONNECT_SECONDS + 1)
        with contextlib.suppress(OSError):
            ours.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            if ours.recv(1):
                return ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
        said = os.pread(words, _LAST_WORDS_BYTES, max(0, os.fstat(words).st_size - _LAST_WORDS_BYTES))
        lines = said.decode("utf-8", "backslashreplace").strip().splitlines()
        return lines[-1] if lines else f"ssh ended with {process.returncode}"
    return ""


def _quoted(word: str) -> str:
    """Return a word for the shell of the other host, which reads what ssh has joined."""
    return word if word.replace("-", "").isalnum() else "'" + word.replace("'", "'\\''") + "'"


class SshConnection(UnixHTTPConnection):
    """A connection through ssh. ``unix_socket`` is the engine's address."""

    def connect(self) -> None:
        """Connect. Raises OSError, SandboxError."""
        self.sock = dial(self.unix_socket)
        self.sock.settimeout(self.timeout)


class SshPool(UnixHTTPConnectionPool):
    """Connections through ssh."""

    def _new_conn(self) -> SshConnection:  # type: ignore[override]
        return SshConnection(self.base_url, self.socket_path, self.timeout)  # type: ignore[arg-type]
