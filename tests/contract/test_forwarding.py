"""Ports of the sandbox on the host's loopback."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import AsyncEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.network.forward import Forward

from .checks import done, refused

# Sends back what it gets, and its end; "/bytes N" gives that many bytes; a WebSocket is greeted and answered one frame.
ECHO = """
import base64, hashlib, socketserver, sys
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        data = self.request.recv(65536)
        if data.startswith(b"GET /bytes"):
            left = int(data.split()[2])
            while left:
                left -= self.request.send(bytes(min(left, 65536)))
        elif b"Upgrade: websocket" in data:
            key = data.split(b"Sec-WebSocket-Key: ")[1].split(b"\\r")[0]
            accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            self.request.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                                 b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
            frame = self.request.recv(65536)
            mask, text = frame[2:6], frame[6:]
            plain = bytes(b ^ mask[i % 4] for i, b in enumerate(text))
            self.request.sendall(bytes([0x81, len(plain)]) + plain)
        else:
            while data:
                self.request.sendall(data)
                data = self.request.recv(65536)
            self.request.sendall(b"end")
class Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size = True, 128
server = Server(("127.0.0.1", 0), Handler)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.fixture
def echo(env: SandboxedEnvironment, folder: str) -> Iterator[Forward]:
    """A forwarded port with the server above behind it."""
    done(env.write(f"{folder}/echo.py", ECHO))
    ident = done(env.run("exec python3 echo.py", cwd=folder, background=True)).id
    port = int(str(done(env.wait_for(id=ident, log=r"port (\d+)")).groups[0]))
    made = env.forward(port).unwrap()
    yield made
    made.close()
    done(env.kill(ident))


def connected(forward: Forward) -> socket.socket:
    return socket.create_connection((forward.host, forward.port), timeout=20)


def said_until_the_end(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.needs("shell", "forwards", "python")
def test_bytes_go_both_ways_and_each_end_ends_alone(echo: Forward) -> None:
    assert echo.host == "127.0.0.1"
    assert echo.url == f"http://127.0.0.1:{echo.port}"
    data = os.urandom(3 << 20)
    with connected(echo) as sock:

        def send() -> None:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert said_until_the_end(sock) == data + b"end"
        sender.join()


@pytest.mark.needs("shell", "forwards", "python")
def test_many_at_a_time_and_one_that_takes_nothing(echo: Forward) -> None:
    with connected(echo) as stalled:
        stalled.sendall(b"GET /bytes 50000000")

        def exchange(number: int) -> bytes:
            with connected(echo) as sock:
                sock.sendall(b"%d" % number)
                sock.shutdown(socket.SHUT_WR)
                return said_until_the_end(sock)

        with ThreadPoolExecutor(32) as pool:
            assert list(pool.map(exchange, range(100))) == [b"%dend" % number for number in range(100)]
        assert len(stalled.recv(1000)) == 1000


@pytest.mark.needs("shell", "forwards", "python")
def test_a_websocket(echo: Forward) -> None:
    key = b64encode(os.urandom(16))
    with connected(echo) as sock:
        sock.sendall(
            b"GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: " + key + b"\r\n\r\n"
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(1000)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()) in head
        sock.sendall(bytes([0x81, 0x85]) + b"\0\1\2\3" + bytes(b ^ (i % 4) for i, b in enumerate(b"hello")))
        assert sock.recv(100) == b"\x81\x05hello"


@pytest.mark.needs("shell", "forwards")
def test_where_nothing_listens_the_connection_is_reset(env: SandboxedEnvironment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    forward = env.forward(port).unwrap()
    with pytest.raises(ConnectionResetError), connected(forward) as sock:  # it may come before connect() has returned
        sock.recv(1)
    forward.close()


@pytest.mark.needs("shell", "forwards", "python")
def test_closing_one_cuts_it_and_leaves_others(env: SandboxedEnvironment, echo: Forward) -> None:
    other = env.forward(echo.sandbox_port).unwrap()
    assert {echo, other} <= set(env.forwards())
    with connected(other) as sock, connected(echo) as stays:
        for each in (sock, stays):
            each.sendall(b"x")
            assert each.recv(1) == b"x"
        other.close()
        other.close()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        stays.sendall(b"y")
        assert stays.recv(1) == b"y"
    with pytest.raises(ConnectionRefusedError):
        connected(other)
    assert other.closed
    assert other not in env.forwards()


@pytest.mark.needs("shell", "forwards", "python")
def test_a_port_of_the_host_by_choice(env: SandboxedEnvironment, echo: Forward) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(env.forward(8000, host_port=port), "invalid_configuration", str(port), "in use")
    assert env.forward(echo.sandbox_port, host_port=port).unwrap().port == port


@pytest.mark.parametrize(
    ("port", "host_port"), [(0, 0), (65536, 0), (-1, 0), (80, -1), (80, 65536)]
)
def test_what_is_no_port_is_refused(env: SandboxedEnvironment, port: int, host_port: int) -> None:
    failure = env.forward(port, host_port)
    assert not failure.ok
    assert failure.code == "invalid_arguments"
    assert "is not a port" in failure.error


def test_those_that_lead_to_no_servers_say_so(env: SandboxedEnvironment) -> None:
    if (name := type(env).__name__) == "FakeEnvironment":
        refused(env.forward(80), "operation_not_supported", name)


@pytest.mark.needs("shell", "forwards", "python")
def test_with_asyncio(env: SandboxedEnvironment, folder: str) -> None:
    async def fetched() -> str:
        aio = AsyncEnvironment(env)
        await aio.write(f"{folder}/page", "hello")
        server = (
            (await aio.run("exec python3 -u -m http.server 0 --bind 127.0.0.1", cwd=folder, background=True))
            .unwrap()
            .id
        )
        port = int(str((await aio.wait_for(id=server, log=r"port (\d+)")).unwrap().groups[0]))
        assert (await aio.wait_for_port(port)).ok
        forward = (await aio.forward(port)).unwrap()
        assert forward in aio.forwards()
        with await asyncio.to_thread(urllib.request.urlopen, f"{forward.url}/page") as answer:
            text = str(answer.read().decode())
        forward.close()
        await aio.kill(server)
        return text

    assert asyncio.run(fetched()) == "hello"


def test_waiting_for_a_port_that_stays_closed(env: SandboxedEnvironment) -> None:
    refused(env.wait_for_port(1, timeout_seconds=0.2), "not_ready", "port 1")
