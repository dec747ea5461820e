"""``processes``: list every command and the tree of processes below it.

The list is made in the reactor's thread, /proc is read in a worker. Everything read belongs to the commands, so names, counts and
depths are bounded.
"""

from __future__ import annotations

import re
import sys
import time
from functools import partial

from ..protocol.faults import Fault
from ..watch import procfs, sockets
from ..watch.waiting import explain_wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..commands.command import Command
    from ..commands.launch.spawner import Runner
    from ..commands.processes import Processes, Reply
    from ..loop.reactor import Reactor
    from ..loop.workers import Workers
    from ..watch.procfs import Stat

    Tree = tuple[int, str | None]  # the pid of a runner, and the name of the command's standard input in /proc

# The most that is listed: commands, processes of one command among others, processes altogether.
MOST_COMMANDS, MOST_OF_ONE, MOST_PROCESSES = 80, 50, 200
# The load is measured since the last list, unless that is too short for the kernel's clock or long past.
LEAST_SAMPLE_SECONDS, LONGEST_SAMPLE_SECONDS = 0.2, 30.0
MOST_DESCRIPTORS, MOST_PORTS = 1024, 8
COMMAND_CHARS = 200
# The shell around a command (see ``sessions``) has this before the command itself.
_SHELL_PRELUDE = re.compile(rb"\A[^\0]*\0-c\0[^\0]*; exit \$(?:__gamebox_status|\?)\0([^\0]*)\0([^\0]*)")


class ProcessList:
    """Answers ``processes``. Remembers the processor times of the last list, to compute the load."""

    def __init__(self, reactor: Reactor, processes: Processes, workers: Workers) -> None:
        self._reactor = reactor
        self._processes = processes
        self._workers = workers
        self._before: tuple[float, dict[int, Stat]] = (0.0, {})

    def processes(self, args: dict[str, Any], reply: Reply) -> None:
        """List all commands, or the one with an id. Raises Fault."""
        known = self._processes.commands
        listed = list(known.values()) if args["id"] is None else [self._processes.find(args["id"])]
        listed.sort(key=_rank)
        more, listed = len(listed[MOST_COMMANDS:]), listed[:MOST_COMMANDS]
        facts = [_facts(command) for command in listed]
        trees: list[Tree | None] = []
        runners: list[Runner] = []
        for command in listed:
            runner = None if command.tree_empty else command.runner
            trees.append(None if runner is None else (runner.pid, command.input.name if command.input else None))
            runners += [] if runner is None else [runner]
        for runner in runners:
            self._processes.spawner.hold(runner)

        def finish(result: dict[str, Any] | None) -> None:
            for runner in runners:
                self._processes.spawner.release(runner)
            if result is None:
                reply({"fault": Fault("io_error", problem="the processes could not be read")}, b"")
            else:
                reply({"result": {**result, "more_commands": more}}, b"")

        self._workers.submit(partial(self._read, facts, trees, finish))

    def _read(
        self, facts: list[dict[str, Any]], trees: list[Tree | None], finish: Callable[[dict[str, Any] | None], None]
    ) -> None:
        result: dict[str, Any] | None = None
        try:
            result = self._sample(facts, trees)
        except (OSError, ValueError) as error:  # /proc changes while it is read
            print(f"processes: {error}", file=sys.stderr)
        self._reactor.hand_over(partial(finish, result))

    def _sample(self, facts: list[dict[str, Any]], trees: list[Tree | None]) -> dict[str, Any]:
        at, before = self._before
        if any(trees) and not LEAST_SAMPLE_SECONDS <= time.monotonic() - at <= LONGEST_SAMPLE_SECONDS:
            at, before = time.monotonic(), procfs.read_all_stats()
            time.sleep(LEAST_SAMPLE_SECONDS)
        begun, now, table = at, at, {}
        if any(trees):
            # From before the first look until after the second: where either is late, the load seems less, never more.
            begun, table, now = time.monotonic(), procfs.read_all_stats(), time.monotonic()
        self._before = (begun, table) if table else self._before
        trees_read = _Trees(table, before, max(now - at, 0.001))
        for fact, tree in zip(facts, trees, strict=True):
            if tree is not None:
                trees_read.add(fact, tree, MOST_OF_ONE if len(facts) > 1 else MOST_PROCESSES)
        return {"commands": facts, "sampled_seconds": round(now - at, 3), **self._totals()}

    def _totals(self) -> dict[str, Any]:
        """Return what the whole sandbox uses, and the limits. What the kernel does not show is left out."""
        cgroup, limits = self._processes.cgroup, self._processes.place.limits
        memory, processes = cgroup.memory_needed(), cgroup.processes()
        found: dict[str, Any] = {}
        if memory is not None:
            found.update(memory_bytes=memory, memory_limit_bytes=limits["memory_bytes"])
        if processes is not None:
            found.update(pids=processes, pids_limit=limits["pids"])
        return found


