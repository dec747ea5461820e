"""The timeline of one `run("true")`: who runs, who waits for a processor, and who wakes whom, to the microsecond.

    python -m benchmarks.timeline [--rounds 40] [--no-session | --argv] [--out FOLDER]

Prints every hand-over of the run whose time is the median, and where the microseconds of all of them went; --out writes this as
timeline.txt, and a picture as timeline.svg. Needs perf with the kernel's scheduler events (Debian: linux-perf), root, and the
engine on this machine. Tracing makes a run a little slower: both medians are printed.

The way of a run is followed backwards, from the return of the call: what ran until then, who woke it, what that ran until it
did so, and so on. Whatever is not on this way cost the caller nothing, and is drawn paler.
"""

from __future__ import annotations

import argparse
import bisect
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from sandbox import DockerEnvironment

from . import machine
from .measuring import DEFAULT_IMAGE, milliseconds
from .pictures import draw_timeline

EVENTS = ("sched_switch", "sched_waking", "sched_wakeup_new", "sched_process_fork", "sched_process_exec")
EVENT = re.compile(r"^.*?(\d+)/(\d+)\s+\[(\d+)\]\s+(\d+)\.(\d+):\s+sched:(\w+):\s+(.*)$")
FIELD = re.compile(r"(\w+)=(.*?)(?= \w+=| ==>|$)")
# Processes of a sandbox by what made them; the child of a runner waits until it becomes a command.
CHILDREN = {"guest": "launcher", "launcher": "runner", "runner": "command"}
# For each processor: with less, events of a busy machine are lost.
BUFFER = "16M"
# A process that ran before the window may have been switched to before it, too.
EARLY_NS = 5_000_000


@dataclass
class Thread:
    """What the scheduler did with one thread. Times are ns of the monotonic clock."""

    label: str
    runs: list[tuple[int, int, bool]] = field(default_factory=list)  # from, until, whether it still wanted to run
    wakes: list[tuple[int, int]] = field(default_factory=list)  # when it was woken, and by which thread
    programs: list[tuple[int, str]] = field(default_factory=list)  # since when it runs which one


@dataclass(frozen=True)
class Piece:
    """A part of a run's way: a thread ran, or waited for a processor although it had been woken."""

    began: int
    ended: int
    label: str
    waits: bool


class Trace:
    """The threads of those who take part, from the lines of `perf script`."""

    def __init__(self, lines: Iterator[str], labels: dict[int, str]) -> None:
        self.threads = {tid: Thread(label) for tid, label in labels.items()}
        running: dict[int, int] = {}
        for each in lines:
            found = EVENT.match(each)
            if found is None:
                continue
            tid, at = int(found[2]), int(found[4]) * 10**9 + int(found[5].ljust(9, "0"))
            fields = dict(FIELD.findall(found[7]))
            if found[6] == "sched_switch":
                self._switch(at, fields, running)
            elif found[6] == "sched_process_fork" and tid in self.threads:
                self.threads[int(fields["child_pid"])] = Thread(child_label(self.threads[tid].label))
            elif found[6] == "sched_process_exec" and tid in self.threads:
                self.threads[tid].programs.append((at, Path(fields["filename"]).name))
            elif found[6] in ("sched_waking", "sched_wakeup_new") and int(fields["pid"]) in self.threads:
                self.threads[int(fields["pid"])].wakes.append((at, tid))

    def _switch(self, at: int, fields: dict[str, str], running: dict[int, int]) -> None:
        previous, following = int(fields["prev_pid"]), int(fields["next_pid"])
        if previous in self.threads:
            began = running.pop(previous, at - EARLY_NS)
            self.threads[previous].runs.append((began, at, fields["prev_state"].startswith("R")))
        if following in self.threads:
            running[following] = at

    def label(self, tid: int, at: int) -> str:
        """Return what a thread is at that time, with its program if it has changed that."""
        thread = self.threads[tid]
        programs = [program for since, program in thread.programs if since <= at]
        return f"{thread.label}: {programs[-1]}" if programs else thread.label

    def way(self, caller: int, began: int, ended: int) -> list[Piece]:
        """Return the pieces, in order, of the way from a call to its return, without gaps where everybody slept."""
        pieces: list[Piece] = []
        tid, at = caller, ended
        while at > began and tid in self.threads:
            thread = self.threads[tid]
            index = bisect.bisect_left(thread.runs, (at,)) - 1
            if index < 0:
                break
            start, label = thread.runs[index][0], self.label(tid, at)
            pieces.append(Piece(max(start, began), at, label, waits=False))
            if start <= began:
                break
            before = thread.runs[index - 1] if index else None
            if before is not None and before[2]:  # it lost its processor
                pieces.append(Piece(max(before[1], began), start, label, waits=True))
                at = before[1]
                continue
            since = before[1] if before is not None else 0
            woken = next(((when, who) for when, who in thread.wakes if since <= when <= start), None)
            if woken is None:
                break
            pieces.append(Piece(max(woken[0], began), start, label, waits=True))
            at, tid = woken
        return [piece for piece in reversed(pieces) if piece.ended > piece.began]


