"""Processes as a tree, read from /proc, and killing everything below one of them."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# A process that never stops forking can outrun a scan; after this long the caller has to escalate (seen: 200 ms catches every
# evader but a fork storm).
KILL_SECONDS = 0.2


def parents() -> dict[int, int]:
    """Parent of every live process, by pid. A zombie with living threads counts as alive."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        state, parent = _state_of(f"/proc/{name}/stat")
        if state in "ZX" and not _has_living_task(name):
            continue
        found[int(name)] = parent
    return found


def descendants(root: int, kept: Collection[int] = ()) -> list[int]:
    """Every live process below ``root``, which is not among them, but ``kept`` and theirs; parents before their children."""
    table = parents()
    children: dict[int, list[int]] = {}
    for pid, parent in table.items():
        if pid not in kept:
            children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:  # grows while it is walked
        found += children.get(pid, ())
    return found[1:]


def kill_below(root: int, seconds: float = KILL_SECONDS, kept: Collection[int] = ()) -> tuple[set[int], set[int]]:
    """SIGKILL everything below ``root`` (but ``kept`` and theirs) until two scans in a row find nothing, for at most ``seconds``.

    Answers (killed, survivors). ``root`` must be the sub-reaper of its tree, so that orphans stay below it.
    """
    deadline = time.monotonic() + seconds
    killed: set[int] = set()
    quiet = 0
    while True:
        alive = descendants(root, kept)
        for pid in alive:  # the leader first: a shell must not live to comment on the death of its children
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # gone, or not ours to kill: the next scan tells
                pass
        killed.update(alive)
        quiet = 0 if alive else quiet + 1
        if quiet == 2 or time.monotonic() > deadline:
            return killed, set(alive)
        if alive:
            time.sleep(0.001)


def outlast(root: int, killed: Collection[int], seconds: float, kept: Collection[int] = ()) -> set[int] | None:
    """Wait up to ``seconds`` until those that were killed below ``root`` are gone; answers who still is there.

    None as soon as somebody turns up who was not killed yet: the tree forks on. On a busy machine a killed process waits for a
    processor to die on (seen: more than 0.2 s at 13 runnable ones a processor), and no harder kill would be faster.
    """
    deadline = time.monotonic() + seconds
    quiet = 0
    while True:
        alive = set(descendants(root, kept))
        if not alive <= set(killed):
            return None
        quiet = 0 if alive else quiet + 1
        if quiet == 2 or time.monotonic() > deadline:
            return alive
        time.sleep(0.002)


def _state_of(path: str) -> tuple[str, int]:
    """State letter and parent in a stat file; ("X", 0) when it is gone."""
    try:
        with open(path, "rb", buffering=0) as stat:
            text = stat.read(1024)
    except OSError:
        return "X", 0
    fields = text[text.rfind(b")") + 2 :].split(None, 2)
    return fields[0].decode(), int(fields[1])


def _has_living_task(pid: str) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_state_of(f"/proc/{pid}/task/{task}/stat")[0] not in "ZX" for task in tasks)