class _Trees:
    """The processes below each command, from two samples that are ``seconds`` apart."""

    def __init__(self, table: dict[int, Stat], before: dict[int, Stat], seconds: float) -> None:
        self._table, self._before, self._seconds = table, before, seconds
        self._children = procfs.group_by_parent(table)
        self._left = MOST_PROCESSES
        self._listeners = sockets.list_listeners() if table else {}

    def add(self, fact: dict[str, Any], tree: Tree, most: int) -> None:
        """Add to ``fact`` the processes below a command's runner, and what it waits for."""
        root, stdin = tree
        below = procfs.list_below(root, self._children)
        listed = below[: min(most, self._left)]
        self._left -= len(listed)
        fact["process_count"] = len(below)
        fact["processes"] = [self._process(pid, root) for pid in procfs.sort_depth_first(root, listed, self._children)]
        if fact["running"]:
            fact["waiting_for"] = explain_wait(root, stdin, self._children)

    def _process(self, pid: int, root: int) -> dict[str, Any]:
        stat = self._table[pid]
        before = self._before.get(pid)
        is_same = before is not None and before.started == stat.started
        ticks = stat.ticks - before.ticks if before is not None and is_same else stat.ticks
        return {
            "pid": pid,
            "parent": 0 if stat.parent == root else stat.parent,
            "name": stat.name,
            "state": stat.state,
            "command": read_command_line(pid),
            "cpu_seconds": round(stat.ticks / procfs.HERTZ, 2),
            "cpu_percent": round(100 * max(ticks, 0) / procfs.HERTZ / self._seconds, 1),
            "memory_bytes": stat.memory,
            "threads": stat.threads,
            "age_seconds": round(stat.age, 2),
            "listens": self._listens(pid),
        }

    def _listens(self, pid: int) -> list[dict[str, Any]]:
        if not self._listeners:
            return []
        inodes = procfs.read_socket_inodes(pid, MOST_DESCRIPTORS)
        found = {self._listeners[inode] for inode in inodes if inode in self._listeners}
        return [{"protocol": p, "address": a[:400], "port": n} for p, a, n in sorted(found)[:MOST_PORTS]]


def read_command_line(pid: int) -> str:
    """Return the command line of a process, cut to COMMAND_CHARS. The shell around a command is shortened to "bash -c 'make'"."""
    data = procfs.read_file(f"/proc/{pid}/cmdline")
    if match := _SHELL_PRELUDE.match(data):
        data = b"%s -c %s" % match.groups()
    return data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")[:COMMAND_CHARS]


def _rank(command: Command) -> tuple[int, float]:
    """Sort commands that run first, then those that left processes, then those that ended, the latest first."""
    if command.running:
        return 0, command.started
    return (1, command.ended) if not command.tree_empty else (2, -command.ended)


def _facts(command: Command) -> dict[str, Any]:
    exit_code, signal = command.outcome
    until = time.monotonic() if command.running else command.ended
    details = command.details
    return {
        "id": command.id,
        "command": details.get("text", ""),
        "session": details.get("session"),
        "background": bool(details.get("background")),
        "running": command.running,
        "exit_code": exit_code,
        "signal": signal,
        "stop_reason": command.stop_reason,
        "seconds": round(until - command.started, 3),
        "output_bytes": command.output.total,
    }
