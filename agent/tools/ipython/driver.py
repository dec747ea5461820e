"""Runs INSIDE the sandbox, with the standard library alone: keeps a kernel, gives it cells, and answers each with one line.

It is sent as text by ``channel`` and reads requests from standard input, one JSON object per line. An answer is a line that begins
with the nonce of the first request, so that nothing else that is printed can be taken for one. The kernel is Jupyter's where the
image has ipykernel and jupyter_client, else a Python process of our own (``worker``).
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

KEPT_CHARS = 15_000  # of the beginning, and as much of the end of a cell's output
GRACE_SECONDS = 8.0  # for a cell to take notice of an interrupt, before the kernel is killed
START_SECONDS = 60.0
POLL_SECONDS = 0.2


class Kept:
    """Output of any length in bounded memory: its head and its tail."""

    def __init__(self) -> None:
        self.total = 0
        self._head: deque[str] = deque()
        self._tail: deque[str] = deque()
        self._room, self._held = KEPT_CHARS, 0

    def add(self, text: str) -> None:
        """Take further output."""
        self.total += len(text)
        head, rest = text[: self._room], text[self._room :]
        self._room -= len(head)
        self._head.append(head)
        if rest:
            self._tail.append(rest[-KEPT_CHARS:])
            self._held += len(self._tail[-1])
        while len(self._tail) > 1 and self._held - len(self._tail[0]) >= KEPT_CHARS:
            self._held -= len(self._tail.popleft())

    def fields(self) -> dict[str, Any]:
        """Head, tail, and how much there was in all."""
        return {"head": "".join(self._head), "tail": "".join(self._tail)[-KEPT_CHARS:], "total": self.total}


class Patience:
    """The time of a cell: first it is interrupted, and if that does not help, its kernel is killed."""

    def __init__(self, seconds: float, interrupt: Callable[[], None], kill: Callable[[], None]) -> None:
        self.interrupted = False
        self._steps = [kill, interrupt]
        self._at = time.monotonic() + seconds

    def look(self) -> None:
        """Take the next step if it is time."""
        if self._steps and time.monotonic() >= self._at:
            self.interrupted = True
            self._at = time.monotonic() + GRACE_SECONDS
            self._steps.pop()()


# Run in a kernel of Jupyter before the first cell.
# - What programs write to its descriptors 1 and 2 is read by a thread of ipykernel, which may come too late: the output was
#   missing, or came with the next cell. The thread here shares that with the end of each cell, and waits for what it has read to be
#   sent.
# - A socket that publishes drops what is above 1000 messages that nobody has read, unless it is told to wait.
# - With a signal handler of its own, the kernel's loop wakes up for an interrupt while a cell awaits something.
SET_UP = """
def set_up():
    import asyncio, codecs, contextlib, fcntl, os, select, signal, sys, termios, threading, zmq
    publisher = sys.stdout.pub_thread

    def watch(stream, number):
        decoder, reading = codecs.getincrementaldecoder("utf-8")("replace"), threading.Lock()

        def take():
            waiting = int.from_bytes(fcntl.ioctl(stream._fid, termios.FIONREAD, bytes(4)), sys.byteorder)
            if waiting:
                stream.write(decoder.decode(os.read(stream._fid, min(waiting, 1 << 16))))
            return waiting

        def read():
            unsent = 0
            with contextlib.suppress(OSError, ValueError):
                while select.select([stream._fid], [], []):
                    with reading:
                        unsent += take()
                    if unsent > 1 << 15:
                        sent, unsent = threading.Event(), 0
                        publisher.schedule(stream._flush)
                        publisher.schedule(sent.set)
                        sent.wait()

        def settle(*_):
            with reading, contextlib.suppress(OSError, ValueError):
                for _ in range(64):  # what is in the background may write without an end
                    if not take():
                        break

        stream._should_watch = False
        os.write(number, b"\\n")  # the thread of ipykernel ends with this, and does not show it
        stream.watch_fd_thread.join()
        threading.Thread(target=read, daemon=True).start()
        get_ipython().events.register("post_run_cell", settle)

    asyncio.get_running_loop().add_signal_handler(signal.SIGURG, lambda: None)
    publisher.schedule(lambda: publisher.socket.setsockopt(zmq.XPUB_NODROP, 1))
    watch(sys.stdout, 1)
    watch(sys.stderr, 2)


