"""Servers that commands leave running: which TCP ports they have begun to listen on since somebody was told.

Looked at when something is answered while a command runs in the background or left processes behind. What the kernel lists belongs
to the commands: how much is read, and for how long, is bounded.
"""

from __future__ import annotations

import os
import time

from . import sockets
from .process_tree import descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..commands.command import Command
    from ..commands.processes import Processes

MOST_TOLD = 5
MOST_PROCESSES, MOST_DESCRIPTORS = 64, 256
# A look that takes more processor time than that, for there are many sockets, is not taken again at once: it costs at most this
# share of the time.
FREE_SECONDS, LOOK_SHARE = 0.02, 1 / 20


class Servers:
    """Notices of new servers, each port once as long as it is open. Lives in the reactor's thread."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._seen: set[str] = set()
        self._told: set[int] = set()
        self._next = 0.0

    def notices(self, commands: Iterable[Command]) -> list[dict[str, Any]]:
        """What is new; ``commands`` are all that have processes."""
        if time.monotonic() < self._next:
            return []
        began = time.thread_time()
        try:
            return self._look(commands)
        finally:
            used = time.thread_time() - began
            self._next = time.monotonic() + used / LOOK_SHARE if used > FREE_SECONDS else 0.0

    def _look(self, commands: Iterable[Command]) -> list[dict[str, Any]]:
        listening = [each for each in sockets.tcp_listeners() if _is_near(each[1])]
        now = {inode: port for inode, _, port in listening}
        by_ipv4 = {port for _, host, port in listening if host != "::1"}
        fresh, self._seen = now.keys() - self._seen, set(now)
        self._told &= set(now.values())
        fresh = {inode for inode in fresh if now[inode] not in self._told} - (_own() if fresh else set())
        if not fresh:
            return []
        owners = self._owners(fresh, commands)
        found: dict[int, str | None] = {}
        for inode in fresh:
            owner = owners.get(inode)
            if owner is not None and owner.running and not owner.stays:
                self._seen.discard(inode)  # of a command whose caller waits for it; it may leave it behind
            elif owner is not None or self._processes.isolated:
                found[now[inode]] = found.get(now[inode]) or (None if owner is None else owner.id)
        self._told.update(found)
        ports = sorted(found)[:MOST_TOLD]
        told: list[dict[str, Any]] = [
            {"code": "server_listening", "port": port, "id": found[port], "ipv6": port not in by_ipv4} for port in ports
        ]
        if len(found) > MOST_TOLD:
            told[-1]["more"] = len(found) - MOST_TOLD
        return told

    def _owners(self, inodes: set[str], commands: Iterable[Command]) -> dict[str, Command]:
        """The command whose processes hold a socket, as far as they can be read."""
        found: dict[str, Command] = {}
        left = MOST_PROCESSES
        for command in commands:
            if command.runner is None:
                continue
            below = descendants(command.runner.pid)[:left]
            left -= len(below)
            with self._processes.spawner.acting_as_user:
                held = {inode for pid in below for inode in _sockets_of(pid)}
            found.update(dict.fromkeys(inodes & held, command))
        return found


def _own() -> set[str]:
    """The guest's own sockets: its proxy is no server of a command."""
    return _sockets_of("self")


def _sockets_of(pid: int | str) -> set[str]:
    found = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd")[:MOST_DESCRIPTORS]:
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
            if link.startswith("socket:["):
                found.add(link[8:-1])
    except OSError:  # gone, or it has made itself unreadable
        pass
    return found


def _is_near(host: str) -> bool:
    """Whether this sandbox reaches it on loopback."""
    return host.startswith(("127.", "::ffff:127.")) or host in ("0.0.0.0", "::", "::1", "::ffff:0.0.0.0")  # noqa: S104
