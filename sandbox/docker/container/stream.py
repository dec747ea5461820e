"""Use the engine's attach stream as the pipe to a guest: stdin and stdout raw, stderr to the log."""

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

from sandbox.pipe.forked_processes import point_at_devnull, release_in_children

log = logging.getLogger(__name__)

# Read at once by ``receive``, before a transport reads.
CHUNK = 1 << 14
# The kernel doubles it. The longest frames, those of connections, fit into three quarters of that, so that the engine wakes once
# per frame and no sender waits for the rest.
SEND_BUFFER = 256 * 1024
# Pieces up to this size are sent if there is any room; longer ones wait for most of the buffer.
SHORT = 16 * 1024
# A pipe for long pieces has room for one and a half of the longest frames. More would delay the requests behind them.
PIPE_BYTES = 512 * 1024
TURN_SECONDS = 0.2
LAST_WORDS_SECONDS = 1.0
_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_NO_LOCK = contextlib.nullcontext()


class AttachStream:
    """Implements ``reattaching.WatchedStream`` on the result of docker-py's ``attach_socket``.

    The engine puts an 8-byte header before each piece of output. Pieces of stderr are logged, up to a bound. Without
    ``ends_with_engine``, a stream that bypasses the engine goes on when the engine's has ended.
    """

    ends_with_engine = True

    def __init__(self, attached: Any) -> None:
        self._attached = attached  # keeps the HTTP response alive, which would close the socket
        self._socket: socket.socket = getattr(attached, "_sock", attached)
        # Python polls before each call on a socket with a timeout; this class polls itself, and only when it has to wait.
        self._encrypted = isinstance(self._socket, ssl.SSLSocket)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._socket.settimeout(0)
        self._tls_lock = threading.Lock()  # OpenSSL does not allow two threads in one connection
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._room = select.poll()
        self._room.register(self._socket, select.POLLOUT)
        self._header = bytearray()
        self._left = 0
        self._kind = _STDOUT
        self._stderr = bytearray()
        # The guest's own pipes, if this stream bypasses the engine.
        self._input: int | None = None
        self._output: int | None = None
        self._offered: int | None = None
        self._wide = False
        self._other_end: socket.socket | None = None  # of the socket that replaces the engine's
        self._close_lock = threading.Lock()
        self._closed = False
        release_in_children(self)

    def bypass_engine(self, fd: int) -> None:
        """Send through ``fd``, another descriptor of the guest's input, and own it. No other call may be sending."""
        with self._close_lock:
            if self._closed:
                os.close(fd)
            else:
                self._input = fd

    def offer_output(self, fd: int) -> None:
        """Own ``fd``, the guest's second output. It is read after ``switch_output``."""
        self._offered = fd

    def switch_output(self) -> None:
        """Read the second output from now on; called by the reader. The end of the engine's stream still ends this one."""
        self._output, self._offered = self._offered, None
        if self._output is not None:
            self._poll.register(self._output, select.POLLIN)

    def release_in_child(self) -> None:
        """See ``forked_processes.Inherited``. A child that held the guest's input would keep the guest alive."""
        if self._closed:
            return
        point_at_devnull(self._socket.fileno())
        if self._input is not None:
            point_at_devnull(self._input)

    def send(self, data: memoryview, timeout_seconds: float) -> int:
        if self._input is not None:
            return self._put(self._input, data, timeout_seconds)
        if len(data) <= SHORT and not self._encrypted:
            with contextlib.suppress(BlockingIOError):
                return self._socket.send(data)
        if not self._room.poll(timeout_seconds * 1000):
            return 0
        try:
            with self._tls_lock if self._encrypted else _NO_LOCK:
                return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):  # another process with this socket was faster
            return 0

    def _put(self, fd: int, data: memoryview, timeout_seconds: float) -> int:
        if len(data) > SHORT and not self._wide:  # not earlier: the kernel bounds the pipe buffers of a user
            self._wide = True
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        until = time.monotonic() + timeout_seconds
        while True:
            try:
                return os.write(fd, data)
            except BlockingIOError:  # it is full
                pass
            left = until - time.monotonic()
            # In short turns: the pipe cannot be closed while a thread waits, and closing it is what ends the guest.
            if left <= 0 or (not _ready(fd, min(left, TURN_SECONDS)) and left <= TURN_SECONDS):
                return 0

    def has_room(self, timeout_seconds: float) -> bool:
        """See ``ByteSink``. For a socket the kernel reports room when three quarters of its buffer are free."""
        if self._input is not None:
            return _ready(self._input, timeout_seconds)
        if self._socket.fileno() < 0:
            raise OSError(errno.EBADF, "the stream was released")
        return _ready(self._socket.fileno(), timeout_seconds)  # its own poll object: another thread may be in ``send``

    def descriptors(self) -> tuple[int, ...]:
        """See ``WatchedStream``."""
        return (self._socket.fileno(),) if self._output is None else (self._output, self._socket.fileno())

    @property
    def buffered(self) -> int:
        """How many bytes TLS has decrypted that were not read yet, which the kernel does not report."""
        return self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0

    def ready(self, timeout_seconds: float) -> bool:
        """See ``WatchedStream``."""
        return bool(self._closed or self.buffered or self._poll.poll(timeout_seconds * 1000))

    def receive(self, timeout_seconds: float) -> bytes | None:
        view = memoryview(bytearray(CHUNK))
        while self.ready(timeout_seconds):
            size = self.receive_into(view)
            if size == 0:
                self.finish()
            if size is not None:
                return bytes(view[:size])
        return None

    def receive_into(self, view: memoryview) -> int | None:
        """See ``WatchedStream``."""
        if self._closed:
            return 0
        if self._output is not None:
            try:
                return os.readv(self._output, [view])
            except BlockingIOError:  # nothing came; the engine's stream may have something
                pass
        filled = 0
        while filled < len(view):
            size = self._receive(view[filled:])
            if size == 0 and self._output is not None and not self.ends_with_engine and not self._closed:
                self._go_on_alone()
                return None
            if not size:
                return 0 if size == 0 and not filled else filled or None
            filled += self._unwrap(view[filled : filled + size]) if self._output is None else self._heard(view[:size])
            if not self.buffered:
                break
        return filled or None

    def _receive(self, view: memoryview) -> int | None:
        """Read from the engine's stream: 0 at its end, None if nothing is there."""
        try:
            with self._tls_lock if self._encrypted else _NO_LOCK:
                return self._socket.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError:
            if self.ends_with_engine or self._output is None:
                raise
            return 0

    def _go_on_alone(self) -> None:
        """Put another socket in the place of the engine's, which has ended: silent until ``close`` shuts it down."""
        ours, self._other_end = socket.socketpair()
        ours.setblocking(False)  # a property of the file, not of the number that it gets
        with self._close_lock:
            if not self._closed:
                os.dup2(ours.fileno(), self._socket.fileno(), inheritable=False)
        ours.close()

    def _heard(self, view: memoryview) -> int:
        """Log the stderr in ``view``. Its output is dropped: the second output has it."""
        self._unwrap(view)
        return 0

    def finish(self) -> None:
        """See ``WatchedStream``: the last of stderr may come after the end of the second output."""
        if self._output is None or self._closed:
            return
        with contextlib.suppress(OSError, KeyError):
            self._poll.unregister(self._output)
        view = memoryview(bytearray(CHUNK))
        until = time.monotonic() + (LAST_WORDS_SECONDS if self._other_end is None else 0.0)
        while (left := until - time.monotonic()) > 0 and self.ready(left) and not self._closed:
            size = self._receive(view)
            if size == 0:
                break
            self._unwrap(view[: size or 0])

    def close(self) -> None:
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):  # closed by the other side already
            self._socket.shutdown(socket.SHUT_RDWR)
        if (
            self._input is not None
        ):  # a thread may be about to write: its number must not be reused, and must take no bytes
            os.dup2(self._socket.fileno(), self._input, inheritable=False)

    def release(self) -> None:
        """Close the descriptors. Call it when no thread uses the stream any more."""
        self.close()
        self._socket.close()
        if self._other_end is not None:
            self._other_end.close()
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
        """The last 8 KiB that the guest wrote to its stderr."""
        return self._stderr.decode("utf-8", "replace")

    def _unwrap(self, view: memoryview) -> int:
        """Move the stdout in ``view`` to its beginning, return its size, and log the stderr. A header may be split."""
        at = filled = 0
        while at < len(view):
            if not self._left:
                missing = _HEADER.size - len(self._header)
                self._header += view[at : at + missing]
                at = min(at + missing, len(view))
                if len(self._header) == _HEADER.size:
                    self._kind, self._left = _HEADER.unpack(self._header)
                    self._header.clear()
                continue
            piece = view[at : at + self._left]
            self._left -= len(piece)
            at += len(piece)
            if self._kind == _STDOUT:
                if at - len(piece) > filled:
                    view[filled : filled + len(piece)] = piece
                filled += len(piece)
            elif self._kind == _STDERR:
                self._log(bytes(piece))
        return filled

    def _log(self, piece: bytes) -> None:
        self._stderr = (self._stderr + piece)[-8192:]
        log.debug("guest: %s", piece[:2000].decode("utf-8", "backslashreplace"))


def _ready(fd: int, timeout_seconds: float) -> bool:
    """Return whether ``fd`` takes bytes or has ended, after waiting up to ``timeout_seconds``."""
    room = select.poll()
    room.register(fd, select.POLLOUT)
    return bool(room.poll(timeout_seconds * 1000))