set_up()
del set_up
"""


class Jupyter:
    """A kernel of Jupyter, reached through sockets in a folder of its own; no port is opened."""

    kind = "ipykernel"

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        folder = tempfile.mkdtemp(prefix="kernel-")
        files = {"connection_file": os.path.join(folder, "c.json"), "ip": os.path.join(folder, "s")}
        self._manager = KernelManager(transport="ipc", **files)
        quiet = ["--HistoryManager.enabled=False", "--InteractiveShell.colors=NoColor"]
        self._manager.start_kernel(extra_arguments=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=START_SECONDS)
        self.run(SET_UP, START_SECONDS, silent=True)

    def run(self, code: str, seconds: float, silent: bool = False) -> dict[str, Any]:
        """What the cell printed and answered, how it ended, and how the kernel died if it did; a ``silent`` one is not counted."""
        kept = Kept()
        patience = Patience(seconds, self._manager.interrupt_kernel, self._kill)
        ident = self._client.execute(code, silent=silent, allow_stdin=False, stop_on_error=False)
        ok, over = True, False
        while not over:
            patience.look()
            try:
                message = self._client.get_iopub_msg(timeout=POLL_SECONDS)
            except queue.Empty:
                if not self._manager.is_alive():
                    return {"ok": False, "interrupted": patience.interrupted, "died": self._how(), **kept.fields()}
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            kept.add(_shown(kind, content))
            own = message["parent_header"].get("msg_id") == ident
            ok = ok and not (own and kind == "error")
            over = own and kind == "status" and content["execution_state"] == "idle"
        return {"ok": ok, "interrupted": patience.interrupted, **kept.fields()}

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def _kill(self) -> None:
        self._manager.signal_kernel(signal.SIGKILL)

    def _how(self) -> str:
        process = getattr(getattr(self._manager, "provisioner", None), "process", None)
        return _ended(None if process is None else process.poll())


def _shown(kind: str, content: dict[str, Any]) -> str:
    """Return a message of the kernel as text; what is not text is named with its size."""
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return "\n".join(content["traceback"]) + "\n"
    if kind not in ("execute_result", "display_data"):
        return ""
    data = content["data"]
    parts = [str(data["text/plain"])] if "text/plain" in data else []
    for name, value in data.items():
        if name != "text/plain" and (not parts or name.startswith(("image/", "audio/", "video/"))):
            parts.append(f"[{name}, {len(str(value))} characters: not shown]")
    return "\n".join(parts) + "\n"


class Plain:
    """A Python process of our own as the kernel."""

    kind = "python"

    def __init__(self, worker: str) -> None:
        theirs_in, self._requests = os.pipe()
        self._replies, theirs_out = os.pipe()
        text = f"{worker}\nserve({theirs_in}, {theirs_out})\n"
        # No module in the working folder is imported before the first cell asks for it.
        start = "import sys\nsys.path[:] = [p for p in sys.path if p]\n"
        code = f"{start}exec(compile({text!r}, 'worker', 'exec'), {{'__name__': 'worker'}})"
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(theirs_in, theirs_out),
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._out = self._process.stdout.fileno() if self._process.stdout is not None else -1
        os.set_blocking(self._out, False)
        os.set_blocking(self._replies, False)

    def run(self, code: str, seconds: float) -> dict[str, Any]:
        """See ``Jupyter.run``."""
        kept = Kept()
        patience = Patience(seconds, lambda: self._process.send_signal(signal.SIGINT), self._process.kill)
        try:
            _write_all(self._requests, json.dumps(code).encode() + b"\n")
        except OSError:
            return {"ok": False, "interrupted": False, "died": _ended(self._process.wait()), **kept.fields()}
        told, over = b"", False
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            selector.register(self._replies, selectors.EVENT_READ)
            while not over:
                patience.look()
                ready = {key.fd for key, _ in selector.select(POLL_SECONDS)}
                if self._out in ready and not self._take(kept):
                    selector.unregister(self._out)  # the cell has closed it
                if self._replies in ready:
                    part = os.read(self._replies, 4096)
                    told += part
                    over = not part or b"\n" in told or len(told) > 4096
        self._take(kept)
        if not told.endswith(b"\n"):
            self._process.kill()
            return {
                "ok": False,
                "interrupted": patience.interrupted,
                "died": _ended(self._process.wait()),
                **kept.fields(),
            }
        return {"ok": told.strip() == b"ok", "interrupted": patience.interrupted, **kept.fields()}

    def close(self) -> None:
        """End the kernel."""
        self._process.kill()
        self._process.wait()
        for fd in (self._requests, self._replies):
            os.close(fd)

    def _take(self, kept: Kept) -> bool:
        """Take what was printed so far, at most 4 MiB at a time; returns False at the end of the output."""
        for _ in range(64):
            try:
                part = os.read(self._out, 1 << 16)
            except BlockingIOError:
                return True
            if not part:
                return False
            kept.add(part.decode("utf-8", "replace"))
        return True


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _ended(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Driver:
    """Answers requests. If the kernel is gone, the next cell starts a new one."""

    def __init__(self, nonce: str, worker: str) -> None:
        self._nonce, self._worker = nonce, worker
        self._kernel: Any = None
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)  # nothing that a library prints may come between

    def say(self, **fields: Any) -> None:
        """Answer."""
        self._out.write(f"{self._nonce} {json.dumps(fields)}\n")
        self._out.flush()

    def answer(self, request: dict[str, Any]) -> None:
        """Carry out one request."""
        if request.get("restart"):
            self._end()
        if self._kernel is None:
            self._kernel = self._fresh()
        told = {"kind": self._kernel.kind, "python": sys.version.split()[0], "id": request["id"]}
        if "code" in request:
            told.update(self._kernel.run(request["code"], request["seconds"]))
            if "died" in told:
                self._end()
        self.say(**told)

    def _fresh(self) -> Any:
        try:
            return Jupyter()
        except Exception:
            return Plain(self._worker)

    def _end(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            try:
                kernel.close()
            except Exception:
                pass


def main(hello: dict[str, Any]) -> None:
    """Answer requests until the input ends."""
    driver = Driver(hello["nonce"], hello["worker"])
    signal.signal(signal.SIGINT, lambda *_: None)  # an interrupt is for the kernel; its own handling is not inherited
    for line in sys.stdin:
        request = json.loads(line)
        try:
            driver.answer(request)
        except Exception as error:
            driver.say(id=request.get("id"), fault=f"{type(error).__name__}: {error}")
