"""Ports of this host's loopback that lead to ports of a remote sandbox: each connection is a WebSocket to the service.

All of an environment live in an asyncio loop in a thread of their own, which begins with the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from sandbox.client.http.service import Service
from sandbox.client.http.sockets import check_library, connecting
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.relay import RESET

from .loop_thread import CLOSE_SECONDS, LoopThread

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

LOOPBACK = "127.0.0.1"
START_SECONDS = 10.0
READ_BYTES = 64 << 10
MOST_FORWARDS = 64
# In the backlog, and at once: what a sandbox takes.
MOST_CONNECTIONS = 256
END = json.dumps({"type": "end"})
ORDERLY = 1000


class Tunnels:
    """The forwarded ports of one sandbox, whose address on the service is what ``path`` returns."""

    def __init__(self, service: Service, path: Callable[[], str]) -> None:
        self._service, self._path = service, path
        self._thread = LoopThread("gamebox-tunnels")
        self._forwards: tuple[RemoteForward, ...] = ()

    def open(self, port: int, host_port: int) -> RemoteForward:
        """Listen at ``host_port`` of the loopback, or at a free port for 0. Raises SandboxError."""
        path = f"{self._path()}/ports/{port}/tunnel"
        check_library("forward")
        if len(self.forwards()) >= MOST_FORWARDS:
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"{MOST_FORWARDS} ports are forwarded already.",
                "Close one that is not needed: env.forwards()[0].close().",
            )
        made = RemoteForward(self._thread, port, lambda: connecting(self._service, path))
        try:
            made.port = self._thread.run(made.listen(host_port), START_SECONDS)
        except OSError as error:
            why = "it is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or errno.EIO)
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"Port {host_port} of the host cannot be listened on: {why}.",
                "Leave host_port out for a free one.",
            ) from error
        except BaseException:
            made.close()
            raise
        self._forwards = (*self._forwards, made)
        return made

    def forwards(self) -> tuple[RemoteForward, ...]:
        """Return the forwarded ports that are open."""
        self._forwards = tuple(each for each in self._forwards if not each.closed)
        return self._forwards

    def close(self) -> None:
        """Close all of them, and end the thread; may be called more than once."""
        for each in self._forwards:
            each.close()
        self._thread.close()


class RemoteForward:
    """A port of the sandbox, reachable at ``host`` and ``port`` (or ``url``) until this or the sandbox is closed.

    It has what ``Forward`` has. A connection is reset if nothing listens on the port in the sandbox.
    """

    host = LOOPBACK

    def __init__(self, thread: LoopThread, sandbox_port: int, connect: Callable[[], Any]) -> None:
        """Create it closed; ``listen`` opens it."""
        self.sandbox_port, self.port = sandbox_port, 0
        self._thread, self._connect = thread, connect
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """The address for HTTP servers, as in "http://127.0.0.1:40123"."""
        return f"http://{self.host}:{self.port}"

    @property
    def closed(self) -> bool:
        """Whether the port is no longer forwarded."""
        return self._closed

    def model_dump(self) -> dict[str, Any]:
        """Return the fields that an envelope shows."""
        return {"url": self.url, "host": self.host, "port": self.port, "sandbox_port": self.sandbox_port}

    def to_text(self) -> str:
        """Return one line that describes the forward."""
        return f"Port {self.sandbox_port} of the sandbox is at {self.url}{' (closed)' if self.closed else ''}."

    def __repr__(self) -> str:
        return f"<RemoteForward {self.url} to port {self.sandbox_port}{', closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and cut the connections. Does nothing the second time."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(SandboxError):
                self._thread.run(self._end(), CLOSE_SECONDS)

    async def listen(self, host_port: int) -> int:
        """Listen, in the loop; return the port. Raises OSError."""
        self._server = await asyncio.start_server(
            self._accept, LOOPBACK, host_port, backlog=MOST_CONNECTIONS, limit=READ_BYTES
        )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of ours: start_server's own logs an error when it is cancelled.
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        orderly = False
        try:
            if not self._closed and len(self._connections) <= MOST_CONNECTIONS:
                orderly = await self._carry(reader, writer)
        finally:
            if not orderly:  # so that the program here does not take it for the end of the data
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass the bytes of one connection on; return whether both directions have ended in order."""
        from websockets.exceptions import WebSocketException

        try:
            async with self._connect() as tunnel:
                sending = asyncio.ensure_future(_send(reader, tunnel))
                try:
                    async for message in tunnel:
                        if isinstance(message, bytes):
                            writer.write(message)
                            await writer.drain()
                        else:
                            writer.write_eof()
                    return bool(tunnel.close_code == ORDERLY)
                finally:
                    sending.cancel()
                    if tunnel.close_code is None:
                        tunnel.transport.abort()  # the server there sees a reset, too, and nobody waits
        except (OSError, WebSocketException, EOFError):
            return False


async def _send(reader: asyncio.StreamReader, tunnel: ClientConnection) -> None:
    """Pass on what the program here sends, and its end; cut the tunnel if the program is cut."""
    from websockets.exceptions import ConnectionClosed

    try:
        while data := await reader.read(READ_BYTES):
            await tunnel.send(data)
        await tunnel.send(END)
    except ConnectionClosed:  # the other direction says why
        pass
    except OSError:
        tunnel.transport.abort()
