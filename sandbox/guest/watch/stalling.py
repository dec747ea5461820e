"""What kept a command from ending within its time: what it waits for, the ports it serves, and whether it reads an input that has
ended over and over. Called in a worker, as the sandbox's user, just before the command is killed.
"""

from __future__ import annotations

import os
import time

from . import process_stat as procstat
from . import sockets
from .waiting import MOST_PROCESSES, explain, waiting_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Between two looks at how often a process has read: a loop on an input that has ended reads some hundred times in this.
SAMPLE_SECONDS = 0.01
LEAST_READS, MANY_READS = 5, 1000
MOST_DESCRIPTORS, MOST_PORTS = 256, 3


def stalled(root: int, stdin: str | None) -> dict[str, Any]:
    """Explain what is below ``root``: "wait" is that of ``waiting_for``, "ports" are those it serves over TCP, and "reads_end" says
    that it reads an input that has ended.
    """
    children: dict[int, list[int]] = {}
    for pid, stat in procstat.all_stats().items():
        children.setdefault(stat.parent, []).append(pid)
    pids = procstat.below(root, children)[:MOST_PROCESSES]
    wait = waiting_for(root, stdin, children)
    ports = ports_of(pids)
    if ports and (client := _client(pids, stdin)) is not None:
        wait, ports = client, []
    found: dict[str, Any] = {"wait": wait, "ports": ports, "reads_end": False}
    if wait is not None and wait["kind"] == "cpu":
        found["reads_end"] = _read_in_vain(pids)
    return found


def _client(pids: list[int], stdin: str | None) -> dict[str, Any] | None:
    """What a process waits for that waits on a socket and serves nothing itself: the command has a server, and another program."""
    for pid in pids:
        wait = explain(pid, stdin)
        if wait is not None and wait["kind"] == "socket" and not ports_of([pid]):
            return wait
    return None


def ports_of(pids: list[int]) -> list[int]:
    """The TCP ports on which these processes listen, the lowest first."""
    listening = {inode: port for inode, _, port in sockets.tcp_listeners()}
    found: set[int] = set()
    for pid in pids if listening else ():
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")[:MOST_DESCRIPTORS]
        except OSError:  # gone, or it has made itself unreadable
            continue
        for descriptor in descriptors:
            try:
                link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            except OSError:  # closed meanwhile
                continue
            if link.startswith("socket:[") and link[8:-1] in listening:
                found.add(listening[link[8:-1]])
    return sorted(found)[:MOST_PORTS]


def _read_in_vain(pids: list[int]) -> bool:
    """Whether one of them reads again and again without getting a byte."""
    before = {pid: _reads(pid) for pid in pids}
    if any(calls >= MANY_READS and got < calls for got, calls in before.values()):  # less than a byte each
        return True
    time.sleep(SAMPLE_SECONDS)
    for pid, (got, calls) in before.items():
        now_got, now_calls = _reads(pid)
        if calls and now_got == got and now_calls - calls >= LEAST_READS:
            return True
    return False


def _reads(pid: int) -> tuple[int, int]:
    """Bytes that a process has read, and the calls that took; zeros where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            words = file.read(1024).split()
        return int(words[1]), int(words[5])
    except (OSError, ValueError, IndexError):
        return 0, 0
