"""Open the guest's pipes directly, past the engine and its shim, if this process is root on the guest's machine.

The output is a second pipe, which the guest made for this; the input is the same pipe as before, or for a kept sandbox another one,
too. Bytes are then copied once into a pipe and not five times, and no other process wakes up on the way. Only for an engine behind
its usual socket: another socket may be a proxy that watches or stops the traffic.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import docker

from sandbox.docker.engine.client import translated
from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from sandbox.pipe.transport import Transport

    from .stream import AttachStream

SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")


def find_guest(client: docker.DockerClient, container_id: str) -> int:
    """Return the guest's process id for ``take_shortcut``, which the engine knows as soon as the container is started; 0 if that
    cannot be done.
    """
    if may_take_shortcut(client):
        with contextlib.suppress(SandboxError), translated():
            return int(client.api.inspect_container(container_id)["State"]["Pid"])
    return 0


def take_shortcut(pid: int, container_id: str, pipes: object, transport: Transport, stream: AttachStream) -> None:
    """Switch ``transport`` from ``stream`` to the guest's own pipes, if possible; otherwise it goes on, more slowly.

    ``pipes`` are the descriptors and inodes of the pipes, as the guest's HELLO gives them.
    """
    if pid:
        switch(open_guest_pipes(pid, container_id, pipes), transport, stream)


def switch(pipes: tuple[int, int] | None, transport: Transport, stream: AttachStream) -> None:
    """Switch ``transport`` to the pipes that ``open_guest_pipes`` has opened."""
    if pipes is None:
        return
    into, out_of = pipes
    if not transport.sender.reroute(lambda: stream.bypass_engine(into)):
        os.close(into)
        os.close(out_of)
        return
    stream.offer_output(out_of)
    transport.switch_output(stream.switch_output)


def may_take_shortcut(client: docker.DockerClient) -> bool:
    """Return whether this process is root, and the engine behind its usual socket: then it is probably on the guest's machine."""
    return os.geteuid() == 0 and _has_usual_socket(client)


def _has_usual_socket(client: docker.DockerClient) -> bool:
    base_url = str(client.api.base_url)
    return (
        base_url == "http+docker://localhost"
        and getattr(client.api.get_adapter(base_url), "socket_path", None) in SOCKETS
    )


def open_guest_pipes(pid: int, container_id: str, named: object) -> tuple[int, int] | None:
    """Open a guest's input for writing and its output for reading, both non-blocking. Returns None if they are not there.

    ``named`` is what the guest says of them: ``[[descriptor, inode], [descriptor, inode]]``. ``pid`` is from the engine's
    namespace, which may be another one, and may not be the guest: some runtimes run the guest in a virtual machine or another
    kernel below that process.
    """
    if not isinstance(named, list) or len(named) != 2 or not all(map(_names_a_pipe, named)):
        return None
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        process = os.pidfd_open(pid)
        held.callback(os.close, process)
        if container_id not in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"):
            return None
        pipes: list[int] = []
        device = _device_of_pipes()
        for number, inode in named:
            # Opened as a path first: opening a device may have an effect.
            pipes.append(os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC))
            held.callback(os.close, pipes[-1])
            state = os.fstat(pipes[-1])
            # A named pipe is refused, too: it may lie where only root can write.
            if not stat.S_ISFIFO(state.st_mode) or (state.st_dev, state.st_ino) != (device, inode):
                return None
        if named[0][1] == named[1][1] or _ended(process):
            return None
        into = os.open(f"/proc/self/fd/{pipes[0]}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return into, os.open(f"/proc/self/fd/{pipes[1]}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.close(into)
    return None


def _names_a_pipe(named: object) -> bool:
    return isinstance(named, list) and len(named) == 2 and all(isinstance(number, int) for number in named)


def _device_of_pipes() -> int:
    """Return the device number of the kernel's file system of unnamed pipes."""
    read, write = os.pipe()
    try:
        return os.fstat(read).st_dev
    finally:
        os.close(read)
        os.close(write)


def _ended(process: int) -> bool:
    """Return whether the process behind a pidfd has ended; its number may then be another's."""
    end = select.poll()
    end.register(process, select.POLLIN)
    return bool(end.poll(0))
