"""What a soak run counts. Zeros belong where ``wrong`` says so."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

# Counted in these, each has to be zero at the end.
ZEROS = ("wrong", "late", "survivors", "orphans", "leaked_descriptors", "leaked_threads", "leaked_files")
# The interpreter and the allocator keep memory they once had: 47 MB after 7,264 actions of three sandboxes, 50 after 4,414 of
# others, of which Python knew nothing. Growth with the number of actions is far beyond this in an hour.
ORCHESTRATOR_BYTES = 96 << 20
GUEST_BYTES = 24 << 20


class Counts:
    """Counts of a whole run; any thread may add to them. ``notes`` tell of the first wrong things."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.actions: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.figures: dict[str, int] = dict.fromkeys(
            (*ZEROS, "sandboxes", "forks", "collateral", "leaked_bytes", "leaked_guest_bytes"), 0
        )
        self.latest: dict[str, float] = {"most_late_ms": 0.0, "slowest_start_ms": 0.0, "slowest_action_ms": 0.0}
        self.notes: list[str] = []

    def acted(self, name: str) -> None:
        with self._lock:
            self.actions[name] += 1

    def injected(self, name: str) -> None:
        with self._lock:
            self.faults[name] += 1

    def add(self, figure: str, count: int = 1, note: str = "") -> None:
        with self._lock:
            self.figures[figure] += count
            if note and len(self.notes) < 40:
                self.notes.append(f"{figure}: {note}"[:1500])

    def highest(self, figure: str, value: int) -> None:
        with self._lock:
            self.figures[figure] = max(self.figures[figure], value)

    def slowest(self, figure: str, milliseconds: float) -> None:
        with self._lock:
            self.latest[figure] = max(self.latest[figure], milliseconds)

    def fine(self) -> bool:
        """Whether there are zeros where zeros belong."""
        figures = self.figures
        grown = figures["leaked_bytes"] > ORCHESTRATOR_BYTES or figures["leaked_guest_bytes"] > GUEST_BYTES
        return not grown and not any(figures[name] for name in ZEROS)

    def to_dict(self) -> dict[str, Any]:
        return {
            "actions": sum(self.actions.values()), "faults": sum(self.faults.values()),
            "actions_by_kind": dict(sorted(self.actions.items())), "faults_by_kind": dict(sorted(self.faults.items())),
            **self.figures, **{name: round(value, 1) for name, value in self.latest.items()}, "notes": self.notes,
        }  # fmt: skip

    def line(self) -> str:
        figures = " ".join(f"{name}={self.figures[name]}" for name in (*ZEROS, "sandboxes"))
        return f"actions={sum(self.actions.values())} faults={sum(self.faults.values())} {figures}"

    def lines(self) -> list[str]:
        """The last lines of a run."""
        by_kind = " ".join(f"{name}={count}" for name, count in sorted(self.actions.items()))
        faults = " ".join(f"{name}={count}" for name, count in sorted(self.faults.items()))
        rest = ("forks", "collateral", "leaked_bytes", "leaked_guest_bytes")
        return [
            f"actions by kind: {by_kind}",
            f"faults by kind: {faults}",
            " ".join(f"{name}={value:.0f}" for name, value in self.latest.items()),
            " ".join(f"{name}={self.figures[name]}" for name in rest),
            self.line(),
        ]
