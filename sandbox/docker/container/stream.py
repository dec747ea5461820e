"""The engine's attach stream as the pipe to a guest: stdin and stdout raw, stderr to the log."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import socket
import ssl
import struct
import threading
import time
from typing import Any

from sandbox.pipe.forked_processes import let_go, part_in_children

log = logging.getLogger(__name__)

SEND_SECONDS = 30.0
# What is read at once: at first little, for there may be hundreds of these; more once that was full.
FIRST_CHUNK, CHUNK = 1 << 14, 1 << 18
# The kernel doubles it. A frame of connections, the longest there are, is to fit into three quarters of that at once: the engine is
# woken once for it, and nobody has to wait for its end.
SEND_BUFFER = 256 * 1024
# So much is sent where there is any room; more waits for the most of it.
SHORT = 16 * 1024
# Of a pipe that long pieces go through: a frame of connections, the longest there are, and another begun. Requests wait behind it.
PIPE_BYTES = 512 * 1024
TURN_SECONDS = 0.2
LAST_WORDS_SECONDS = 1.0
_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2


class AttachStream:
    """Implements ``transport.ByteStream`` on what docker-py's ``attach_socket`` answers.

    The engine puts an 8-byte header before each piece of output; pieces of stderr go to the log, bounded.
    """

    def __init__(self, attached: Any) -> None:
        self._attached = attached  # holds the HTTP response, which would close the socket when it goes
        self._socket: socket.socket = getattr(attached, "_sock", attached)
        # Python looks before each call on a socket with a timeout; this class does so itself, and only where it has to wait.
        self._encrypted = isinstance(self._socket, ssl.SSLSocket)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._socket.settimeout(SEND_SECONDS if self._encrypted else 0)
        self._buffer = memoryview(bytearray(FIRST_CHUNK))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._room = select.poll()
        self._room.register(self._socket, select.POLLOUT)
        self._header = bytearray()
        self._left = 0
        self._kind = _STDOUT
        self._stderr = bytearray()
        # Past the engine.
        self._input: int | None = None
        self._output: int | None = None
        self._offered: int | None = None
        self._wide = False
        self._close_lock = threading.Lock()
        self._closed = False
        part_in_children(self)

    def shorten(self, fd: int) -> None:
        """Send by ``fd`` from now on, another descriptor of the pipe, which becomes this stream's own. Nothing may be under way."""
        with self._close_lock:
            if self._closed:
                os.close(fd)
            else:
                self._input = fd

    def offer(self, fd: int) -> None:
        """What the guest may write to instead; from ``turn`` on it is read. It becomes this stream's own."""
        self._offered = fd

    def turn(self) -> None:
        """Read there from now on; called by who reads. The engine's end is the end all the same."""
        self._output, self._offered = self._offered, None
        if self._output is not None:
            self._poll.register(self._output, select.POLLIN)

    def part(self) -> None:
        """See ``forks.Parted``. Above all the guest's input is held no longer, for its end ends the guest."""
        if self._closed:
            return
        let_go(self._socket.fileno())
        if self._input is not None:
            let_go(self._input)

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        """See ``ByteStream``."""
        if self._input is not None:
            return self._put(self._input, data, timeout_seconds)
        if len(data) <= SHORT and not self._encrypted:
            with contextlib.suppress(BlockingIOError):
                return self._socket.send(data)
        if not self._room.poll(timeout_seconds * 1000):
            return 0
        try:
            return self._socket.send(data)
        except BlockingIOError:  # another process holds the socket too, and was faster
            return 0

    def _put(self, fd: int, data: memoryview, timeout_seconds: float) -> int:
        if len(data) > SHORT and not self._wide:  # not before: what a user may have of longer pipes is bounded
            self._wide = True
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        until = time.monotonic() + timeout_seconds
        while True:
            with contextlib.suppress(BlockingIOError):
                return os.write(fd, data)
            left = until - time.monotonic()
            # In short turns: while a thread waits the pipe cannot be closed, which is what ends the guest.
            if left <= 0 or (not _ready(fd, min(left, TURN_SECONDS)) and left <= TURN_SECONDS):
                return 0

    def has_room(self, timeout_seconds: float) -> bool:
        """See ``ByteSink``. Of a socket the kernel says so when three quarters of its buffer are free."""
        if self._input is not None:
            return _ready(self._input, timeout_seconds)
        if self._socket.fileno() < 0:
            raise OSError(errno.EBADF, "the stream was released")
        return _ready(self._socket.fileno(), timeout_seconds)  # a poll of its own, for another thread may be in ``send``

    def receive(self, timeout_seconds: float) -> bytes | None:
        """See ``ByteStream``."""
        while not self._closed:  # else who fills its pipe without end would never let go
            buffered = getattr(self._socket, "pending", lambda: 0)()  # of a TLS connection
            if not buffered and not self._poll.poll(timeout_seconds * 1000):
                return None
            if self._output is not None and (output := self._read(self._output)) is not None:
                return output
            size = self._socket.recv_into(self._buffer)
            if not size:
                return b""
            output = self._unwrap(self._buffer[:size])
            self._grow(size)
            if output and self._output is None:
                return output
        return b""

    def _read(self, fd: int) -> bytes | None:
        """What came past the engine; None where it is the engine that has something. At the end its last words are waited for."""
        try:
            size = os.readv(fd, [self._buffer])
        except BlockingIOError:
            return None
        if not size:
            self._poll.unregister(fd)
            until = time.monotonic() + LAST_WORDS_SECONDS
            while (left := until - time.monotonic()) > 0 and self._poll.poll(left * 1000):
                if not (more := self._socket.recv_into(self._buffer)):
                    break
                self._unwrap(self._buffer[:more])
        data = bytes(self._buffer[:size])
        self._grow(size)
        return data

    def _grow(self, size: int) -> None:
        if size == len(self._buffer) < CHUNK:
            self._buffer = memoryview(bytearray(CHUNK))

    def close(self) -> None:
        """See ``ByteStream``."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):  # closed by the other side already
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._input is not None:  # others may be about to write: its number is to be nobody else's, and takes nothing any more
            os.dup2(self._socket.fileno(), self._input, inheritable=False)

    def release(self) -> None:
        """Close the descriptor; only when no thread uses the stream any more."""
        self.close()
        self._socket.close()
        for fd in (self._input, self._output, self._offered):
            if fd is not None:
                os.close(fd)
        self._input = self._output = self._offered = None
        # In this order: Python 3.13 prints a ValueError for a response over a closed socket.
        for each in (getattr(self._attached, "_response", None), self._attached):
            if (close := getattr(each, "close", None)) is not None:
                close()

    @property
    def stderr(self) -> str:
        """The last the guest wrote to its stderr."""
        return self._stderr.decode("utf-8", "replace")

    def _unwrap(self, view: memoryview) -> bytes:
        """What is stdout in ``view``; a header may be cut anywhere."""
        output: list[memoryview] = []
        while view:
            if not self._left:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == _HEADER.size:
                    self._kind, self._left = _HEADER.unpack(self._header)
                    self._header.clear()
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._kind == _STDOUT:
                output.append(piece)
            elif self._kind == _STDERR:
                self._log(bytes(piece))
        return b"".join(output)

    def _log(self, piece: bytes) -> None:
        self._stderr = (self._stderr + piece)[-8192:]
        log.debug("guest: %s", piece[:2000].decode("utf-8", "backslashreplace"))


def _ready(fd: int, timeout_seconds: float) -> bool:
    """Whether ``fd`` takes bytes, or has come to its end."""
    room = select.poll()
    room.register(fd, select.POLLOUT)
    return bool(room.poll(timeout_seconds * 1000))
