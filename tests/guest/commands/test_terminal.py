"""Terminals and pipes into commands; what is typed; what a process waits for; addresses of sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.guest.commands import terminal
from sandbox.guest.loop.reactor import Reactor
from sandbox.guest.protocol.faults import Fault
from sandbox.guest.watch import sockets, waiting

PATIENCE = 60.0


def serve_until(reactor: Reactor, done: Callable[[], bool]) -> None:
    """Serve the reactor until ``done``."""
    deadline = time.monotonic() + PATIENCE

    def look() -> None:
        if done() or time.monotonic() > deadline:
            reactor.stop()
        else:
            reactor.after(0.01, look)

    look()
    reactor.run()
    assert done()


@pytest.mark.parametrize(
    ("text", "keys", "on_terminal", "on_pipe"),
    [
        ("", [], [], []),
        ("a\nb\r\n", [], [b"a\rb\r"], [b"a\nb\r\n"]),
        ("\udcff", ["enter"], [b"\xff", b"\r"], [b"\xff", b"\n"]),
        ("", ["ctrl-c", "ctrl-d", "tab"], [b"\x03", b"\x04", b"\t"], [signal.SIGINT, None, b"\t"]),
        ("x", ["ctrl-\\", "space"], [b"x", b"\x1c", b" "], [b"x", signal.SIGQUIT, b" "]),
    ],
)
def test_what_typing_is(text: str, keys: list[str], on_terminal: list[object], on_pipe: list[object]) -> None:
    assert terminal.encode_input(text, keys, True) == on_terminal
    assert terminal.encode_input(text, keys, False) == on_pipe


def test_keys() -> None:
    assert terminal.encode_input("", ["up", "f5", "page-down", "backspace"], True) == [
        b"\x1b[A",
        b"\x1b[15~",
        b"\x1b[6~",
        b"\x7f",
    ]
    assert terminal.encode_input("", ["up", "end", "delete"], True, True) == [b"\x1bOA", b"\x1bOF", b"\x1b[3~"]
    for on_terminal in (True, False):
        with pytest.raises(Fault, match="no key 'up-up'"):
            terminal.encode_input("", ["up-up"], on_terminal)
    with pytest.raises(Fault, match="needs a terminal"):
        terminal.encode_input("", ["up"], False)


def open_pipe(reactor: Reactor) -> tuple[terminal.Input, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    return terminal.input_through(reactor, read, write), read


def test_a_pipe_that_fills_and_ends() -> None:
    reactor = Reactor()
    source, read = open_pipe(reactor)
    assert os.readlink(f"/proc/self/fd/{read}") == source.name
    source.write(b"x" * 500_000)
    assert 0 < source.pending < 500_000
    with pytest.raises(Fault) as caught:
        source.write(b"x" * terminal.MOST_PENDING_BYTES)
    assert caught.value.code == "invalid_arguments"
    source.close()
    assert not source.open
    with pytest.raises(Fault) as caught:
        source.write(b"x")
    assert caught.value.code == "stdin_closed"
    got = bytearray()

    def drain() -> None:
        while part := os.read(read, 65536):
            got.extend(part)

    reader = threading.Thread(target=drain)
    reader.start()
    serve_until(reactor, lambda: source.pending == 0 and source._fd < 0)
    reader.join(PATIENCE)
    assert (len(got), source.pending) == (500_000, 0)
    os.close(read)


def test_a_pipe_nobody_reads() -> None:
    source, read = open_pipe(Reactor())
    os.close(read)
    source.write(b"x")
    assert not source.open
    source.release()


def test_a_terminal_belongs_to_its_size_and_echoes() -> None:
    source, master, ends = terminal.open_terminal(Reactor(), 7, 33)
    assert source.terminal is not None
    assert terminal.read_window_size(ends[0]) == (7, 33)
    terminal.set_window_size(source.terminal, 8, 44)
    assert os.get_terminal_size(ends[1]) == (44, 8)
    assert not terminal.hides_input(source.terminal)
    settings = termios.tcgetattr(ends[0])
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(ends[0], termios.TCSANOW, settings)
    assert terminal.hides_input(source.terminal)
    assert os.ttyname(ends[2]) == source.name
    source.release()
    with pytest.raises(Fault) as caught:
        terminal.require_terminal(source, "c1")
    assert caught.value.code == "not_a_terminal"
    for fd in (master, *ends):
        os.close(fd)


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "kind", "detail"),
    [
        ("import time; time.sleep(300)", "sleep", "timer"),
        ("import signal; signal.pause()", "other", "pause"),
        ("import os; os.read(os.pipe()[0], 1)", "other", "reads from pipe:"),
        ("import os; a, b = os.pipe(); os.write(b, bytes(1 << 20))", "other", "writes to pipe:"),
        ("import socket; a, b = socket.socketpair(); a.recv(1)", "socket", "unix"),
        ("import socket, select; a, b = socket.socketpair(); select.select([a], [], [])", "socket", "unix"),
        ("import threading; threading.Lock().acquire() and threading.Event().wait()", "lock", "futex"),
        ("import sys; sys.stdin.read()", "stdin", "standard input"),
        ("while True: pass", "cpu", "computing"),
        ("import subprocess; subprocess.run(['sleep', '300'])", "sleep", "timer"),
        (
            "import fcntl, os, tempfile as t; f = t.TemporaryFile(); fcntl.lockf(f, 2); os.fork() and os.wait(); fcntl.lockf(f, 2)",
            "lock",
            "fcntl",
        ),
    ],
)
def test_what_a_process_waits_for(code: str, kind: str, detail: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdin is not None
        name = f"pipe:[{os.fstat(process.stdin.fileno()).st_ino}]"
        seen: list[object] = []

        def is_it() -> bool:
            found = waiting.explain_process(process.pid, name)
            if found is not None and found["kind"] == "child":
                found = waiting.explain_wait(process.pid, name)
            seen[:] = [found]
            return found is not None and found["kind"] == kind and detail in found["detail"]

        until(is_it)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def test_the_holder_of_a_lock_is_found_among_many_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lists about eighty of them in one read."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context((tmp_path / str(n)).open("w")).fileno() for n in range(200)]
        for fd in held:
            fcntl.flock(fd, fcntl.LOCK_EX)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=held) as other:

            def all_are_found() -> bool:
                monkeypatch.setattr(waiting, "_locks", waiting._Locks())  # who has looked a moment ago is answered from that
                holders = (waiting._describe_lock_holder(other.pid, fd) for fd in held)
                return all(f"held by process {os.getpid()} " in holder for holder in holders)

            assert any(all_are_found() for _ in range(3)), "others' locks come and go between the reads of one list"
            assert other.stdin is not None
            other.stdin.close()


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    until(lambda: waiting.explain_process(process.pid, None) is None)  # a zombie explains nothing
    process.wait()
    assert waiting.explain_wait(process.pid, None) is None


def test_names_of_sockets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port = server.getsockname()[1]

        def name(sock: socket.socket) -> str | None:
            return sockets.describe_socket(os.getpid(), str(os.fstat(sock.fileno()).st_ino))

        assert name(server) == f"tcp 127.0.0.1:{port} (listens)"
        assert name(client) == f"tcp 127.0.0.1:{client.getsockname()[1]} to 127.0.0.1:{port}"
    assert sockets.describe_socket(os.getpid(), "0x") is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F:0050", "127.0.0.1:80"),
        ("00000000000000000000000001000000:01BB", "[::1]:443"),
        ("nonsense", "nonsense"),
        ("00:1", "00:1"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert sockets.format_address(text) == address


@pytest.mark.parametrize("kind", ["terminal", "pipe"])
def test_what_was_typed_and_not_read_yet_is_known(kind: str) -> None:
    """A command that has just been given a line looks as if it waited for input until it is scheduled."""
    reactor = Reactor()
    if kind == "pipe":
        source, reader = open_pipe(reactor)
        opened = [reader]
    else:
        source, master, (reader, *others) = terminal.open_terminal(reactor, 24, 80)
        opened = [master, reader, *others]
    seen = [source.unread]
    source.write(b"a line\r" if kind == "terminal" else b"a line\n")
    until = time.monotonic() + PATIENCE
    while not source.unread and time.monotonic() < until:  # a terminal takes its time to pass a line on
        time.sleep(0.005)
    seen.append(source.unread)
    assert os.read(reader, 100) == b"a line\n"
    seen.append(source.unread)
    source.release()
    assert [*seen, source.unread] == [False, True, False, False]
    for fd in opened:
        os.close(fd)
