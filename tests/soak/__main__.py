"""Several sandboxes at once under a seeded mix of operations, while faults are injected; every answer is checked.

Files, transfers, commands (foreground, background, sessions, terminals, hogs), waits and output as it comes, lists of processes,
pages, and the state of files (changes, checkpoints, rollbacks, forks, patches) are in it; some of the sandboxes are kept, and
some have their pipes behind a FaultyStream. Faults: containers killed, removed, paused from outside and by pause(); pipes cut,
slow, stalled; orchestrators killed, dropped and replaced; and others behind an EngineProxy.

    python -m tests.soak [--minutes 60] [--sandboxes 3] [--seed 1] [--json]

The last lines are counts; exit code 1 where one is not zero that has to be: wrong answers, late ones, processes that survived,
containers, volumes, devices and owners left behind, descriptors, threads and files of this process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sandbox import DockerEnvironment
from tests.integration.observing import resident_bytes

from . import faults, kept, pipes
from .actions import ACTIONS
from .counts import Counts
from .host import Held, held, one_arena, own_places
from .subject import Remains, Subject, Wrong, on_engine

# One fault in so many actions, and a sandbox is closed and replaced anyway after so many.
FAULT_EVERY, LIFE_ACTIONS = 40, 600
PROGRESS_SECONDS = 30.0
# No action takes a tenth of it; one that takes longer is stuck, and what it is stuck in is told.
STUCK_SECONDS = 240.0
ANYWHERE = {**faults.FAULTS, **pipes.ANYWHERE, **kept.ANYWHERE}
OF_KEPT = {**ANYWHERE, **pipes.OF_KEPT, **kept.OF_KEPT}
OF_OTHERS = {**ANYWHERE, **faults.OF_OTHERS, **pipes.OF_OTHERS}


class Soak:
    """One run: ``counts`` is what came of it."""

    def __init__(self, seed: int, sandboxes: int) -> None:
        self.counts = Counts()
        self._seed = seed
        self._sandboxes = sandboxes
        self._everything: set[Remains] = set()
        self._until = 0.0
        self._doing: dict[int, tuple[str, float]] = {}  # of a worker: what, since when

    def run(self, seconds: float) -> Counts:
        """Go on for so long, then close everything and count what is left."""
        one_arena()
        with own_places() as folder:
            with DockerEnvironment() as env:  # what is loaded, or opened once, belongs to no action
                env.run("true", pty=True).unwrap()
                env.browse("http://127.0.0.1:1/")
                env.checkpoint().unwrap()
            before = held(folder)
            self._until = time.monotonic() + seconds
            threads = [
                threading.Thread(target=self._work, args=(n,), name=f"soak-{n}", daemon=True)
                for n in range(self._sandboxes)
            ]
            for thread in threads:
                thread.start()
            self._show(threads, seconds)
            self._count_remains()
            self._count_leaks(before, folder)
        return self.counts

    # --- one sandbox after the other ------------------------------------------------------------------
    def _work(self, number: int) -> None:
        rng = Random(f"{self._seed}/{number}")
        while time.monotonic() < self._until:
            self._doing[number] = ("a start", time.monotonic())
            try:
                subject = Subject(rng, self.counts, self._everything)
            except Exception as error:  # noqa: BLE001
                self.counts.add("wrong", note=f"no sandbox: {_in_words(error)}")
                time.sleep(1)
                continue
            try:
                self._live(number, subject, rng)
            finally:
                self._close(number, subject)
        del self._doing[number]

    def _close(self, number: int, subject: Subject) -> None:
        self._doing[number] = ("an end", time.monotonic())
        try:
            subject.close()
        except Exception as error:  # noqa: BLE001
            self.counts.add("wrong", note=f"the end of a sandbox: {_in_words(error)}")

    def _live(self, number: int, subject: Subject, rng: Random) -> None:
        while time.monotonic() < self._until and subject.actions < LIFE_ACTIONS:
            subject.actions += 1
            chosen = self._chosen(subject, rng)
            name = chosen.__name__
            self._doing[number] = (name, time.monotonic())
            try:
                if chosen(subject):
                    return
                subject.weigh()
            except Exception as error:  # noqa: BLE001
                kind = f"{'a kept' if subject.keep else 'a'} {subject.kind.__name__}"
                self.counts.add("wrong", note=f"{name}, action {subject.actions} of {kind}: {_in_words(error)}")
                return  # what is true of that sandbox is not known any more
            finally:
                self.counts.slowest("slowest_action_ms", (time.monotonic() - self._doing[number][1]) * 1000)

    def _chosen(self, subject: Subject, rng: Random) -> Callable[[Subject], bool | None]:
        if rng.randrange(FAULT_EVERY):
            action = rng.choices(list(ACTIONS), list(ACTIONS.values()))[0]
            self.counts.acted(action.__name__)
            return action
        kinds = OF_KEPT if subject.keep else OF_OTHERS
        fault = rng.choices(list(kinds), list(kinds.values()))[0]
        self.counts.injected(fault.__name__.replace("_", " "))
        return fault

    # --- the end ------------------------------------------------------------------
    def _show(self, threads: list[threading.Thread], seconds: float) -> None:
        console, began, said = Console(stderr=True), time.monotonic(), time.monotonic()
        columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=seconds)
            told = 0
            while any(thread.is_alive() for thread in threads) and not self._stuck(threads):
                threads[0].join(0.5)
                time.sleep(0.1)
                for note in self.counts.notes[told:]:
                    progress.console.print(note, markup=False, highlight=False)
                    told += 1
                now = time.monotonic()
                progress.update(task, completed=min(now - began, seconds), description=self.counts.line())
                if not console.is_terminal and now - said > PROGRESS_SECONDS:
                    said = now
                    memory = f"memory_mib={resident_bytes(os.getpid()) >> 20}"
                    print(f"{now - began:.0f} s {self.counts.line()} {memory}", file=sys.stderr, flush=True)

    def _stuck(self, threads: list[threading.Thread]) -> bool:
        """Whether an action does not come to an end; then the run does."""
        now = time.monotonic()
        stuck = {n: what for n, (what, since) in list(self._doing.items()) if now - since > STUCK_SECONDS}
        for number, what in stuck.items():
            frame = sys._current_frames().get(threads[number].ident or 0)
            where = "".join(traceback.format_stack(frame)[-6:])
            self.counts.add("late", note=f"{what} has not come back for {STUCK_SECONDS:.0f} s:\n{where}")
        return bool(stuck)

    def _count_remains(self) -> None:
        for _ in range(50):  # the engine removes what it said it would a moment later
            there = on_engine()
            left = [found for remains in self._everything for found in remains.left(*there)]
            if not left:
                return
            time.sleep(0.1)
        self.counts.add("orphans", len(left), ", ".join(left))

    def _count_leaks(self, before: Held, folder: Path) -> None:
        for _ in range(30):
            after = held(folder)
            pairs = {
                "leaked_descriptors": (before.descriptors, after.descriptors),
                "leaked_threads": (before.threads, after.threads),
                "leaked_files": (before.files, after.files),
            }
            if all(len(now) <= len(then) for then, now in pairs.values()):
                break
            time.sleep(0.1)
        for name, (then, now) in pairs.items():
            if len(now) > len(then):
                more = Counter(now) - Counter(then)
                self.counts.add(name, len(now) - len(then), ", ".join(f"{n} x {what}" for what, n in more.items()))
        self.counts.highest("leaked_bytes", max(0, after.resident_bytes - before.resident_bytes))


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, Wrong) else "".join(traceback.format_exception(error)[-4:])


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
