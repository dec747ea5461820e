"""Trace one call on host and guest, and word its way file by file.

The sandbox is a LocalEnvironment: the same host code and the same guest as in a container, without the engine's part.
A call is traced several times, and the way that most of them took counts, because threads take turns as they like.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from sandbox import LocalEnvironment

from .tracer import Tracer

ROOT = str(Path(__file__).parents[2]) + "/"
ROUNDS = 15
# Rooms in the order of their first entry, each followed by the functions that were entered.
Rooms = tuple[tuple[str, ...], ...]
# Rooms that a call may enter more than twice, and why. How many events there are depends on how fast each process is.
TOOLS = {
    "guest/commands/launch/packets.py": "is the format of the launcher's packets",
    "guest/kernel.py": "acts on files as the sandbox's user",
    "guest/loop/link.py": "names the channels of the pipe and sends",
    "guest/protocol/json_text.py": "writes and reads the text of messages",
    "guest/protocol/wire.py": "is the format of the pipe",
    "local/environment.py": "is the pipe's stream",
    "pipe/incoming/frames.py": "finds frames in the bytes of the pipe",
}
EVENTS = {
    "guest/commands/command.py": "is entered by each event of the command: its output, its end",
    "guest/commands/launch/spawner.py": "is entered by each event of the launcher and of the runners",
}
TITLES = (
    "Host, the caller's thread, out",
    "Guest, the event loop",
    "Guest, a worker thread",
    "Guest, the processes of the command",
    "Host, the thread that reads the pipe",  # unless the caller does
    "Host, the caller's thread, back",
)
CALLS: dict[str, tuple[str, Callable[[LocalEnvironment], Any]]] = {
    "run": ('env.run("true")', lambda env: env.run("true").unwrap()),
    "read": ('env.read("p")', lambda env: env.read("p").unwrap()),
}
START = f"""
import sys
sys.path.insert(0, {ROOT!r})
from tests.walk.tracer import Tracer
Tracer(sys.argv.pop(1), {ROOT + "sandbox/"!r}).install_in_guest()
sys.path.remove({ROOT!r})
import runpy
runpy.run_module("sandbox.guest", run_name="__main__", alter_sys=True)
"""


class Entry(NamedTuple):
    """One entry into a room."""

    at: int
    process: int
    thread: int
    room: str
    function: str


@contextmanager
def traced(path: str) -> Iterator[LocalEnvironment]:
    """Yield a started sandbox whose guest, with all its processes, writes its entries to ``path``."""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        if command[-2:] == ["-m", "sandbox.guest"]:
            command = [*command[:-2], "-c", START, path]
        return popen(command, **options)

    env = LocalEnvironment()
    tracer = Tracer(path, ROOT + "sandbox/")
    threading.setprofile(tracer._on_event)  # the reader of the pipe is a thread that start() begins
    try:
        with mock.patch("subprocess.Popen", start):
            env.start()
    finally:
        threading.setprofile(None)
    try:
        yield env
    finally:
        env.close()


def entries(path: str, begin: int, end: int) -> list[Entry]:
    """Return the entries between two times, in order."""
    found = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        at, process, thread, room, function = line.split(" ")
        if begin <= int(at) <= end:
            found.append(Entry(int(at), int(process), int(thread), room, function))
    return sorted(found)


def parts_of(found: list[Entry], caller: int, guest: int) -> dict[str, Rooms]:
    """Return the parts of the way by their titles: out by the caller, through the guest, back by the reader and the caller."""
    sent = max((each.at for each in found if each.thread == caller and each.function.endswith(".send")), default=0)
    taken = max((each.at for each in found if each.function.endswith(".take")), default=0)
    lanes: dict[str, dict[str, list[str]]] = {title: {} for title in TITLES}
    for each in found:
        if each.process == os.getpid() and each.thread != caller and each.at > taken > 0:
            continue  # the reader of the pipe waits for what comes next, before or after the call has returned
        if each.thread == caller:
            title = "Host, the caller's thread, out" if each.at <= sent else "Host, the caller's thread, back"
        elif each.process == os.getpid():
            title = "Host, the thread that reads the pipe"
        elif each.process == guest:
            title = "Guest, the event loop" if each.thread == guest else "Guest, a worker thread"
        else:
            title = "Guest, the processes of the command"
        functions = lanes[title].setdefault(each.room, [])
        if each.function not in functions:
            functions.append(each.function)
    return {title: tuple((room, *functions) for room, functions in rooms.items()) for title, rooms in lanes.items()}


def busy_rooms(found: list[Entry]) -> frozenset[str]:
    """Return the rooms that one call enters more than twice, coming from another room each time, or at each event."""
    visits: Counter[str] = Counter()
    last: dict[int, str] = {}
    for each in found:
        visits[each.room] += last.get(each.thread) != each.room
        last[each.thread] = each.room
    return frozenset(room for room, number in visits.items() if number > 2 or room in EVENTS)


def way_of(name: str) -> tuple[dict[str, Rooms], list[str]]:
    """Trace a call; return each part of its way, and the rooms entered more than twice, as most rounds saw them."""
    call = CALLS[name][1]
    spans: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "entries")
        with traced(path) as env:
            env.write("p", "text\n").unwrap()
            guest = env.backend.process.pid if env.backend.process is not None else 0
            for _ in range(3):
                call(env)  # what is done only the first time is done
            tracer = Tracer(path, ROOT + "sandbox/")
            for _ in range(ROUNDS):
                time.sleep(0.02)
                begin = time.monotonic_ns()
                tracer.install()
                try:
                    call(env)
                finally:
                    tracer.remove()
                spans.append((begin, time.monotonic_ns()))
        rounds = [entries(path, *span) for span in spans]
    ways = [parts_of(found, threading.get_native_id(), guest) for found in rounds]
    way = {title: Counter(way[title] for way in ways).most_common(1)[0][0] for title in TITLES}
    busy = Counter(room for found in rounds for room in busy_rooms(found))
    return way, sorted(room for room, number in busy.items() if number > ROUNDS / 2)


def words(name: str) -> str:
    """Word the way of a call as a section of a page."""
    way, busy = way_of(name)
    lines = [f"### `{CALLS[name][0]}`", ""]
    for title, rooms in way.items():
        if rooms:
            lines += [f"{title}:", "", "```"]
            width = max(len(room) for room, *_ in rooms)
            lines += [f"{room.ljust(width)}  {', '.join(functions)}" for room, *functions in rooms]
            lines += ["```", ""]
    total = len({room for rooms in way.values() for room, *_ in rooms})
    reasons = {**TOOLS, **EVENTS}
    often = "; ".join(f"`{room}`, which {reasons[room]}" if room in reasons else f"`{room}`" for room in busy)
    return "\n".join([*lines, f"{total} files. Entered more than twice, or at each event: {often or 'none'}.", ""])


def page() -> str:
    """Word all ways."""
    return "\n".join(words(name) for name in CALLS)
