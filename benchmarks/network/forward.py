"""A download over ``env.forward()`` beside one over a plain relay of sockets on the host, in turns."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measuring import Row, take_turns
from sandbox import DockerEnvironment

PIECE = 1 << 16
# Sends as many bytes as it is asked for; the same program in the sandbox and on the host.
SERVER = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
print(server.getsockname()[1], flush=True)
piece = bytes(1 << 16)

def serve(sock):
    with sock:
        left = int(sock.recv(64))
        while left:
            left -= sock.send(piece[:left])

while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


def download(port: int, size: int) -> float:
    """MB/s of so many bytes from a port of this host."""
    buffer, left, began = bytearray(1 << 18), size, time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(str(size).encode())
        while left:
            got = sock.recv_into(buffer)
            assert got, f"{left} bytes are missing"
            left -= got
    return size / (time.perf_counter() - began) / 1e6


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def relay(behind: int) -> Iterator[int]:
    """A port of this host that leads to another one, as plainly as can be: a thread for each direction."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, far = server.accept()[0], socket.create_connection(("127.0.0.1", behind))
                    for pair in ((near, far), (far, near)):
                        threading.Thread(target=_pump, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])


def forwarded(env: DockerEnvironment, size: int, rounds: int) -> Row:
    """Measure both in turns."""
    env.write("forward_server.py", SERVER).unwrap()
    inside = env.run("exec python3 forward_server.py 8123", background=True, session=None).unwrap().id
    env.wait_for_port(8123, timeout_seconds=60, id=inside).unwrap()
    name, plain = "a download by forward()", "a plain relay of sockets"
    with subprocess.Popen([sys.executable, "-c", SERVER, "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with relay(int(server.stdout.readline())) as port:
            forward = env.forward(8123).unwrap()
            calls = {name: lambda: download(forward.port, size), plain: lambda: download(port, size)}
            turns = take_turns(calls, rounds, 0)
            forward.close()
        server.kill()
    env.kill(inside).unwrap()
    return turns.row(name, plain, unit="MB/s")
