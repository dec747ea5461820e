"""Fuzzing both ends of the pipe with mutations of recorded conversations, and the launcher with mutated specs.

    python -m tests.fuzz run [--target host|guest|launcher|all] [--frames N] [--seconds S] [--seed S] [--only NUMBER] [--json]
    python -m tests.fuzz coverage [--target …] [--frames N] [--seed S]      the branches of the parsers that such a run reaches
    python -m tests.fuzz replay FILE      a conversation that was kept because something went wrong
    python -m tests.fuzz record           renew the record from a real sandbox (needs an engine)

Conversation NUMBER of a seed is always the same. The last line of a run holds the counts; exit code 1 when something was found.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from . import guest, host, launcher
from .conversations import Exchange, load
from .found import Counts, Found, open_descriptors, resident_bytes, threads

PROGRESS_SECONDS = 10.0
# Nothing in either target may take so long; then every stack is printed and the run ends.
STUCK_SECONDS = 120.0
# What the last conversation held, a thread for instance, may take as long to go.
SETTLE_SECONDS = 10.0
# After so many everything lazy is there. The guest is a process of its own; what this one holds for it settles at once.
WARM_UP_CONVERSATIONS = {"host": 200, "guest": 10, "launcher": 2}


class Target(Protocol):
    """What is fuzzed."""

    def conversation(self, rng: random.Random, counts: Counts) -> None:
        """One conversation that ``rng`` makes up. Raises Found."""


TARGETS: dict[str, Callable[[Exchange, list[Exchange]], Target]] = {
    "host": host.HostTarget,
    "guest": guest.GuestTarget,
    "launcher": launcher.LauncherTarget,
}


class Run:
    """A run of one target: ``counts`` and the figures of this process once it was warm."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.counts = Counts()
        self.found: list[str] = []
        self._target: Target = TARGETS[name](*load())
        self._warm: tuple[int, int, int] | None = None

    def until(self, frames: int, seconds: float = float("inf")) -> None:
        """Conversations until so many frames were taken, or so many seconds went by."""
        began = said = time.monotonic()
        number = 0
        while self.counts.frames < frames and time.monotonic() - began < seconds:
            number += 1
            self.one(number)
            if number == WARM_UP_CONVERSATIONS[self.name]:
                self._warm = self._used()
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                held = f"{resident_bytes() >> 20} MiB"
                print(f"{self.name}: {said - began:.0f} s {held} {self.counts.shown()}", file=sys.stderr, flush=True)

    def one(self, number: int) -> None:
        """Conversation ``number`` of the seed."""
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
        try:
            self._target.conversation(random.Random(f"{self.seed}/{number}"), self.counts)
        except Found as found:
            kept = found.keep(self.name, self.seed, number)
            self.found.append(f"{self.name}, seed {self.seed}, conversation {number}, kept in {kept}: {found}")
            print(self.found[-1], file=sys.stderr, flush=True)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def growth(self) -> dict[str, int]:
        """Descriptors, threads and bytes of memory that this process holds beyond what it held when it was warm.

        Empty where the run was too short to become so.
        """
        before = self._warm
        if before is None:
            return {}
        deadline = time.monotonic() + SETTLE_SECONDS
        while any(map(int.__gt__, (now := self._used())[:2], before)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return {name: now[n] - before[n] for n, name in enumerate(("descriptors", "threads", "bytes"))}

    def _used(self) -> tuple[int, int, int]:
        gc.collect()
        return open_descriptors(), threads(), resident_bytes()

    def report(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "target": self.name, "seed": self.seed, "frames": counts.frames, "conversations": counts.conversations,
            "calls": counts.calls, "endings": dict(sorted(counts.endings.items())), "found": len(self.found),
            "grown": self.growth(),
        }  # fmt: skip


def main() -> int:
    """The program; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "coverage", "replay", "record"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--target", choices=(*TARGETS, "all"), default="all")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after these, with fewer frames")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this conversation of the seed alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.what == "record":
        from .recording import record

        print(f"{record()} exchanges recorded")
        return 0
    if options.what == "replay":
        return replay(options.file)
    targets = list(TARGETS) if options.target == "all" else [options.target]
    if options.what == "coverage":
        from .reached import PARSERS, measure

        for name in filter(PARSERS.__contains__, targets):
            print(measure(name, options.frames, options.seed))
        return 0
    runs = [Run(name, options.seed) for name in targets]
    for run in runs:
        if options.only:
            run.one(options.only)
        else:
            run.until(options.frames, options.seconds)
        plain = f"{run.name}: {run.counts.shown()} {run.growth()} found={len(run.found)}"
        print(json.dumps(run.report()) if options.json else plain)
    return 1 if any(run.found for run in runs) else 0


def replay(path: Path) -> int:
    """Say whether what was kept in ``path`` still goes wrong."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    try:
        if kept["target"] == "host":
            host.replay(kept["conversation"])
        elif kept["target"] == "launcher":
            launcher.replay(kept["conversation"])
        else:
            guest.replay(kept["conversation"], load()[0])
    except Found as found:
        print(f"still: {found}")
        return 1
    print("it ends as it may")
    return 0


if __name__ == "__main__":
    sys.exit(main())
