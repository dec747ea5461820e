"""Several sandboxes at once under a seeded mix of operations, while faults are injected; every answer is checked.

Files, commands (foreground, background, sessions, terminals, hogs), lists of processes and transfers are in it; not waits, pages,
and the state of files (changes, checkpoints, forks, patches).

    python -m tests.soak [--minutes 60] [--sandboxes 3] [--seed 1] [--json]

The last lines are counts; exit code 1 where one is not zero that has to be: wrong answers, late ones, processes that survived,
containers, volumes and devices left behind, descriptors and threads of this process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
import traceback
from random import Random

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sandbox import DockerEnvironment
from sandbox.docker import engine
from tests.integration.observing import resident_bytes

from .actions import ACTIONS
from .counts import Counts
from .faults import FAULTS
from .subject import Remains, Subject, Wrong

# One fault in so many actions, and a sandbox is closed and replaced anyway after so many.
FAULT_EVERY, LIFE_ACTIONS = 60, 600
PROGRESS_SECONDS = 10.0


class Soak:
    """One run: ``counts`` is what came of it."""

    def __init__(self, seed: int, sandboxes: int) -> None:
        self.counts = Counts()
        self._seed = seed
        self._sandboxes = sandboxes
        self._everything: set[Remains] = set()
        self._until = 0.0

    def run(self, seconds: float) -> Counts:
        """Go on for so long, then close everything and count what is left."""
        with DockerEnvironment() as env:  # what is loaded, or opened once, belongs to no action
            env.run("true", pty=True).unwrap()
            env.browse("http://127.0.0.1:1/")
        before = self._used()
        self._until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._work, args=(n,), name=f"soak-{n}") for n in range(self._sandboxes)]
        for thread in threads:
            thread.start()
        self._show(threads, seconds)
        self._count_remains()
        self._count_leaks(before)
        return self.counts

    # --- one sandbox after the other ------------------------------------------------------------------
    def _work(self, number: int) -> None:
        rng = Random(f"{self._seed}/{number}")
        while time.monotonic() < self._until:
            try:
                subject = Subject(rng, self.counts, self._everything)
            except Exception as error:  # noqa: BLE001
                self.counts.add("wrong", note=f"no sandbox: {error!r}")
                time.sleep(1)
                continue
            try:
                self._live(subject, rng)
            finally:
                subject.close()

    def _live(self, subject: Subject, rng: Random) -> None:
        while time.monotonic() < self._until and subject.actions < LIFE_ACTIONS:
            subject.actions += 1
            kinds = FAULTS if rng.randrange(FAULT_EVERY) == 0 else ACTIONS
            chosen = rng.choices(list(kinds), list(kinds.values()))[0]
            name = chosen.__name__
            if kinds is FAULTS:
                self.counts.injected(name.replace("_", " "))
            else:
                self.counts.acted(name)
            try:
                if chosen(subject):
                    return
                subject.weigh()
            except Exception as error:  # noqa: BLE001
                what = str(error) if isinstance(error, Wrong) else "".join(traceback.format_exception(error)[-4:])
                self.counts.add("wrong", note=f"{name}, action {subject.actions}: {what}")
                return  # what is true of that sandbox is not known any more

    # --- the end ------------------------------------------------------------------
    def _show(self, threads: list[threading.Thread], seconds: float) -> None:
        console, began, said = Console(stderr=True), time.monotonic(), time.monotonic()
        columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=seconds)
            told = 0
            while any(thread.is_alive() for thread in threads):
                threads[0].join(0.5)
                time.sleep(0.1)
                for note in self.counts.notes[told:]:
                    progress.console.print(note, markup=False, highlight=False)
                    told += 1
                now = time.monotonic()
                progress.update(task, completed=min(now - began, seconds), description=self.counts.line())
                if not console.is_terminal and now - said > PROGRESS_SECONDS:
                    said = now
                    print(f"{now - began:.0f} s {self.counts.line()}", file=sys.stderr, flush=True)

    def _count_remains(self) -> None:
        for _ in range(50):  # the engine removes what it said it would a moment later
            left = [found for remains in self._everything for found in remains.left()]
            if not left:
                return
            time.sleep(0.1)
        self.counts.add("orphans", len(left), ", ".join(left))

    def _count_leaks(self, before: tuple[int, int, int]) -> None:
        for _ in range(30):
            after = self._used()
            if after[:2] <= before[:2]:
                break
            time.sleep(0.1)
        for name, index in (("leaked_descriptors", 0), ("leaked_threads", 1), ("leaked_bytes", 2)):
            self.counts.highest(name, max(0, after[index] - before[index]))

    def _used(self) -> tuple[int, int, int]:
        for client in list(engine._clients.values()):
            client.api.close()  # idle connections, of which docker-py keeps up to 25 a client
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), resident_bytes(os.getpid())


def main() -> int:
    """The program; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--sandboxes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counts = Soak(options.seed, options.sandboxes).run(options.minutes * 60)
    print(json.dumps(counts.to_dict()) if options.json else "\n".join(counts.lines()))
    return 0 if counts.fine() else 1


if __name__ == "__main__":
    sys.exit(main())
