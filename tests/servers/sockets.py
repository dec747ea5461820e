"""Servers of bytes: a WebSocket echo, one that answers and then stalls, one that sends without end, a company's proxy."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import queue
import select
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from websockets.asyncio.server import ServerConnection, serve

Work = Callable[[socket.socket], None]


@contextlib.contextmanager
def websocket_echo(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Sends every message back; the port.

    By asyncio, and so should its client be: those of websockets with threads read and write one TLS connection at the same time,
    which loses a message once in about 200 connections (measured with Python 3.11 and no sandbox between them).
    """

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async def run() -> None:
        async with serve(echo, "127.0.0.1", 0, ssl=context) as server:
            started.put((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
            await stopped.wait()

    started: queue.Queue[tuple[asyncio.AbstractEventLoop, int]] = queue.Queue()
    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: asyncio.run(run()), name="websocket", daemon=True)
    thread.start()
    loop, port = started.get(timeout=10)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(5)


@contextlib.contextmanager
def tcp_server(work: Work, address: str = "127.0.0.1") -> Iterator[int]:
    """``work`` for each connection, in a thread of its own; the port. Connections that still stand at the end are closed."""
    standing: set[socket.socket] = set()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            standing.add(self.request)
            with contextlib.suppress(OSError):
                work(self.request)
            standing.discard(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 512
        allow_reuse_address = True

    with Server((address, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="tcp", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(5)
            for one in list(standing):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


def echo(connection: socket.socket) -> None:
    """Sends back what comes."""
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def outlast(connection: socket.socket) -> None:
    """Takes nothing that comes, and does not end before its client is gone altogether."""
    while True:
        connection.sendall(b".")
        time.sleep(0.05)


def stall(connection: socket.socket) -> None:
    """Takes a request, begins an answer and never goes on; ends when the client does."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nbegun")
    while connection.recv(1 << 16):
        pass


def flood(connection: socket.socket) -> None:
    """Sends until the client goes."""
    piece = b"\0" * (1 << 16)
    while True:
        connection.sendall(piece)


@contextlib.contextmanager
def company_proxy(user: str, password: str, asked: list[str], hosts: Mapping[str, str]) -> Iterator[int]:
    """An HTTP proxy that knows CONNECT alone and wants these credentials; ``asked`` gets what it was asked for.

    ``hosts`` are the names that it alone resolves.
    """
    expected = b"proxy-authorization: basic " + base64.b64encode(f"{user}:{password}".encode()).lower()

    def work(client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = client.recv(1)
            if not data:
                return
            head += data
        line = head.split(b"\r\n", 1)[0].decode()
        asked.append(line)
        if expected not in head.lower():
            client.sendall(b'HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic realm="x"\r\n\r\n')
            return
        host, _, port = line.split(" ")[1].rpartition(":")
        with socket.create_connection((hosts.get(host, host.strip("[]")), int(port)), timeout=10) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n")
            _pump(client, server)

    with tcp_server(work) as port:
        yield port


def _pump(one: socket.socket, other: socket.socket) -> None:
    to = {one: other, other: one}
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(1 << 16)
            if not data:
                return
            to[ready].sendall(data)
