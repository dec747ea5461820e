"""Report servers that commands leave running: the TCP ports on which they began to listen since the last report.

Looks happen when something is answered while a command runs in the background or left processes behind. What the kernel lists
belongs to the commands, so a look is bounded in what it reads and in the time it takes.
"""

from __future__ import annotations

import time

from ..kernel import ActingOnFiles
from . import sockets
from .procfs import find_descendants, read_socket_inodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..commands.command import Command

MOST_PORTS = 5
MOST_PROCESSES, MOST_DESCRIPTORS = 64, 256
# After two looks that took more processor time than FREE_SECONDS, because there are many sockets, the next one waits: looks take
# at most this share of the time. After one it does not: what another machine took of a processor may count as time of the look.
FREE_SECONDS, LOOK_SHARE = 0.02, 1 / 20


class NewServers:
    """Makes notices of new servers, one for each port as long as it is open. Lives in the reactor's thread.

    ``acting_as_user`` switches the thread to the user who may see the commands' descriptors. If the sandbox is not ``isolated``,
    servers of other programs on this machine are left out.
    """

    def __init__(self, acting_as_user: ActingOnFiles, isolated: bool) -> None:
        self._acting_as_user = acting_as_user
        self._isolated = isolated
        self._known_inodes: set[str] = set()
        self._reported_ports: set[int] = set()
        self._last_seconds = self._next_look = 0.0

    def notices(self, commands: Iterable[Command]) -> list[dict[str, Any]]:
        """Return notices of the ports that are new. ``commands`` are all that have processes."""
        if time.monotonic() < self._next_look:
            return []
        began = time.thread_time()
        try:
            return self._look(commands)
        finally:
            used = time.thread_time() - began
            both, self._last_seconds = min(used, self._last_seconds), used
            self._next_look = time.monotonic() + both / LOOK_SHARE if both > FREE_SECONDS else 0.0

    def _look(self, commands: Iterable[Command]) -> list[dict[str, Any]]:
        listening = [each for each in sockets.list_tcp_listeners() if _is_local(each[1])]
        now = {inode: port for inode, _, port in listening}
        over_ipv4 = {port for _, host, port in listening if host != "::1"}
        fresh, self._known_inodes = now.keys() - self._known_inodes, set(now)
        self._reported_ports &= set(now.values())
        fresh = {inode for inode in fresh if now[inode] not in self._reported_ports}
        if fresh:
            fresh -= read_socket_inodes("self", MOST_DESCRIPTORS)  # the guest's proxy is not a command's server
        if not fresh:
            return []
        owners = self._owners(fresh, commands)
        found: dict[int, str | None] = {}
        for inode in fresh:
            owner = owners.get(inode)
            if owner is not None and owner.running and not owner.in_background:
                self._known_inodes.discard(inode)  # its caller still waits; the command may leave the server behind
            elif owner is not None or self._isolated:
                found[now[inode]] = found.get(now[inode]) or (None if owner is None else owner.id)
        self._reported_ports.update(found)
        notices: list[dict[str, Any]] = [
            {"code": "server_listening", "port": port, "id": found[port], "ipv6": port not in over_ipv4}
            for port in sorted(found)[:MOST_PORTS]
        ]
        if len(found) > MOST_PORTS:
            notices[-1]["more"] = len(found) - MOST_PORTS
        return notices

    def _owners(self, inodes: set[str], commands: Iterable[Command]) -> dict[str, Command]:
        """Return the command whose processes hold each socket, as far as they can be read."""
        found: dict[str, Command] = {}
        left = MOST_PROCESSES
        for command in commands:
            if command.runner is None:
                continue
            pids = find_descendants(command.runner.pid)[:left]
            left -= len(pids)
            with self._acting_as_user:
                held = {inode for pid in pids for inode in read_socket_inodes(pid, MOST_DESCRIPTORS)}
            found.update(dict.fromkeys(inodes & held, command))
        return found


def _is_local(host: str) -> bool:
    """Return whether this sandbox reaches the address on loopback."""
    return host.startswith(("127.", "::ffff:127.")) or host in ("0.0.0.0", "::", "::1", "::ffff:0.0.0.0")  # noqa: S104