@dataclass(frozen=True)
class Recording:
    """Runs under the tracer: the trace, the thread that called, and when each call began and ended."""

    trace: Trace
    caller: int
    calls: list[tuple[int, int]]
    quiet_ms: float

    def middle(self) -> list[tuple[int, int]]:
        """Return the calls but for the fastest and the slowest quarter of them, the fastest first."""
        ordered = sorted(self.calls, key=lambda call: call[1] - call[0])
        return ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]

    def median(self) -> tuple[int, int]:
        """Return the call whose duration is the median."""
        middle = self.middle()
        return middle[len(middle) // 2]


def child_label(parent: str) -> str:
    """Return what the child of a process is."""
    return CHILDREN.get(parent, "a child of it")


def thread_labels(env: DockerEnvironment) -> dict[int, str]:
    """Return what every thread is, of all processes that take part."""
    parties = machine.parties(env)
    processes = {pid: party for party, pids in parties.items() for pid in pids if party != "sandbox"}
    processes[parties["sandbox"][0]] = "guest"
    for pid in sorted(parties["sandbox"][1:]):  # a parent before its children
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        processes[pid] = child_label(processes.get(parent, "guest"))
    found = {
        int(task.name): label if int(task.name) == pid else f"{label}, a thread"
        for pid, label in processes.items()
        for task in Path(f"/proc/{pid}/task").iterdir()
    }
    ours = {thread.native_id: f"orchestrator, {thread.name}" for thread in threading.enumerate()}
    return {tid: ours.get(tid, label) for tid, label in found.items()} | {threading.get_native_id(): "orchestrator"}


def record(env: DockerEnvironment, call: Callable[[], object], rounds: int) -> Recording:
    """Trace so many calls, with a pause between them."""
    def once() -> tuple[int, int]:
        time.sleep(0.02)
        began = time.monotonic_ns()
        call()
        return began, time.monotonic_ns()

    for _ in range(rounds):
        once()
    quiet = statistics.median(milliseconds(call) for _ in range(rounds))
    labels = thread_labels(env)
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder, "perf.data"))
        events = ",".join(f"sched:{event}" for event in EVENTS)
        options = ["-q", "-a", "-k", "CLOCK_MONOTONIC", "-m", BUFFER, "-e", events, "-o", data]
        perf = subprocess.Popen(["perf", "record", *options])
        try:
            time.sleep(1)  # until it records; it does not say so
            calls = [once() for _ in range(rounds)]
            time.sleep(0.1)
        finally:
            os.kill(perf.pid, signal.SIGINT)
            perf.wait()
        command = ["perf", "script", "-i", data, "--ns", "-F", "pid,tid,comm,cpu,time,event,trace"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
            assert script.stdout is not None
            trace = Trace(iter(script.stdout), labels)
    return Recording(trace, threading.get_native_id(), calls, quiet)


def shares(found: Recording) -> dict[str, tuple[float, float]]:
    """Return the mean µs of the middle calls in which each party was on its way: running, and waiting for a processor."""
    calls = found.middle()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for began, ended in calls:
        accounted = 0
        for piece in found.trace.way(found.caller, began, ended):
            sums[piece.label][piece.waits] += piece.ended - piece.began
            accounted += piece.ended - piece.began
        sums["not on any traced thread"][0] += ended - began - accounted
    return {label: (runs / len(calls) / 1000, waits / len(calls) / 1000) for label, (runs, waits) in sums.items()}


def text(found: Recording, title: str) -> str:
    """Return the tables: the way of the median call, and the shares of all."""
    began, ended = found.median()
    lines = [
        f"{title}: median of {len(found.calls)} calls {(ended - began) / 1e6:.2f} ms while traced, {found.quiet_ms:.2f} ms before",
        "",
        f"{'at µs':>8} {'waits':>7} {'runs':>7}  the way of the median call",
    ]
    waited = 0
    for piece in found.trace.way(found.caller, began, ended):
        if piece.waits:
            waited = piece.ended - piece.began
            continue
        at, took = piece.began - began, piece.ended - piece.began
        lines.append(f"{at / 1e3:8.0f} {waited / 1e3:7.0f} {took / 1e3:7.0f}  {piece.label}")
        waited = 0
    lines += ["", f"{'runs µs':>8} {'waits':>7}  mean of the calls between the quartiles"]
    for label, (runs, waits) in sorted(shares(found).items(), key=lambda item: -sum(item[1])):
        lines.append(f"{runs:8.0f} {waits:7.0f}  {label}")
    return "\n".join(lines) + "\n"


def picture(found: Recording, title: str) -> str:
    """Return the median call as SVG: a lane for each thread that ran, the way of the call dark."""
    began, ended = found.median()
    way = found.trace.way(found.caller, began, ended)
    on_way = {(piece.label, piece.began) for piece in way if not piece.waits}
    bars: list[tuple[str, float, float, str]] = []
    for tid, thread in found.trace.threads.items():
        for start, end, _ in thread.runs:
            if end > began and start < ended:
                label = found.trace.label(tid, min(end, ended))
                kind = "way" if (label, max(start, began)) in on_way else "beside"
                bars.append((label, (max(start, began) - began) / 1e3, (min(end, ended) - began) / 1e3, kind))
    bars += [(p.label, (p.began - began) / 1e3, (p.ended - began) / 1e3, "wait") for p in way if p.waits]
    links = [((to.began - began) / 1e3, of.label, to.label) for of, to in pairwise(way) if of.label != to.label]
    return draw_timeline(title, bars, links, (ended - began) / 1e3)


def main(argv: Sequence[str] | None = None) -> int:
    """Record, print, and write what was asked for; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.timeline", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--no-session", action="store_true", help='run("true", session=None)')
    parser.add_argument("--argv", action="store_true", help='run(argv=["/bin/true"])')
    parser.add_argument("--image", default=DEFAULT_IMAGE)
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    options = parser.parse_args(argv)
    with machine.open_sandbox(options.image) as env:
        calls: dict[str, Callable[[], object]] = {
            'run("true")': lambda: env.run("true").unwrap(),
            'run("true", session=None)': lambda: env.run("true", session=None).unwrap(),
            'run(argv=["/bin/true"])': lambda: env.run(argv=["/bin/true"]).unwrap(),
        }
        title = list(calls)[2 if options.argv else 1 if options.no_session else 0]
        found = record(env, calls[title], options.rounds)
    shown = text(found, title)
    print(shown, end="")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "timeline.txt").write_text(shown, encoding="utf-8")
        (options.out / "timeline.svg").write_text(picture(found, title), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
