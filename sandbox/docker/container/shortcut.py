"""The guest's pipes opened by the host itself, past the engine and its shim: where all are of one machine and this is root.

The input is the same pipe as before, whose reading end the guest has; the output is another one, which the guest has made for this.
Bytes take one copy into a pipe and not five, and nobody is woken on the way. Only for an engine behind the usual socket: who puts
another one there may want to see, or to stop, what goes by.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from pathlib import Path

import docker

from sandbox.docker.engine.client import translated
from sandbox.errors import SandboxError
from sandbox.guest.protocol.wire import INPUT_FD, SHORTCUT_FD
from sandbox.pipe.transport import Transport

from .stream import AttachStream

SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")


def shorten(
    client: docker.DockerClient, container_id: str, pipes: object, transport: Transport, stream: AttachStream
) -> None:
    """Have ``transport``, whose guest answered its greeting on ``stream``, go past the engine where that can be.

    ``pipes`` is what the guest said of its pipes then: their inodes. It works without, more slowly.
    """
    if not (isinstance(pipes, list) and len(pipes) == 2) or os.geteuid() != 0 or not _is_usual(client):
        return
    with contextlib.suppress(SandboxError), translated():
        pid = int(client.api.inspect_container(container_id)["State"]["Pid"])
        found = opened(pid, container_id, pipes)
        if found is None:
            return
        into, out_of = found
        if not transport.sender.reroute(lambda: stream.shorten(into)):
            os.close(into)
            os.close(out_of)
            return
        stream.offer(out_of)
        transport.route(stream.turn)


def _is_usual(client: docker.DockerClient) -> bool:
    base_url = str(client.api.base_url)
    return base_url == "http+docker://localhost" and getattr(client.api.get_adapter(base_url), "socket_path", None) in SOCKETS


def opened(pid: int, container_id: str, inodes: list[object]) -> tuple[int, int] | None:
    """Descriptors, not blocking, of a guest's input to write to and of its output to read from; None where there are none.

    ``pid`` is of the engine's namespace, which need not be this one, and it need not be the guest's: some runtimes have a process
    of their own there, with a kernel or a whole machine between it and what it runs.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        process = os.pidfd_open(pid)
        held.callback(os.close, process)
        if container_id not in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"):
            return None
        pipes: list[int] = []
        device = _device_of_pipes()
        for number, inode in zip((INPUT_FD, SHORTCUT_FD), inodes, strict=True):
            # What the guest has there is looked at before it is opened: to open a device may do something.
            pipes.append(os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC))
            held.callback(os.close, pipes[-1])
            state = os.fstat(pipes[-1])
            # Not a named pipe either, which may lie where only root can write.
            if not stat.S_ISFIFO(state.st_mode) or (state.st_dev, state.st_ino) != (device, inode):
                return None
        if inodes[0] == inodes[1] or _ended(process):
            return None
        into = os.open(f"/proc/self/fd/{pipes[0]}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return into, os.open(f"/proc/self/fd/{pipes[1]}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.close(into)
    return None


def _device_of_pipes() -> int:
    """The file system that the kernel keeps pipes without a name in."""
    read, write = os.pipe()
    try:
        return os.fstat(read).st_dev
    finally:
        os.close(read)
        os.close(write)


def _ended(process: int) -> bool:
    """Whether a process, by its descriptor, has ended: then its number may be another's."""
    end = select.poll()
    end.register(process, select.POLLIN)
    return bool(end.poll(0))
