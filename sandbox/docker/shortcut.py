"""The guest's input opened by the host itself, past the engine and its shim: where all are of one machine and this is root.

It is the same pipe, whose reading end the guest has; bytes take one copy into it and not five, and nobody is woken on the way. Only
for an engine behind the usual socket: who puts another one there may want to see, or to stop, what goes by.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from pathlib import Path

import docker

from sandbox.errors import SandboxError
from sandbox.guest.wire import INPUT_FD
from sandbox.sender import FrameSender

from .engine import translated
from .stream import AttachStream

SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")


def shorten(
    client: docker.DockerClient, container_id: str, inode: object, sender: FrameSender, stream: AttachStream
) -> None:
    """Have ``stream`` send past the engine where that can be; it works without, more slowly.

    ``inode`` is what the guest said of its input when it answered the greeting.
    """
    with contextlib.suppress(SandboxError), translated():
        way = open_input(client, container_id, inode)
        if way is not None and not sender.reroute(lambda: stream.shorten(way)):
            os.close(way)


def open_input(client: docker.DockerClient, container_id: str, inode: object) -> int | None:
    """A descriptor, not blocking, of the pipe that the guest of a container reads; None where there is no such way.

    Raises docker-py's errors.
    """
    if os.geteuid() != 0 or getattr(client.api, "base_url", "") != "http+docker://localhost" or not _is_usual(client):
        return None
    return opened(int(client.api.inspect_container(container_id)["State"]["Pid"]), container_id, inode)


def _is_usual(client: docker.DockerClient) -> bool:
    adapter = client.api.get_adapter(client.api.base_url)
    return getattr(adapter, "socket_path", None) in SOCKETS


def opened(pid: int, container_id: str, inode: object) -> int | None:
    """See ``open_input``.

    ``pid`` is of the engine's namespace, which need not be this one, and it need not be the guest's: some runtimes have a process
    of their own there, with a kernel or a whole machine between it and what it runs.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        process = os.pidfd_open(pid)
        held.callback(os.close, process)
        if container_id not in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"):
            return None
        # What the guest has there is looked at before it is opened: to open a device may do something.
        found = os.open(f"/proc/{pid}/fd/{INPUT_FD}", os.O_PATH | os.O_CLOEXEC)
        held.callback(os.close, found)
        state = os.fstat(found)
        if not stat.S_ISFIFO(state.st_mode) or state.st_ino != inode or _ended(process):
            return None
        return os.open(f"/proc/self/fd/{found}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return None


def _ended(process: int) -> bool:
    """Whether a process, by its descriptor, has ended: then its number may be another's."""
    end = select.poll()
    end.register(process, select.POLLIN)
    return bool(end.poll(0))
